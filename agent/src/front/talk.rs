//! One connection of a client, from its first request to its end.

use std::sync::Arc;
use std::time::Duration;

use pfo_protocol::{ClientMessage, DaemonMessage, Refusal, RefusalCode};
use pfo_service::{Conversation, Received, hung_up, refuse, send};

use crate::front::holds::Holds;
use crate::front::serve::{Services, serve};

/// How long a client may be silent.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client that holds a job may think about what to measure next.
const HOLD_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Answers one request after the other.
pub(crate) async fn talk(services: Arc<Services>, conversation: Conversation) {
    let Conversation { stream, peer, door, .. } = &conversation;
    let mut holds = Holds::default();
    loop {
        let silence = if holds.is_empty() { REQUEST_TIMEOUT } else { HOLD_TIMEOUT };
        let Some(received) = conversation.next(silence).await else { return };
        let Received { message, room, .. } = received;
        let _room = conversation.room_for_answer(&message).await;
        let request = match message {
            ClientMessage::AgentRequest(request) => request,
            ClientMessage::Request(_) | ClientMessage::Hello(_) | ClientMessage::ListGpus => {
                let refusal = Refusal::new(
                    RefusalCode::Malformed,
                    "pfo-agent takes neither requests to pfod nor sessions",
                    "connect to a socket of pfod",
                );
                return refuse(stream, peer, refusal).await;
            }
            ClientMessage::Event(_) | ClientMessage::Goodbye => return,
        };
        let response = tokio::select! {
            response = serve(&services, peer, *door, &mut holds, request) => response,
            () = hung_up(stream) => return,
        };
        drop(room);
        if !send(stream, &DaemonMessage::AgentResponse(response)).await {
            return;
        }
    }
}

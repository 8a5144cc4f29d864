//! The sockets of the daemon and the exchange over them, on the one thread of the runtime. A
//! session moves to a thread of its own as soon as it holds its lease.

mod listen;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use pfo_policy::{Action, Caller};
use pfo_protocol::{ClientMessage, DaemonMessage, GpuListing, Hello, Refusal, RefusalCode};
use pfo_service::{Conversation, FileIdentity, Received, blocking, hung_up, send, watch_process};

pub(crate) use self::listen::Passed;
use crate::host::journal;
use crate::job::Holds;
use crate::node::Node;
use crate::refusal::internal;
use crate::requests::{Answer, answer, list_gpus, stream};
use crate::session::{Origin, open, set_off};

/// A peer must send a request within this time of connecting, and of each answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves a peer until either side ends the connection.
pub(crate) async fn talk(node: Arc<Node>, conversation: Conversation) {
    let peer = conversation.peer.clone();
    let peer = node.settings().authority.identify(peer, &conversation.stream);
    let mut caller = Caller::new(peer, conversation.door);
    let mut holds = Holds::default();
    loop {
        // Who holds a job for measuring has to show that it lives, not to ask for something.
        let silence = if holds.is_empty() { REQUEST_TIMEOUT } else { node.agent_silence() };
        let Some(received) = conversation.next(silence).await else { return };
        let Received { message, room, files } = received;
        // An answer may take minutes; the request has been read by now.
        drop(room);
        let _room = conversation.room_for_answer(&message).await;
        let response = match message {
            ClientMessage::Request(request) => {
                let answered = tokio::select! {
                    answered = answer(&node, &caller, &mut holds, request) => answered,
                    () = hung_up(&conversation.stream) => return,
                };
                match answered {
                    Answer::Response(response) => DaemonMessage::Response(response),
                    Answer::Caller(response, other) => {
                        caller = other;
                        DaemonMessage::Response(response)
                    }
                    Answer::Stream(response, frames) => {
                        if send(&conversation.stream, &DaemonMessage::Response(response)).await {
                            stream(frames, &conversation.stream).await;
                        }
                        return;
                    }
                }
            }
            ClientMessage::ListGpus => DaemonMessage::GpuList(list(&node, &caller, files).await),
            ClientMessage::Hello(hello) => {
                return begin_session(&node, &caller, (hello, files), &conversation).await;
            }
            // No answer is possible: the session has ended, or the request is for the agent.
            ClientMessage::Event(_) | ClientMessage::Goodbye | ClientMessage::AgentRequest(_) => {
                return;
            }
        };
        if !send(&conversation.stream, &response).await {
            return;
        }
    }
}

async fn list(
    node: &Arc<Node>,
    caller: &Caller,
    open: Vec<FileIdentity>,
) -> Result<Vec<GpuListing>, Refusal> {
    let permit = node.settings().authority.permit(caller, Action::SeeStatus)?;
    let asked = Arc::clone(node);
    blocking(move || list_gpus(&asked, &permit, &open)).await?
}

/// Opens a session, or refuses it.
async fn begin_session(
    node: &Arc<Node>,
    caller: &Caller,
    (hello, files): (Hello, Vec<FileIdentity>),
    conversation: &Conversation,
) {
    let (job, gpu) = (hello.job.clone(), hello.gpu.clone());
    let Err(refusal) = try_session(node, caller, (hello, files), conversation).await else {
        return;
    };
    let (user, pid) = (caller.peer.user(), caller.peer.pid);
    // Every rank asks again each few seconds while a node is drained, and the drain is in the journal.
    if refusal.code != RefusalCode::ShuttingDown {
        tracing::warn!(
            name: journal::REFUSED,
            %job, uid = user.uid.0, owner_uid = user.person.0, pid = pid.0, gpu_uuid = %gpu,
            "refused a session on GPU {gpu} to job {job} ({user}, process {pid}): {}",
            refusal.message
        );
    }
    send(&conversation.stream, &DaemonMessage::Refusal(refusal)).await;
}

async fn try_session(
    node: &Arc<Node>,
    caller: &Caller,
    (hello, files): (Hello, Vec<FileIdentity>),
    conversation: &Conversation,
) -> Result<(), Refusal> {
    let permit = node.settings().authority.permit(caller, Action::OpenSession)?;
    conversation.refuse_files()?;
    let stream = &conversation.stream;
    let socket = stream.as_fd().try_clone_to_owned().map_err(|error| internal(&error))?;
    let opening = open(node, &permit, hello, Origin::Hello(files), socket).await?;
    set_off(opening, watch_process(stream, caller.peer.pid))?;
    conversation.hand_over();
    Ok(())
}

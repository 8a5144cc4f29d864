//! Accepting connections and answering them, on the one thread of the runtime. A session leaves
//! for a thread of its own as soon as it holds its lease.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use interprocess::local_socket::traits::tokio::Listener as _;
use interprocess::os::unix::uds_local_socket::tokio::{Listener, Stream};
use pfo_protocol::{
    ClientMessage, DaemonMessage, FrameError, HEADER_BYTES, Header, Hello, Refusal, RefusalCode,
    Request, Response, Unsupported, VERSION,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use crate::lease::Session;
use crate::node::Node;
use crate::peer::{Peer, watch_process};
use crate::session::{Opening, Origin, internal};
use crate::{journal, requests, session, sys};

/// A peer that connects says what it wants within this time, and again after each answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A peer reads an answer within this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// After an error that will not go away at once, such as no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections of one user beside its sessions.
const REQUESTS_PER_USER: u32 = 16;

/// Stack of a rank's thread, which calls into the driver.
const RANK_STACK_BYTES: usize = 512 * 1024;

/// Accepts connections for as long as the daemon runs.
pub async fn accept(node: Arc<Node>, listener: Listener, open: Arc<Connections>) {
    let mut failing = false;
    loop {
        match listener.accept().await {
            Ok(stream) => {
                failing = false;
                let (node, open) = (Arc::clone(&node), Arc::clone(&open));
                tokio::spawn(async move { connection(&node, stream, &open).await });
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::error!("cannot accept connections: {error}; trying on");
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// How many connections each user has open. Those of sessions count only as sessions.
#[derive(Debug, Default)]
pub struct Connections {
    by_user: Mutex<HashMap<u32, u32>>,
}

impl Connections {
    fn enter(self: &Arc<Self>, uid: u32, most: u32) -> Result<Entered, Refusal> {
        let mut by_user = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        let all: u32 = by_user.values().sum();
        let own = by_user.get(&uid).copied().unwrap_or(0);
        let refused = |message: String, remedy: &str| {
            Err(Refusal::new(RefusalCode::LimitReached, message, remedy))
        };
        // Root gets in even when everybody else is at the limit.
        if uid != 0 && own >= REQUESTS_PER_USER {
            let message = format!("user {uid} has {own} connections open, and may not have more");
            return refused(message, "close some");
        }
        if uid != 0 && all >= most {
            let message = format!("{all} connections are open, the administrator allows {most}");
            return refused(message, "try again later, or ask for a higher limits.connections");
        }
        by_user.insert(uid, own + 1);
        Ok(Entered { open: Arc::clone(self), uid })
    }
}

struct Entered {
    open: Arc<Connections>,
    uid: u32,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut by_user = self.open.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_user.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                by_user.remove(&self.uid);
            }
        }
    }
}

async fn connection(node: &Arc<Node>, stream: Stream, open: &Arc<Connections>) {
    let Ok(peer) = Peer::of(&stream) else { return };
    let _entered = match open.enter(peer.uid, node.settings().config.limits.connections.get()) {
        Ok(entered) => entered,
        Err(refusal) => return refuse(&stream, &peer, refusal).await,
    };
    loop {
        match timeout(REQUEST_TIMEOUT, read_message(&stream)).await {
            Ok(Ok(ClientMessage::Request(request))) => {
                let response = answer(node, &peer, request).await;
                if !send(&stream, &DaemonMessage::Response(response)).await {
                    return;
                }
            }
            Ok(Ok(ClientMessage::Hello(hello))) => {
                return match start_session(node, &peer, hello, &stream).await {
                    Ok(()) => {}
                    Err(refusal) => refuse(&stream, &peer, refusal).await,
                };
            }
            Ok(Err(FrameError::Version(_))) => {
                let spoken = Unsupported { oldest: VERSION, newest: VERSION };
                send(&stream, &DaemonMessage::Unsupported(spoken)).await;
                return;
            }
            // There is nobody to tell: the peer is gone, silent, or in a session that has ended.
            Ok(
                Err(FrameError::Io(_) | FrameError::Truncated)
                | Ok(ClientMessage::Event(_) | ClientMessage::Goodbye),
            )
            | Err(_) => return,
            Ok(Err(error)) => {
                let remedy = "see the documentation of pfo-protocol for the layout of frames";
                let refusal = Refusal::new(RefusalCode::Malformed, error.to_string(), remedy);
                return refuse(&stream, &peer, refusal).await;
            }
        }
    }
}

async fn answer(node: &Arc<Node>, peer: &Peer, request: Request) -> Response {
    let wait = matches!(request, Request::PlanSwap { wait: true, .. });
    let (node, peer) = (Arc::clone(node), peer.clone());
    // Plans are parsed and drivers asked away from the thread that accepts connections.
    let decided =
        tokio::task::spawn_blocking(move || requests::decide(&node, &peer, request)).await;
    match decided {
        Ok(requests::Decision::Answer(response)) => response,
        Ok(requests::Decision::Swap(swap)) => {
            if wait {
                requests::wait_for_swap(&swap).await;
            }
            Response::Swapped(requests::swapped(&swap))
        }
        Err(error) => Response::Refused(Refusal::new(RefusalCode::Internal, error.to_string(), "")),
    }
}

async fn start_session(
    node: &Arc<Node>,
    peer: &Peer,
    hello: Hello,
    stream: &Stream,
) -> Result<(), Refusal> {
    let socket = stream.as_fd().try_clone_to_owned().map_err(|error| internal(&error))?;
    let opening = session::open(node, peer, hello, Origin::Hello, socket).await?;
    set_off(opening, watch_process(stream, peer))
}

/// Gives a session the thread that it runs on to its end, which comes with that of the process at the
/// latest.
///
/// # Errors
/// If there cannot be another thread.
pub fn set_off(mut opening: Opening, process: Option<OwnedFd>) -> Result<(), Refusal> {
    if let Some(pidfd) = process {
        let session = Arc::downgrade(opening.session());
        opening.watched_by(tokio::spawn(end_with_process(pidfd, session)).abort_handle());
    }
    std::thread::Builder::new()
        .name(format!("rank {}", opening.session().holder.rank))
        .stack_size(RANK_STACK_BYTES)
        .spawn(move || opening.run())
        .map_err(|error| internal(&error))?;
    Ok(())
}

/// The trainer's children may hold a copy of its socket, so its end alone does not tell that the
/// trainer is gone.
async fn end_with_process(pidfd: OwnedFd, session: Weak<Session>) {
    let Ok(pidfd) = sys::register(pidfd) else {
        return;
    };
    if pidfd.readable().await.is_ok()
        && let Some(session) = session.upgrade()
    {
        session.hang_up();
    }
}

async fn read_message(mut stream: &Stream) -> Result<ClientMessage, FrameError> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).await.map_err(FrameError::reading)?;
    let Header { kind, length } = Header::parse(header)?;
    // Grows with what arrives, not with what is announced.
    let mut payload = Vec::new();
    stream.take(length as u64).read_to_end(&mut payload).await.map_err(FrameError::reading)?;
    if payload.len() < length {
        return Err(FrameError::Truncated);
    }
    ClientMessage::from_payload(kind, &payload)
}

async fn send(mut stream: &Stream, message: &DaemonMessage) -> bool {
    let Ok(frame) = message.to_frame() else {
        return false;
    };
    matches!(timeout(ANSWER_TIMEOUT, stream.write_all(&frame)).await, Ok(Ok(())))
}

async fn refuse(stream: &Stream, peer: &Peer, refusal: Refusal) {
    tracing::warn!(
        name: journal::REFUSED, uid = peer.uid, pid = peer.pid, "refused: {}", refusal.message
    );
    send(stream, &DaemonMessage::Refusal(refusal)).await;
}

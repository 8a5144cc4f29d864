//! Accepting connections and answering them, on the one thread of the runtime. A session leaves
//! for a thread of its own as soon as it holds its lease.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use interprocess::local_socket::traits::tokio::Listener as _;
use interprocess::os::unix::uds_local_socket::tokio::{Listener, Stream};
use pfo_protocol::{
    ClientMessage, DaemonMessage, FrameError, HEADER_BYTES, Header, Hello, JobSelector, Refusal,
    RefusalCode, Request, Response, TrialLength, TrialRun, Unsupported, VERSION,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use crate::connections::{Connections, Entered, Room};
use crate::hold::Holds;
use crate::lease::Session;
use crate::node::Node;
use crate::peer::{Peer, watch_process};
use crate::session::{Opening, Origin, internal};
use crate::trial_samples::TrialSamples;
use crate::{journal, p2p, requests, session, sweep, sys, trial};

/// A peer that connects says what it wants within this time, and again after each answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A peer that holds a job for measuring may think for so long about what to measure next.
const HOLD_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// A peer reads an answer within this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// After an error that will not go away at once, such as no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// After some connections too many, so that whoever opens one after the other does not have a core to
/// itself, nor keep those waiting for long who come after it.
const REFUSAL_PAUSE: Duration = Duration::from_millis(1);
const REFUSALS: u32 = 4;

/// Stack of a rank's thread, which calls into the driver.
const RANK_STACK_BYTES: usize = 512 * 1024;

/// Accepts connections for as long as the daemon runs.
pub async fn accept(node: Arc<Node>, listener: Listener, open: Arc<Connections>) {
    let mut failing = false;
    let mut refused = 0;
    loop {
        match listener.accept().await {
            Ok(stream) => {
                failing = false;
                if !admit(&node, stream, &open) {
                    refused = (refused + 1) % REFUSALS;
                    if refused == 0 {
                        sleep(REFUSAL_PAUSE).await;
                    }
                }
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

/// Lets a connection in, or refuses it. False if it was one too many.
fn admit(node: &Arc<Node>, stream: Stream, open: &Arc<Connections>) -> bool {
    let Ok(peer) = Peer::of(&stream) else { return true };
    let most = node.settings().config.limits.connections.get();
    let entered = open.enter(peer.uid, most);
    let admitted = entered.is_ok();
    let node = Arc::clone(node);
    tokio::spawn(async move {
        match entered {
            Ok(entered) => connection(&node, &stream, &peer, &entered).await,
            Err(refusal) => refuse(&stream, &peer, refusal).await,
        }
    });
    admitted
}

async fn connection(node: &Arc<Node>, stream: &Stream, peer: &Peer, entered: &Entered) {
    let mut holds = Holds::default();
    loop {
        entered.turn().await;
        let silence = if holds.is_empty() { REQUEST_TIMEOUT } else { HOLD_TIMEOUT };
        match timeout(silence, read_message(stream, entered)).await {
            Ok(Ok((ClientMessage::Request(request), room))) => {
                let answered = match request {
                    Request::Trial { job, run, length, samples } => {
                        // A trial may take minutes.
                        drop(room);
                        let trial = trial(node, peer, &mut holds, &job, (run, length, samples));
                        tokio::select! {
                            response = trial => Some(response),
                            () = hung_up(stream) => None,
                        }
                    }
                    Request::SweepAttend(order) => {
                        drop(room);
                        let swept = sweep::requests::attend(node, peer, order);
                        tokio::select! {
                            response = swept => Some(requests::answer_to(peer, response)),
                            () = hung_up(stream) => None,
                        }
                    }
                    Request::TrialsEnd { job, keep } => {
                        let ended = holds.end(node, peer, &job, keep);
                        Some(requests::answer_to(peer, ended.map(Response::TrialsEnded)))
                    }
                    Request::TrialSamples(job) => {
                        let page =
                            holds.held(node, peer, &job).map(|hold| hold.samples().next_page());
                        Some(requests::answer_to(peer, page.map(Response::TrialSamples)))
                    }
                    Request::P2pKeep(job) => Some(keep_waits(node, peer, &mut holds, &job).await),
                    other => answer(node, peer, other, stream).await,
                };
                let Some(response) = answered else { return };
                if !send(stream, &DaemonMessage::Response(response)).await {
                    return;
                }
            }
            Ok(Ok((ClientMessage::Hello(hello), _))) => {
                let (job, gpu) = (hello.job.clone(), hello.gpu.clone());
                if let Err(refusal) = start_session(node, peer, hello, stream).await {
                    let gpu = node.gpu(&gpu).ok();
                    tracing::warn!(
                        name: journal::REFUSED,
                        %job, uid = peer.uid, pid = peer.pid,
                        gpu_uuid = gpu.as_ref().map(|gpu| gpu.uuid.as_str()),
                        "refused a session: {}", refusal.message
                    );
                    send(stream, &DaemonMessage::Refusal(refusal)).await;
                }
                return;
            }
            Ok(Err(FrameError::Version(_))) => {
                let spoken = Unsupported { oldest: VERSION, newest: VERSION };
                send(stream, &DaemonMessage::Unsupported(spoken)).await;
                return;
            }
            // There is nobody to tell: the peer is gone, silent, or in a session that has ended.
            Ok(
                Err(FrameError::Io(_) | FrameError::Truncated)
                | Ok((ClientMessage::Event(_) | ClientMessage::Goodbye, _)),
            )
            | Err(_) => return,
            Ok(Err(error)) => {
                let remedy = "see the documentation of pfo-protocol for the layout of frames";
                let refusal = Refusal::new(RefusalCode::Malformed, error.to_string(), remedy);
                return refuse(stream, peer, refusal).await;
            }
        }
    }
}

async fn trial(
    node: &Arc<Node>,
    peer: &Peer,
    holds: &mut Holds,
    job: &JobSelector,
    (run, length, samples): (TrialRun, TrialLength, bool),
) -> Response {
    let result = match holds.of(node, peer, job) {
        Ok(hold) => {
            let clock = if let TrialRun::Uniform(mhz) = run { Some(mhz) } else { None };
            // What waits draw under a power limit is not what they draw otherwise.
            let limited = matches!(run, TrialRun::PowerLimits { .. });
            *hold.samples() = TrialSamples::default();
            trial::run(hold, run, length, samples).await.map(|(result, samples)| {
                if !limited {
                    hold.waits().add(clock, &result);
                }
                *hold.samples() = samples;
                result
            })
        }
        Err(refusal) => Err(refusal),
    };
    requests::answer_to(peer, result.map(|result| Response::Trial(Box::new(result))))
}

async fn keep_waits(
    node: &Arc<Node>,
    peer: &Peer,
    holds: &mut Holds,
    selector: &JobSelector,
) -> Response {
    let kept = match holds.of(node, peer, selector) {
        Ok(hold) => {
            let (job, waits) = (Arc::clone(hold.job()), hold.waits().clone());
            let (node, peer) = (Arc::clone(node), peer.clone());
            let keep = move || p2p::requests::keep(&node, &peer, &job.key.name, &waits);
            tokio::task::spawn_blocking(keep).await.unwrap_or_else(|error| Err(internal(&error)))
        }
        Err(refusal) => Err(refusal),
    };
    requests::answer_to(peer, kept)
}

/// None if nobody is left to be answered.
async fn answer(
    node: &Arc<Node>,
    peer: &Peer,
    mut request: Request,
    stream: &Stream,
) -> Option<Response> {
    let wait = matches!(
        request,
        Request::PlanSwap { wait: true, .. } | Request::Straggler { wait: true, .. }
    );
    loop {
        let (node, peer) = (Arc::clone(node), peer.clone());
        // Plans are parsed and drivers asked away from the thread that accepts connections.
        let decide = tokio::task::spawn_blocking(move || requests::decide(&node, &peer, request));
        match decide.await {
            Ok(requests::Decision::Answer(response)) => return Some(response),
            Ok(requests::Decision::Swap(swap)) => {
                if wait {
                    tokio::select! {
                        () = requests::wait_for_swap(&swap) => {}
                        () = hung_up(stream) => return None,
                    }
                }
                return Some(Response::Swapped(requests::swapped(&swap)));
            }
            Ok(requests::Decision::NotYet(job, again)) => {
                tokio::select! {
                    () = requests::wait_for_steps(&job) => request = again,
                    () = hung_up(stream) => return None,
                }
            }
            Err(error) => {
                let refusal = Refusal::new(RefusalCode::Internal, error.to_string(), "");
                return Some(Response::Refused(refusal));
            }
        }
    }
}

/// Waits until nobody can be answered over a connection, whatever else is still to be read from it.
async fn hung_up(stream: &Stream) {
    let watched = stream.as_fd().try_clone_to_owned().and_then(sys::register);
    let Ok(watched) = watched else { return std::future::pending().await };
    loop {
        match watched.writable().await {
            Ok(ready) if ready.ready().is_write_closed() => return,
            Ok(mut ready) => ready.clear_ready(),
            Err(_) => return,
        }
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

async fn read_message(
    mut stream: &Stream,
    entered: &Entered,
) -> Result<(ClientMessage, Option<Room>), FrameError> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).await.map_err(FrameError::reading)?;
    let Header { kind, length } = Header::parse(header)?;
    let room = entered.room_for(length).await;
    // Grows with what arrives, not with what is announced.
    let mut payload = Vec::new();
    stream.take(length as u64).read_to_end(&mut payload).await.map_err(FrameError::reading)?;
    if payload.len() < length {
        return Err(FrameError::Truncated);
    }
    Ok((ClientMessage::from_payload(kind, &payload)?, room))
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

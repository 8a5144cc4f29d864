//! Sessions that the previous daemon left in the descriptor store: they continue where they are, so
//! that their ranks notice nothing but a moment at default clocks. Their jobs run what they ran
//! before.
//!
//! The peer is identified and authorized again, and its hello is parsed as if it came just now: the
//! configuration may have changed, and the previous daemon may have been another version.

use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use pfo_policy::{Action, Caller};
use pfo_protocol::{
    ClientMessage, DaemonMessage, Frame, FrameError, Hello, Refusal, RefusalCode, SessionId,
};
use pfo_service::{Door, LIVED, Peer, Whose, catch, catch_in, watch_process};
use tokio::time::{sleep, timeout};

use super::{Opening, Origin, WRITE_TIMEOUT, open, set_off, tell};
use crate::job::JobKey;
use crate::lease::descriptor_store::{Kept, forget, sort};
use crate::node::Node;
use crate::refusal::internal;

/// A GPU that hangs delays the others by no more than this at a restart.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(2);

/// What a rank whose session is lost does.
const AGAIN: &str = "the rank opens another session by itself";

/// A session that the previous daemon left.
struct Left {
    session: SessionId,
    socket: UnixStream,
    hello: Hello,
    peer: Peer,
    job: JobKey,
}

/// Continues every session that can be continued, and every job.
pub(crate) async fn resume(node: &Arc<Node>, kept: Vec<(SessionId, OwnedFd)>) {
    let mut left = Vec::new();
    // The newest first: an older one that wants the same GPU has ended.
    for (session, kept) in sort(kept).into_iter().rev() {
        node.session_was_opened(session);
        let Kept { socket: Some(socket), hello } = kept else {
            forget(session);
            continue;
        };
        let socket = UnixStream::from(socket);
        match identify(&socket, &hello) {
            Ok((peer, hello)) => {
                let job = JobKey { uid: peer.uid, name: hello.job.clone() };
                left.push(Left { session, socket, hello, peer, job });
            }
            Err(refusal) => give_up(session, &socket, refusal),
        }
    }
    let jobs = left.iter().map(|left| left.job.clone()).collect();
    let (deaths, left_out) = node.attempt.begin(jobs);
    node.jobs.leave_out(&left_out, deaths);
    let mut opened = Vec::new();
    for left in left {
        let whose = Whose::of(left.peer.uid, left.peer.pid);
        let taken = catch_in(&whose, take_up(node, &left, &left_out)).await;
        match taken.unwrap_or_else(|panicked| Err(panicked.into())) {
            Ok(opening) => opened.push((opening, left.socket)),
            Err(refusal) => give_up(left.session, &left.socket, refusal),
        }
    }
    node.jobs.restore(&node.leases.sessions());
    let mut begun = Vec::new();
    for ((mut opening, process), socket) in opened {
        let session = opening.session().holder.session;
        begun.push(opening.begun());
        if let Err(refusal) = set_off(opening, Some(process)) {
            give_up(session, &socket, refusal);
        }
    }
    // A swap is agreed on with all ranks of a job.
    let all_begun = async {
        for begun in begun {
            let _ = begun.await;
        }
    };
    if timeout(BEGIN_TIMEOUT, all_begun).await.is_err() {
        tracing::warn!(
            "some sessions of the previous pfod have yet to begin; serving without them"
        );
    }
    tokio::spawn(end_attempt(Arc::clone(node)));
}

async fn end_attempt(node: Arc<Node>) {
    sleep(LIVED).await;
    node.attempt.end();
    node.jobs.remove_left_out();
}

fn identify(socket: &UnixStream, hello: &[u8]) -> Result<(Peer, Hello), Refusal> {
    let peer = Peer::of(socket).map_err(|error| internal(&error))?;
    let hello = catch(&Whose::of(peer.uid, peer.pid), || read(hello))?.map_err(|error| {
        Refusal::new(RefusalCode::ShuttingDown, format!("its hello is lost: {error}"), AGAIN)
    })?;
    Ok((peer, hello))
}

async fn take_up(
    node: &Arc<Node>,
    left: &Left,
    left_out: &[JobKey],
) -> Result<(Opening, OwnedFd), Refusal> {
    let Left { session, socket, hello, peer, job } = left;
    if left_out.contains(job) {
        let message = "pfod may have died of its job";
        return Err(Refusal::new(RefusalCode::ShuttingDown, message, AGAIN));
    }
    let mut peer = peer.clone();
    peer.person = node.people.look_up(peer.uid).await;
    let Some(process) = watch_process(socket, peer.pid) else {
        return Err(Refusal::new(RefusalCode::ShuttingDown, "its process is gone", ""));
    };
    let origin = Origin::LastDaemon(*session);
    let connection = socket.try_clone().map_err(|error| internal(&error))?.into();
    let peer = node.settings().authority.identify(peer, socket);
    let caller = Caller::new(peer, Door::Users);
    let permit = node.settings().authority.permit(&caller, Action::OpenSession)?;
    let opening = open(node, &permit, hello.clone(), origin, connection).await?;
    Ok((opening, process))
}

fn read(bytes: &[u8]) -> Result<Hello, FrameError> {
    match Frame::first_of(bytes)? {
        Some(frame) if frame.total_bytes() == bytes.len() => {
            match ClientMessage::from_payload(frame.kind, frame.payload)? {
                ClientMessage::Hello(hello) => Ok(hello),
                _ => Err(FrameError::Unexpected(frame.kind)),
            }
        }
        _ => Err(FrameError::Truncated),
    }
}

fn give_up(session: SessionId, socket: &UnixStream, refusal: Refusal) {
    tracing::warn!(
        session = session.0,
        "session {session} does not outlive the restart of pfod: {}",
        refusal.message
    );
    let _ = socket.set_nonblocking(false);
    let _ = socket.set_write_timeout(Some(WRITE_TIMEOUT));
    tell(socket, &DaemonMessage::Refusal(refusal));
    // The descriptor store has a copy of the connection still.
    let _ = socket.shutdown(Shutdown::Both);
    forget(session);
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{DpRank, Rank, RankPosition, Stage, TpRank};

    use super::*;

    fn hello() -> Hello {
        Hello {
            client: "test".into(),
            job: "j".parse().unwrap(),
            position: RankPosition {
                rank: Rank(0),
                pp_rank: Stage(0),
                dp_rank: DpRank(0),
                tp_rank: TpRank(0),
                pp_degree: 1,
                dp_degree: 1,
                tp_degree: 1,
            },
            gpu: "GPU-1".parse().unwrap(),
            num_microbatches: Some(u32::MAX),
            next_step: u64::MAX,
        }
    }

    #[test]
    fn a_hello_is_read_as_it_was_kept() {
        let bytes = ClientMessage::Hello(hello()).to_frame().unwrap();
        assert_eq!(read(&bytes).unwrap(), hello());
    }

    #[test]
    fn bytes_that_are_not_exactly_one_hello_are_lost() {
        let bytes = ClientMessage::Hello(hello()).to_frame().unwrap();
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length]).is_err(), "{length} bytes");
        }
        assert!(read(&[bytes.clone(), bytes.clone()].concat()).is_err());
        let other = ClientMessage::Goodbye.to_frame().unwrap();
        assert!(matches!(read(&other), Err(FrameError::Unexpected(_))));
    }
}

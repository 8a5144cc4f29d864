//! The process at the other end of a connection, as the kernel identifies it, never as a message does.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::socket::{getsockopt, sockopt};
use pfo_vocabulary::{Gid, Pid, Uid};

use crate::sys;

/// The kind of socket that a connection came through. It bounds what its peer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Door {
    /// Open to everybody who may train; uid 0 is an ordinary user here.
    Users,
    /// Open to administrators.
    Admin,
    /// Open to the agent.
    Agent,
}

/// A peer's identity at the time it connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The effective user.
    pub uid: Uid,
    /// The process; for people and for logs, never for a decision.
    pub pid: Pid,
    /// The effective group and all supplementary ones.
    pub groups: Vec<Gid>,
}

impl Peer {
    /// Asks the kernel who connected a socket.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        let credentials = getsockopt(socket, sockopt::PeerCredentials)?;
        let mut groups = sys::peer_groups(socket.as_fd())?;
        groups.push(Gid(credentials.gid()));
        let (uid, pid) = (Uid(credentials.uid()), Pid(credentials.pid().unsigned_abs()));
        Ok(Self { uid, pid, groups })
    }
}

/// A descriptor that becomes readable when the peer's process ends, even if children of it hold copies of its
/// socket. None where the kernel cannot give one.
#[must_use]
pub fn watch_process(socket: &impl AsFd, peer: &Peer) -> Option<OwnedFd> {
    match getsockopt(socket, sockopt::PeerPidfd) {
        Ok(pidfd) => Some(pidfd),
        // Kernels before 6.5. The number may belong to another process by now; then the watch says
        // nothing about the peer, and the end of the socket has to.
        Err(_) => sys::pidfd_open(peer.pid).ok(),
    }
}

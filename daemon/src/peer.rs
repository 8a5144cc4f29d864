//! Who is at the other end of a connection, as the kernel tells it and never as a message does.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::socket::{getsockopt, sockopt};

use crate::sys;

/// A peer's identity at the time it connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The effective user.
    pub uid: u32,
    /// The process; for people and for logs, never for a decision.
    pub pid: u32,
    /// The effective group and all supplementary ones.
    pub groups: Vec<u32>,
}

impl Peer {
    /// Asks the kernel who connected this socket.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        let credentials = getsockopt(socket, sockopt::PeerCredentials)?;
        let mut groups = sys::peer_groups(socket.as_fd())?;
        groups.push(credentials.gid());
        Ok(Self { uid: credentials.uid(), pid: credentials.pid().unsigned_abs(), groups })
    }
}

/// A descriptor that becomes readable when the peer's process ends, however many children it left
/// with a copy of its socket. None where the kernel cannot give one.
#[must_use]
pub fn watch_process(socket: &impl AsFd, peer: &Peer) -> Option<OwnedFd> {
    match getsockopt(socket, sockopt::PeerPidfd) {
        Ok(pidfd) => Some(pidfd),
        // Kernels before 6.5. The number may belong to another process by now; then the watch says
        // nothing about the peer, and the end of the socket has to.
        Err(_) => sys::pidfd_open(peer.pid).ok(),
    }
}

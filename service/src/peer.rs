//! The process at the other end of a connection, as the kernel identifies it, never as a message
//! does.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use pfo_vocabulary::{Gid, Pid, Uid};

use crate::cgroup::cgroups_of;
use crate::people::User;
use crate::sys;

/// The kind of socket that a connection came through. It bounds what its peer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Door {
    /// Open to trainers; uid 0 is an ordinary user here.
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
    /// The user that it counts as; the same one until [`People`](crate::People) was asked.
    pub person: Uid,
    /// The process; shown to people and in logs, never used for a decision.
    pub pid: Pid,
    /// The effective group and all supplementary ones.
    pub groups: Vec<Gid>,
    /// The paths of its control groups; none until [`with_cgroups`](Self::with_cgroups).
    pub cgroups: Vec<String>,
}

impl Peer {
    /// Asks the kernel for the identity of the process that connected a socket.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        let credentials = getsockopt(socket, sockopt::PeerCredentials)?;
        let mut groups = sys::peer_groups(socket.as_fd())?;
        groups.push(Gid(credentials.gid()));
        let (uid, pid) = (Uid(credentials.uid()), Pid(credentials.pid().unsigned_abs()));
        Ok(Self { uid, person: uid, pid, groups, cgroups: Vec::new() })
    }

    /// The same peer with its control groups; none if its process has ended, as the number may be
    /// another process by now.
    #[must_use]
    pub fn with_cgroups(self, socket: &impl AsFd) -> Self {
        let Some(process) = watch_process(socket, self.pid) else { return self };
        let cgroups = cgroups_of(self.pid);
        let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
        let lives = poll(&mut ended, PollTimeout::ZERO) == Ok(0);
        Self { cgroups: if lives { cgroups } else { Vec::new() }, ..self }
    }

    /// The user and the person that it counts as.
    #[must_use]
    pub fn user(&self) -> User {
        User { uid: self.uid, person: self.person }
    }
}

/// A descriptor that becomes readable when the peer's process ends, even if its children hold
/// copies of its socket. `None` if the kernel cannot give one.
#[must_use]
pub fn watch_process(socket: &impl AsFd, pid: Pid) -> Option<OwnedFd> {
    match getsockopt(socket, sockopt::PeerPidfd) {
        Ok(pidfd) => Some(pidfd),
        // Kernels before 6.5. The number may belong to another process by now; then this watch does
        // not apply to the peer, and only the end of the socket ends it.
        Err(_) => sys::pidfd_open(pid).ok(),
    }
}

//! Why a daemon gave no response, as a sentence, a remedy and an exit code.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{Gid, Group};
use pfo_protocol::{FrameError, Refusal, VERSION};

use super::daemon::Which;
use crate::exit::Exit;
use crate::explained::Explained;
use crate::user;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("cannot reach {which}: there is no socket {}", .socket.display())]
    NoSocket { which: Which, socket: PathBuf },
    #[error("cannot reach {which}: nothing listens on {}", .socket.display())]
    NobodyListens { which: Which, socket: PathBuf },
    #[error("cannot reach {which}: {} is not a socket", .socket.display())]
    NotASocket { which: Which, socket: PathBuf },
    #[error("user {user} may not open {}", .socket.display())]
    Closed { which: Which, socket: PathBuf, user: String },
    #[error("cannot connect to {which} at {}: {source}", .socket.display())]
    Connect { which: Which, socket: PathBuf, source: io::Error },
    #[error("{which} at {} did not answer within {seconds} s", .socket.display())]
    NoAnswer { which: Which, socket: PathBuf, seconds: u64 },
    #[error("{which} at {} closed the connection before it answered", .socket.display())]
    Vanished { which: Which, socket: PathBuf },
    #[error(
        "{which} at {} speaks versions {oldest} to {newest} of the protocol, this pfoctl version \
         {VERSION}",
        .socket.display()
    )]
    Version { which: Which, socket: PathBuf, oldest: u16, newest: u16 },
    #[error("{which} at {}: {source}", .socket.display())]
    Frame { which: Which, socket: PathBuf, source: FrameError },
    #[error("{which} at {} sent an unexpected response: {response}", .socket.display())]
    Unexpected { which: Which, socket: PathBuf, response: String },
    #[error("{}", user::with_names(&.0.message))]
    Refused(Refusal),
}

impl Which {
    /// The option and the variable that name its socket.
    const fn named_by(self) -> &'static str {
        match self {
            Self::Pfod => "--socket or PFO_SOCKET",
            Self::Agent => "--agent-socket or PFO_AGENT_SOCKET",
        }
    }

    /// What works while it is not there.
    const fn not_needed_for(self) -> &'static str {
        match self {
            Self::Pfod => {
                "without it, `pfoctl plan` works on files and `pfoctl profile` lists and exports \
                 what pfo-agent stores"
            }
            Self::Agent => {
                "without it, leases, swaps, `pfoctl plan` on files and what pfod reports in \
                 `pfoctl status` work"
            }
        }
    }

    fn how_to_start(self) -> String {
        format!(
            "start it with `systemctl start {self}`, or name another socket with {}\n{}",
            self.named_by(),
            self.not_needed_for()
        )
    }
}

impl Explained for ConnectionError {
    fn exit(&self) -> Exit {
        match self {
            Self::NoSocket { .. }
            | Self::NobodyListens { .. }
            | Self::NotASocket { .. }
            | Self::Connect { .. }
            | Self::NoAnswer { .. }
            | Self::Vanished { .. } => Exit::Unreachable,
            Self::Closed { .. } => Exit::Refused,
            Self::Refused(refusal) => Exit::of_refusal(refusal.code),
            Self::Version { .. } | Self::Frame { .. } | Self::Unexpected { .. } => Exit::Failed,
        }
    }

    fn remedy(&self) -> Option<String> {
        match self {
            Self::NoSocket { which, .. } | Self::NobodyListens { which, .. } => {
                Some(which.how_to_start())
            }
            Self::NotASocket { which, .. } => {
                Some(format!("name its socket with {}", which.named_by()))
            }
            Self::Closed { socket, user, .. } => {
                Some(how_to_get_in(user, user::own().0 == 0, &group_of(socket)))
            }
            Self::NoAnswer { which, .. } | Self::Vanished { which, .. } => {
                // The agent waits for pfod, where that hangs.
                let units = match which {
                    Which::Agent => "pfo-agent pfod",
                    Which::Pfod => "pfod",
                };
                Some(format!(
                    "it may have done what you asked for: `pfoctl status` shows what runs; see \
                     `systemctl status {units}` and `journalctl -u {which}`\n{}",
                    which.not_needed_for()
                ))
            }
            Self::Version { which, .. }
            | Self::Frame {
                which,
                source: FrameError::Version(_) | FrameError::Payload { .. },
                ..
            } => Some(format!(
                "install the same release of {which} and pfoctl, then `systemctl restart {which}`"
            )),
            Self::Refused(refusal) => {
                Some(refusal.remedy.clone()).filter(|remedy| !remedy.is_empty())
            }
            Self::Connect { .. } | Self::Frame { .. } | Self::Unexpected { .. } => None,
        }
    }
}

/// The group that may open a socket, which is another than `pfo` where a site wants that.
fn group_of(socket: &Path) -> String {
    let gid = socket.metadata().map(|found| Gid::from_raw(found.gid()));
    let name = |gid: Gid| {
        Group::from_gid(gid).ok().flatten().map_or_else(|| gid.to_string(), |group| group.name)
    };
    gid.map_or_else(|_| "pfo".to_owned(), name)
}

/// Root of the node opens every socket: one that may not is root of a container.
fn how_to_get_in(user: &str, is_root: bool, group: &str) -> String {
    if is_root {
        return "this process is root in a user namespace only: start the container with the \
                socket's group (podman: `--group-add keep-groups`)"
            .to_owned();
    }
    if group == "root" {
        return "only root may: SocketGroup= of its unit names the group that may, too".to_owned();
    }
    format!(
        "members of group {group} may: have an administrator run `usermod -aG {group} {user}`, then {}",
        user::how_to_use_new_groups()
    )
}

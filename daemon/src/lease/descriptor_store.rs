//! Connections that outlive the daemon: systemd keeps a copy of each, with the hello that opened
//! it, and hands both to the next daemon. It drops them when the unit stops for good, and drops a
//! connection as soon as its other end is gone.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{SFlag, fstat};
use pfo_protocol::{HEADER_BYTES, SessionId};
use sd_notify::{NotifyState, notify, notify_with_fds};

/// The prefix of the session's number in the names of its descriptors.
const PREFIX: &str = "session.";

/// Larger than any hello.
const LARGEST_HELLO: u64 = HEADER_BYTES as u64 + 4096;

/// What the store holds of one session.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The connection, unless its other end is gone.
    pub socket: Option<OwnedFd>,
    /// The frame that opened the session.
    pub hello: Vec<u8>,
}

/// Hands copies of a connection and its hello to the store. Returns false if there is no service
/// manager.
///
/// # Errors
/// If the kernel or the service manager refuses them.
pub(crate) fn keep(session: SessionId, socket: &impl AsFd, hello: &[u8]) -> io::Result<bool> {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return Ok(false);
    }
    let mut file = File::from(memfd_create("hello", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(hello)?;
    let name = name_of(session);
    let state = [NotifyState::FdStore, NotifyState::FdName(&name)];
    notify_with_fds(&state, &[socket.as_fd(), file.as_fd()])?;
    Ok(true)
}

/// Removes a session from the store.
pub(crate) fn forget(session: SessionId) {
    let name = name_of(session);
    // A service manager that does not listen keeps nothing either.
    let _ = notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(&name)]);
}

fn name_of(session: SessionId) -> String {
    format!("{PREFIX}{session}")
}

/// The session that a descriptor of this name belongs to, if the name is one of the store's.
pub(crate) fn session_of(name: &str) -> Option<SessionId> {
    name.strip_prefix(PREFIX)?.parse().ok().map(SessionId)
}

/// What the store returned, session by session.
pub(crate) fn sort(descriptors: Vec<(SessionId, OwnedFd)>) -> BTreeMap<SessionId, Kept> {
    let mut sessions = BTreeMap::<SessionId, Kept>::new();
    for (session, descriptor) in descriptors {
        let kept = sessions.entry(session).or_default();
        let kind = fstat(&descriptor).map(|found| SFlag::from_bits_truncate(found.st_mode));
        if kind.is_ok_and(|kind| kind & SFlag::S_IFMT == SFlag::S_IFSOCK) {
            kept.socket = Some(descriptor);
        } else {
            kept.hello = read(File::from(descriptor)).unwrap_or_default();
        }
    }
    sessions
}

fn read(mut file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(LARGEST_HELLO).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn memfd(content: &[u8]) -> OwnedFd {
        let mut file = File::from(memfd_create("test", MFdFlags::MFD_CLOEXEC).unwrap());
        file.write_all(content).unwrap();
        file.into()
    }

    #[test]
    fn a_connection_and_its_hello_find_each_other_in_any_order() {
        let socket = || OwnedFd::from(UnixStream::pair().unwrap().0);
        let descriptors =
            vec![(7, memfd(b"seven")), (9, socket()), (7, socket()), (8, memfd(b"eight"))];
        let descriptors =
            descriptors.into_iter().map(|(number, descriptor)| (SessionId(number), descriptor));
        let sorted = sort(descriptors.collect()).into_iter().map(|(number, kept)| {
            (number.0, kept.socket.is_some(), String::from_utf8(kept.hello).unwrap())
        });
        let expected = [(7, true, "seven"), (8, false, "eight"), (9, true, "")];
        assert!(sorted.eq(expected.map(|(number, socket, hello)| (number, socket, hello.into()))));
    }

    #[test]
    fn only_the_names_of_sessions_are_the_stores() {
        assert_eq!(session_of(&name_of(SessionId(u64::MAX))), Some(SessionId(u64::MAX)));
        for other in ["trainers", "session", "session.", "session.-1", "unknown"] {
            assert_eq!(session_of(other), None, "{other}");
        }
    }
}

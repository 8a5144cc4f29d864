//! Connections that outlive the daemon: systemd keeps a copy of each, with the hello that opened it, and
//! hands them to the next daemon. It lets go of them when the unit stops for good, and of a connection
//! as soon as its other end is gone.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{SFlag, fstat};
use pfo_protocol::HEADER_BYTES;
use systemd::daemon as notify;

/// Before the number of the session, in the name of its descriptors.
const PREFIX: &str = "session.";

/// More than any hello.
const LARGEST_HELLO: u64 = HEADER_BYTES as u64 + 4096;

/// What the store has of one session.
#[derive(Debug, Default)]
pub struct Kept {
    /// The connection, unless its other end is gone.
    pub socket: Option<OwnedFd>,
    /// The frame that opened the session.
    pub hello: Vec<u8>,
}

/// Hands copies of a connection and its hello to the store. False if there is no service manager.
///
/// # Errors
/// If the kernel or the service manager does not take them.
pub fn keep(session: u64, socket: &impl AsFd, hello: &[u8]) -> io::Result<bool> {
    let mut file = File::from(memfd_create("hello", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(hello)?;
    let state = [("FDSTORE", "1".to_owned()), ("FDNAME", name_of(session))];
    let descriptors = [socket.as_fd().as_raw_fd(), file.as_raw_fd()];
    Ok(notify::pid_notify_with_fds(0, state.iter(), &descriptors)?)
}

/// Takes a session out of the store.
pub fn forget(session: u64) {
    // A service manager that does not listen keeps nothing either.
    let _ =
        notify::notify([("FDSTOREREMOVE", "1".to_owned()), ("FDNAME", name_of(session))].iter());
}

fn name_of(session: u64) -> String {
    format!("{PREFIX}{session}")
}

/// The session that a descriptor of this name belongs to, if it is one of the store's.
#[must_use]
pub fn session_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// What came back from the store, session by session.
#[must_use]
pub fn sort(descriptors: Vec<(u64, OwnedFd)>) -> BTreeMap<u64, Kept> {
    let mut sessions = BTreeMap::<u64, Kept>::new();
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
        let sorted = sort(descriptors).into_iter().map(|(number, kept)| {
            (number, kept.socket.is_some(), String::from_utf8(kept.hello).unwrap())
        });
        let expected = [(7, true, "seven"), (8, false, "eight"), (9, true, "")];
        assert!(sorted.eq(expected.map(|(number, socket, hello)| (number, socket, hello.into()))));
    }

    #[test]
    fn only_the_names_of_sessions_are_the_stores() {
        assert_eq!(session_of(&name_of(u64::MAX)), Some(u64::MAX));
        for other in ["trainers", "session", "session.", "session.-1", "unknown"] {
            assert_eq!(session_of(other), None, "{other}");
        }
    }
}

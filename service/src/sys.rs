//! What the kernel offers and no safe library wraps, and nothing else.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use pfo_vocabulary::{Gid, Pid};
use tokio::io::unix::AsyncFd;

/// Groups requested at first; the kernel returns how many there are if these are too few.
const USUAL_GROUPS: usize = 64;

const GROUP_BYTES: usize = size_of::<u32>();

/// The supplementary groups of the process that connected a Unix socket.
///
/// # Errors
/// If the kernel does not return them.
pub(crate) fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<Gid>> {
    let mut groups = vec![0u32; USUAL_GROUPS];
    loop {
        let mut bytes = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: the buffer is valid for `bytes` bytes, and the kernel writes no more than that.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / GROUP_BYTES;
        if result == 0 {
            groups.truncate(count);
            return Ok(groups.into_iter().map(Gid).collect());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// A descriptor for a process.
///
/// # Errors
/// If the process is gone, or the kernel has no such descriptors.
pub fn pidfd_open(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(pid.0), 0) };
    match RawFd::try_from(fd) {
        // SAFETY: the kernel just made this descriptor for the caller alone.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes ownership of a descriptor that the service manager passed to this process.
pub(crate) fn take_passed(fd: RawFd) -> OwnedFd {
    // SAFETY: systemd passes each of these descriptors once, and the daemon asks for them once.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Registers a descriptor with the runtime.
///
/// # Errors
/// If the runtime cannot wait for it.
pub fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` stays open, and the same descriptor, for as long as the `AsyncFd` owns
    // it.
    unsafe { AsyncFd::register(fd) }.map_err(io::Error::from)
}

//! What the kernel offers and no safe library wraps, and nothing else.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use pfo_vocabulary::{Gid, Pid};
use tokio::io::unix::AsyncFd;

use crate::passed_files;

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

/// Reads from a Unix socket without waiting, with the descriptors that were passed along.
///
/// # Errors
/// If nothing can be read now, or ever again.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    const DESCRIPTORS: u32 = (passed_files::MOST * size_of::<RawFd>()) as u32;
    // SAFETY: the macro computes a number.
    const ROOM: usize = unsafe { libc::CMSG_SPACE(DESCRIPTORS) } as usize;
    // Words, because control messages are aligned to them.
    let mut control = [0u64; ROOM.div_ceil(size_of::<u64>())];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: a header without addresses is a valid one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), ROOM as _);
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: both buffers are valid for their lengths, and the kernel writes no more than that.
    let read = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    let mut descriptors = Vec::new();
    // SAFETY: the kernel has written whole control messages, and the length of all of them. Those of
    // this type hold descriptors that it just made for the caller alone.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(header) = next.as_ref() {
            if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = header.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let first = libc::CMSG_DATA(next).cast::<RawFd>();
                let take = |at| OwnedFd::from_raw_fd(first.add(at).read_unaligned());
                descriptors.extend((0..bytes.div_euclid(size_of::<RawFd>())).map(take));
            }
            next = libc::CMSG_NXTHDR(&raw const message, next);
        }
    }
    Ok((read, descriptors))
}

/// Makes the kernel refuse, at the sender, files that are passed to a Unix socket from now on.
/// Before Linux 6.16 it passes them all the same.
pub(crate) fn refuse_files(socket: BorrowedFd<'_>) {
    // From `asm-generic/socket.h`.
    const SO_PASSRIGHTS: libc::c_int = 83;
    let no: libc::c_int = 0;
    let bytes = size_of_val(&no) as libc::socklen_t;
    // SAFETY: the kernel reads as many bytes of the number as it has.
    unsafe {
        let (socket, no) = (socket.as_raw_fd(), (&raw const no).cast());
        libc::setsockopt(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, no, bytes);
    }
}

/// Installs a handler that does nothing. The signal then interrupts a thread that waits.
///
/// # Errors
/// If no process may handle the signal.
pub(crate) fn notice(signal: Signal) -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler = SigHandler::Handler(nothing);
    let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: whatever the handler interrupts, it does nothing.
    unsafe { sigaction(signal, &action) }?;
    Ok(())
}

/// Bytes that were sent over a Unix socket and that the peer has not read.
pub(crate) fn unread_bytes(socket: BorrowedFd<'_>) -> libc::c_int {
    let mut bytes = 0;
    // SAFETY: the kernel writes one number, which lives as long as the call. An error leaves 0.
    unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    bytes
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

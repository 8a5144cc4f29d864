//! Sockets that the launcher hands to a rank by number.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::socket::Socket;

/// Lets the next process that is started have the socket too.
pub(crate) fn let_inherit(socket: &UnixStream) -> io::Result<()> {
    fcntl(socket.as_fd(), FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(())
}

/// Takes a socket that this process was started with.
pub(crate) fn take(fd: RawFd) -> io::Result<Socket> {
    // SAFETY: the launcher made this descriptor for this process alone, and it is taken once,
    // before anything else in here opens or closes one.
    let socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    fcntl(socket.as_fd(), FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok(socket.into())
}

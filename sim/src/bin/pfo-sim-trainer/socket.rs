//! A connection to another rank: a pair of Unix sockets that the launcher made, or one over TCP.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A connection to another rank.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// Another handle on it.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Unix(socket) => socket.try_clone().map(Self::Unix),
            Self::Tcp(socket) => socket.try_clone().map(Self::Tcp),
        }
    }

    /// Ends it, whoever has a handle.
    pub(crate) fn shutdown(&self) -> io::Result<()> {
        match self {
            Self::Unix(socket) => socket.shutdown(Shutdown::Both),
            Self::Tcp(socket) => socket.shutdown(Shutdown::Both),
        }
    }

    /// Takes the other rank for gone when it is silent for so long; none waits for ever.
    pub(crate) fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(socket) => {
                socket.set_read_timeout(patience).and_then(|()| socket.set_write_timeout(patience))
            }
            Self::Tcp(socket) => {
                socket.set_read_timeout(patience).and_then(|()| socket.set_write_timeout(patience))
            }
        }
    }
}

impl From<UnixStream> for Socket {
    fn from(socket: UnixStream) -> Self {
        Self::Unix(socket)
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Unix(socket) => socket.as_raw_fd(),
            Self::Tcp(socket) => socket.as_raw_fd(),
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(socket) => (&mut &*socket).read(into),
            Socket::Tcp(socket) => (&mut &*socket).read(into),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(socket) => (&mut &*socket).write(from),
            Socket::Tcp(socket) => (&mut &*socket).write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

//! A connection to a daemon: one request, one response, and an end to waiting for it.

use std::fmt::Debug;
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use interprocess::local_socket::traits::Stream as _;
use interprocess::os::unix::uds_local_socket::Stream;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, sendmsg,
    setsockopt, socket, sockopt::SendTimeout,
};
use nix::sys::time::TimeVal;
use pfo_protocol::{DaemonMessage, FrameError, Unsupported};

use super::daemon::{Daemon, Which};
use super::error::ConnectionError;
use crate::user;

/// How long a daemon that is well takes at most, in seconds.
const ANSWER_S: u64 = 10;

/// The most of an unexpected response that a message repeats, in bytes.
const LONGEST_EXCERPT: usize = 200;

/// How long to wait for a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// As long as a daemon that is well may take.
    Limited,
    /// This many seconds.
    Seconds(u32),
    /// Until it comes: the request was for something that ends when it ends.
    Unlimited,
}

impl Patience {
    fn seconds(self) -> Option<u64> {
        match self {
            Self::Limited => Some(ANSWER_S),
            Self::Seconds(seconds) => Some(seconds.into()),
            Self::Unlimited => None,
        }
    }
}

/// An open connection to one of the daemons.
pub(crate) struct Connection<D> {
    stream: Stream,
    socket: PathBuf,
    daemon: PhantomData<D>,
}

impl<D: Daemon> Connection<D> {
    /// Opens the first of these sockets that this process may and can.
    pub(super) fn open(sockets: &[PathBuf]) -> Result<Self, ConnectionError> {
        let mut failure = ConnectionError::NoSocket { which: D::WHICH, socket: PathBuf::new() };
        for path in sockets {
            match connect_within(path, ANSWER_S) {
                Ok(stream) => {
                    return Ok(Self { stream, socket: path.clone(), daemon: PhantomData });
                }
                // The last one counts: it is open to more people than the one before.
                Err(error) => failure = why_not(D::WHICH, path, error),
            }
        }
        Err(failure)
    }

    /// Sends a request and returns its response; a refusal is an error.
    pub(crate) fn ask(&mut self, request: D::Request) -> Result<D::Response, ConnectionError> {
        self.send(request)?;
        self.receive(Patience::Limited)
    }

    /// Sends a request.
    pub(crate) fn send(&mut self, request: D::Request) -> Result<(), ConnectionError> {
        self.send_with(request, &[])
    }

    /// Sends a request with open files.
    pub(crate) fn send_with(
        &mut self,
        request: D::Request,
        files: &[File],
    ) -> Result<(), ConnectionError> {
        let sent = D::message(request).to_frame().and_then(|frame| {
            let sent = if files.is_empty() { 0 } else { pass(&self.stream, &frame, files)? };
            Ok(self.stream.write_all(&frame[sent..])?)
        });
        match sent {
            // A daemon that takes no more connections says so and hangs up before it is asked;
            // what it said is still there to be received.
            Err(FrameError::Io(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            sent => sent.map_err(|error| self.failed(error, ANSWER_S)),
        }
    }

    /// Waits for the response to what was sent; a refusal is an error.
    pub(crate) fn receive(&mut self, patience: Patience) -> Result<D::Response, ConnectionError> {
        let seconds = patience.seconds();
        let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let mut reader = UntilDeadline { stream: &self.stream, until };
        let received = DaemonMessage::read_from(&mut reader);
        match received.map_err(|error| self.failed(error, seconds.unwrap_or(ANSWER_S)))? {
            DaemonMessage::Refusal(refusal) => Err(ConnectionError::Refused(refusal)),
            DaemonMessage::Unsupported(Unsupported { oldest, newest }) => {
                let socket = self.socket.clone();
                Err(ConnectionError::Version { which: D::WHICH, socket, oldest, newest })
            }
            message => match D::response(message) {
                Some(response) => response.map_err(ConnectionError::Refused),
                None => Err(self.unexpected(&"a message of another kind")),
            },
        }
    }

    /// The stream, to watch for the response.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether there is something to receive, or nothing any more, within this time.
    pub(crate) fn is_answered(&self, within: Duration) -> bool {
        let timeout = PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX);
        let mut answer = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
        // An error shows again when the answer is read.
        poll(&mut answer, timeout) != Ok(0)
    }

    /// The error for the response to another request.
    pub(crate) fn unexpected(&self, response: &impl Debug) -> ConnectionError {
        let mut response = format!("{response:?}");
        response.truncate(response.floor_char_boundary(LONGEST_EXCERPT));
        ConnectionError::Unexpected { which: D::WHICH, socket: self.socket.clone(), response }
    }

    fn failed(&self, error: FrameError, seconds: u64) -> ConnectionError {
        let (which, socket) = (D::WHICH, self.socket.clone());
        match error {
            FrameError::Truncated => ConnectionError::Vanished { which, socket },
            FrameError::Io(source) => match source.kind() {
                ErrorKind::ConnectionReset => ConnectionError::Vanished { which, socket },
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    ConnectionError::NoAnswer { which, socket, seconds }
                }
                _ => ConnectionError::Frame { which, socket, source: FrameError::Io(source) },
            },
            source => ConnectionError::Frame { which, socket, source },
        }
    }
}

/// Connects with a limit on the time that this and every later write may take: a daemon that hangs
/// accepts no connection, and a connect to a full queue would otherwise wait forever. `interprocess`
/// takes a full queue for a connection (findings/interprocess-full-queue-is-a-connection.sh).
fn connect_within(path: &Path, seconds: u64) -> Result<Stream, std::io::Error> {
    let address = UnixAddr::new(path)?;
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, SendTimeout, &TimeVal::new(seconds.cast_signed(), 0))?;
    while let Err(error) = connect(fd.as_raw_fd(), &address) {
        // A limit on the time makes a connect that a signal interrupts fail.
        if error != Errno::EINTR {
            return Err(error.into());
        }
    }
    Ok(fd.into())
}

/// Sends the beginning of a frame with open files; returns its length.
fn pass(stream: &Stream, frame: &[u8], files: &[File]) -> Result<usize, std::io::Error> {
    let raw: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let passed = [ControlMessage::ScmRights(&raw)];
    let parts = [IoSlice::new(frame)];
    Ok(sendmsg::<()>(stream.as_fd().as_raw_fd(), &parts, &passed, MsgFlags::MSG_NOSIGNAL, None)?)
}

fn why_not(which: Which, path: &Path, source: std::io::Error) -> ConnectionError {
    let socket = path.to_owned();
    let is_other = path.metadata().is_ok_and(|file| !file.file_type().is_socket());
    match source.kind() {
        _ if is_other => ConnectionError::NotASocket { which, socket },
        ErrorKind::NotFound => ConnectionError::NoSocket { which, socket },
        ErrorKind::ConnectionRefused => ConnectionError::NobodyListens { which, socket },
        ErrorKind::PermissionDenied => {
            ConnectionError::Closed { which, socket, user: user::own_name() }
        }
        ErrorKind::WouldBlock => ConnectionError::NoAnswer { which, socket, seconds: ANSWER_S },
        _ => ConnectionError::Connect { which, socket, source },
    }
}

/// A stream whose reads together end at a point in time, however the answer trickles in.
struct UntilDeadline<'a> {
    stream: &'a Stream,
    until: Option<Instant>,
}

impl Read for UntilDeadline<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if let Some(until) = self.until {
            let left = until.saturating_duration_since(Instant::now());
            // A timeout of zero would mean none.
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_recv_timeout(Some(left))?;
        } else {
            self.stream.set_recv_timeout(None)?;
        }
        let mut stream = self.stream;
        stream.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use pfo_protocol::{Refusal, RefusalCode, Request};

    use super::super::daemon::Pfod;
    use super::*;

    #[test]
    fn an_answer_that_trickles_in_forever_ends_at_the_deadline() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let ours = ours.into();
        let feeder = std::thread::spawn(move || {
            while theirs.write_all(&[0]).is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let until = Instant::now() + Duration::from_millis(100);
        let mut reader = UntilDeadline { stream: &ours, until: Some(until) };
        let error = reader.read_exact(&mut [0; 1 << 20]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{error}");
        drop(ours);
        feeder.join().unwrap();
    }

    #[test]
    fn a_refusal_that_came_before_the_request_is_received() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let refusal = Refusal::new(RefusalCode::LimitReached, "1024 connections are open", "");
        theirs.write_all(&DaemonMessage::Refusal(refusal.clone()).to_frame().unwrap()).unwrap();
        drop(theirs);
        let mut connection =
            Connection::<Pfod> { stream: ours.into(), socket: "s".into(), daemon: PhantomData };
        match connection.ask(Request::Status) {
            Err(ConnectionError::Refused(received)) => assert_eq!(received, refusal),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_full_queue_of_connections_does_not_hold_us_forever() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let fd =
            socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        nix::sys::socket::bind(fd.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        nix::sys::socket::listen(&fd, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
        let mut held = Vec::new();
        let error = loop {
            match connect_within(&path, 1) {
                Ok(stream) => held.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
}

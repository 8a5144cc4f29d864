//! A connection to the daemon: one request, one answer, and an end to waiting for it.

use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt::SendTimeout,
};
use nix::sys::time::TimeVal;
use pfo_protocol::{ClientMessage, DaemonMessage, FrameError, Request, Response, Unsupported};

use crate::error::Error;
use crate::socket::Sockets;
use crate::user;

/// How long a daemon that is well takes at most, in seconds.
const ANSWER_S: u64 = 10;

/// How long to wait for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// As long as a daemon that is well may take.
    Limited,
    /// Until it comes: the answer is to "tell me when".
    Unlimited,
}

/// An open connection.
pub(crate) struct Connection {
    stream: UnixStream,
    socket: PathBuf,
}

impl Connection {
    /// Opens the first socket that this process may and can.
    pub(crate) fn open(sockets: &Sockets) -> Result<Self, Error> {
        let mut failure = Error::NoSocket(PathBuf::new());
        for path in sockets.paths() {
            match connect_within(path, ANSWER_S) {
                Ok(stream) => {
                    return Ok(Self { stream, socket: path.clone() });
                }
                // The last one counts: it is open to more people than the one before.
                Err(error) => failure = why_not(path, error),
            }
        }
        Err(failure)
    }

    /// Sends a request and returns its answer; a refusal is an error.
    pub(crate) fn ask(&mut self, request: Request) -> Result<Response, Error> {
        self.send(request)?;
        self.receive(Patience::Limited)
    }

    /// Sends a request.
    pub(crate) fn send(&mut self, request: Request) -> Result<(), Error> {
        match ClientMessage::Request(request).write_to(&mut self.stream) {
            // A daemon that takes no more connections says so and hangs up before it is asked;
            // what it said is still there to be received.
            Err(FrameError::Io(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            sent => sent.map_err(|error| self.failed(error)),
        }
    }

    /// Waits for the answer to what was sent; a refusal is an error.
    pub(crate) fn receive(&mut self, patience: Patience) -> Result<Response, Error> {
        let until = match patience {
            Patience::Limited => Some(Instant::now() + Duration::from_secs(ANSWER_S)),
            Patience::Unlimited => None,
        };
        let mut reader = UntilDeadline { stream: &self.stream, until };
        match DaemonMessage::read_from(&mut reader).map_err(|error| self.failed(error))? {
            DaemonMessage::Response(Response::Refused(refusal))
            | DaemonMessage::Refusal(refusal) => Err(Error::Refused(refusal)),
            DaemonMessage::Response(response) => Ok(response),
            DaemonMessage::Unsupported(Unsupported { oldest, newest }) => {
                Err(Error::Version { socket: self.socket.clone(), oldest, newest })
            }
            DaemonMessage::Closing(closing) => Err(self.other_answer(&closing.message)),
            DaemonMessage::Welcome(_) => Err(self.other_answer("a session")),
        }
    }

    /// The stream, to watch for the answer.
    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// The error for an answer to another question.
    pub(crate) fn other_answer(&self, answer: &str) -> Error {
        Error::OtherAnswer { socket: self.socket.clone(), answer: answer.to_owned() }
    }

    fn failed(&self, error: FrameError) -> Error {
        let socket = self.socket.clone();
        match error {
            FrameError::Truncated => Error::Vanished { socket },
            FrameError::Io(source) => match source.kind() {
                ErrorKind::ConnectionReset => Error::Vanished { socket },
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    Error::NoAnswer { socket, seconds: ANSWER_S }
                }
                _ => Error::Frame { socket, source: FrameError::Io(source) },
            },
            source => Error::Frame { socket, source },
        }
    }
}

/// Connects with a limit on the time that this and every later write may take: a daemon that hangs
/// accepts nobody, and a connect to a full queue would otherwise wait forever.
fn connect_within(path: &Path, seconds: u64) -> Result<UnixStream, std::io::Error> {
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

fn why_not(path: &Path, source: std::io::Error) -> Error {
    let socket = path.to_owned();
    match source.kind() {
        ErrorKind::NotFound => Error::NoSocket(socket),
        ErrorKind::ConnectionRefused => Error::NobodyListens(socket),
        ErrorKind::PermissionDenied => Error::SocketClosedToUser { socket, user: user::own_name() },
        ErrorKind::WouldBlock => Error::NoAnswer { socket, seconds: ANSWER_S },
        _ => Error::Connect { socket, source },
    }
}

/// A stream whose reads together end at a point in time, however the answer trickles in.
struct UntilDeadline<'a> {
    stream: &'a UnixStream,
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
            self.stream.set_read_timeout(Some(left))?;
        } else {
            self.stream.set_read_timeout(None)?;
        }
        let mut stream = self.stream;
        stream.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use pfo_protocol::{Refusal, RefusalCode};

    use super::*;

    #[test]
    fn an_answer_that_trickles_in_forever_ends_at_the_deadline() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
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
        let mut connection = Connection { stream: ours, socket: "s".into() };
        match connection.ask(Request::Status) {
            Err(Error::Refused(received)) => assert_eq!(received, refusal),
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

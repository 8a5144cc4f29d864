//! One connection to the daemon. Nothing here ever blocks but [`Link::answer`], which waits until
//! its deadline and runs on the background thread only.

use std::io::{IoSlice, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use interprocess::local_socket::traits::Stream as _;
use interprocess::os::unix::uds_local_socket::Stream;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send,
    sendmsg, setsockopt, socket, sockopt,
};
use pfo_protocol::{
    ClientMessage, DaemonMessage, EVENT_FRAME_BYTES, Event, Frame, FrameError, HEADER_BYTES, Kind,
};

use crate::devices::Device;
use crate::fork::ClosedInChildren;
use crate::problem::Problem;

const NEVER_WAIT: MsgFlags = MsgFlags::MSG_DONTWAIT.union(MsgFlags::MSG_NOSIGNAL);

/// Bytes of the kernel's memory, of which an event takes hundreds.
const ROOM_FOR_EVENTS: usize = 4 * 1024 * 1024;

/// More than any frame about a session.
pub(crate) const SESSION_ANSWER: usize = HEADER_BYTES + 4096;

/// The largest list of GPUs, frame and all.
pub(crate) const LIST_ANSWER: usize = HEADER_BYTES + Kind::GpuList.max_payload();

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The kernel has it as a whole.
    Sent,
    /// The socket is full: it is gone, the connection is not.
    Dropped,
    /// The other end is closed.
    Broken,
}

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Link {
    // Before the stream: fields are dropped in this order.
    _closed_in_children: ClosedInChildren,
    stream: Stream,
}

impl Link {
    /// Connects at once or not at all.
    pub(crate) fn connect(path: &Path) -> Result<Self, Errno> {
        let address = UnixAddr::new(path)?;
        // Non-blocking because `connect` itself waits where the daemon's queue is full.
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        let closed_in_children = ClosedInChildren::register(fd.as_raw_fd());
        // What the kernel allows, if that is less: what does not fit while the daemon restarts is
        // lost.
        let _ = setsockopt(&fd, sockopt::SndBuf, &ROOM_FOR_EVENTS);
        connect(fd.as_raw_fd(), &address)?;
        let stream = Stream::from(fd);
        // Only `answer` waits. Every other call says by itself that it does not.
        stream.set_nonblocking(false).map_err(|_| Errno::last())?;
        Ok(Self { _closed_in_children: closed_in_children, stream })
    }

    /// Hands an event to the kernel. This is the training loop's way: it neither waits nor
    /// allocates.
    pub(crate) fn send_event(&self, event: &Event) -> Delivery {
        let mut frame = [0; EVENT_FRAME_BYTES];
        let Ok(length) = event.write_frame(&mut frame) else {
            return Delivery::Dropped;
        };
        match send(self.fd(), &frame[..length], NEVER_WAIT) {
            Ok(sent) if sent == length => Delivery::Sent,
            Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM | Errno::EINTR) => Delivery::Dropped,
            // Linux queues so small a message as a whole. Should it ever not, the other end would
            // lose track of where frames begin.
            Ok(_) | Err(_) => Delivery::Broken,
        }
    }

    /// Sends a message with open files. Where the kernel refuses to pass them, without.
    pub(crate) fn say_with(
        &self,
        message: &ClientMessage,
        devices: &[Device],
    ) -> Result<(), Problem> {
        let frame = message.to_frame().map_err(|error| Problem::internal(&error.to_string()))?;
        let raw: Vec<_> = devices.iter().map(|device| device.as_fd().as_raw_fd()).collect();
        let (parts, passed) = ([IoSlice::new(&frame)], [ControlMessage::ScmRights(&raw)]);
        let passed = if raw.is_empty() { &[][..] } else { &passed[..] };
        match sendmsg::<()>(self.fd(), &parts, passed, NEVER_WAIT, None) {
            Ok(sent) if sent == frame.len() => Ok(()),
            Ok(_) => Err(Problem::lost("the socket is full")),
            Err(_) => self.say(message),
        }
    }

    /// Sends a message that a fresh socket always has room for.
    pub(crate) fn say(&self, message: &ClientMessage) -> Result<(), Problem> {
        let frame = message.to_frame().map_err(|error| Problem::internal(&error.to_string()))?;
        match send(self.fd(), &frame, NEVER_WAIT) {
            Ok(sent) if sent == frame.len() => Ok(()),
            Ok(_) => Err(Problem::lost("the socket is full")),
            Err(errno) => Err(Problem::lost(errno.desc())),
        }
    }

    /// Sends a message of any size, as fast as the other side takes it.
    pub(crate) fn say_all(
        &self,
        message: &ClientMessage,
        deadline: Instant,
    ) -> Result<(), Problem> {
        let frame = message.to_frame().map_err(|error| Problem::internal(&error.to_string()))?;
        let mut rest = &frame[..];
        while !rest.is_empty() {
            match send(self.fd(), rest, NEVER_WAIT) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(Errno::EAGAIN) if !self.ready_until(PollFlags::POLLOUT, deadline)? => {
                    return Err(Problem::lost("the other side does not read"));
                }
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(errno) => return Err(Problem::lost(errno.desc())),
            }
        }
        Ok(())
    }

    /// Waits for the next message, of at most `limit` bytes; `None` at the deadline.
    pub(crate) fn answer(
        &self,
        limit: usize,
        deadline: Instant,
    ) -> Result<Option<DaemonMessage>, Problem> {
        let mut reader = UntilDeadline { stream: &self.stream, deadline }.take(limit as u64);
        match DaemonMessage::read_from(&mut reader) {
            Ok(message) => Ok(Some(message)),
            Err(FrameError::Truncated) if reader.limit() == 0 => {
                Err(Problem::garbled("it is longer than any answer to this"))
            }
            Err(FrameError::Truncated) => {
                Err(Problem::lost("the daemon closed it without an answer"))
            }
            Err(FrameError::Io(error)) => match Errno::try_from(error) {
                Ok(Errno::EAGAIN) => Ok(None),
                Ok(errno) => Err(Problem::lost(errno.desc())),
                Err(error) => Err(Problem::lost(&error.to_string())),
            },
            Err(error) => Err(Problem::frame(&error)),
        }
    }

    fn readable_until(&self, deadline: Instant) -> Result<bool, Problem> {
        self.ready_until(PollFlags::POLLIN, deadline)
    }

    fn ready_until(&self, awaited: PollFlags, deadline: Instant) -> Result<bool, Problem> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up, so that the last millisecond is not a busy loop.
            let milliseconds = left.as_millis().saturating_add(1);
            let timeout = PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX);
            let mut sockets = [PollFd::new(self.stream.as_fd(), awaited)];
            match poll(&mut sockets, timeout) {
                Ok(0) if Instant::now() >= deadline => return Ok(false),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(true),
                Err(errno) => return Err(Problem::lost(errno.desc())),
            }
        }
    }

    /// Why the daemon ended the session, for a caller that may wait: the daemon stops reading before it says
    /// why.
    pub(crate) fn late_farewell(&self, patience: Duration) -> Option<Problem> {
        let _ = self.readable_until(Instant::now() + patience);
        self.farewell()
    }

    /// Why the daemon ended the session, if it has.
    pub(crate) fn farewell(&self) -> Option<Problem> {
        let mut bytes = Vec::new();
        while bytes.len() < SESSION_ANSWER {
            let mut chunk = [0; 4096];
            match recv(self.fd(), &mut chunk, MsgFlags::MSG_DONTWAIT) {
                Ok(0) if bytes.is_empty() => return Some(Problem::lost("the daemon closed it")),
                Ok(0) => break,
                Ok(length) => bytes.extend_from_slice(&chunk[..length]),
                Err(Errno::EAGAIN) if bytes.is_empty() => return None,
                Err(Errno::EINTR) => {}
                Err(errno) if bytes.is_empty() => return Some(Problem::lost(errno.desc())),
                Err(_) => break,
            }
        }
        // A daemon sends its reason before it ends the session.
        Some(match first_message(&bytes) {
            Ok(Some(DaemonMessage::Closing(closing))) => Problem::closed(closing),
            Ok(Some(DaemonMessage::Refusal(refusal))) => Problem::refused(refusal),
            Ok(Some(DaemonMessage::Unsupported(spoken))) => Problem::unsupported(spoken),
            Ok(Some(_)) => Problem::garbled("it does not belong into a session"),
            Ok(None) => Problem::lost("it ended inside a message"),
            Err(problem) => problem,
        })
    }

    /// Ends the session in order, without waiting for anything.
    pub(crate) fn goodbye(&self) {
        // If the socket is full, the daemon sees the end of the connection all the same.
        let _ = self.say(&ClientMessage::Goodbye);
    }

    fn fd(&self) -> RawFd {
        self.stream.as_fd().as_raw_fd()
    }

    /// How much of the kernel's memory holds what the daemon has not read; 0 if the kernel does not say.
    #[allow(unsafe_code)]
    pub(crate) fn unread(&self) -> usize {
        let mut unread: libc::c_int = 0;
        // SAFETY: the socket is open, and `TIOCOUTQ` writes one `int`.
        let asked = unsafe { libc::ioctl(self.fd(), libc::TIOCOUTQ, &raw mut unread) };
        if asked == 0 { usize::try_from(unread).unwrap_or(0) } else { 0 }
    }

    /// Makes a thread that waits for an answer stop waiting.
    pub(crate) fn interrupt(&self) {
        let _ = self.stream.inner().shutdown(Shutdown::Both);
    }
}

/// A stream whose reads together end at a point in time, however the answer trickles in.
struct UntilDeadline<'a> {
    stream: &'a Stream,
    deadline: Instant,
}

impl Read for UntilDeadline<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        // A limit of zero would mean none.
        if left.is_zero() {
            return Err(Errno::EAGAIN.into());
        }
        self.stream.set_recv_timeout(Some(left))?;
        (&mut &*self.stream).read(buffer)
    }
}

fn first_message(bytes: &[u8]) -> Result<Option<DaemonMessage>, Problem> {
    let read = |bytes| -> Result<Option<DaemonMessage>, FrameError> {
        match Frame::first_of(bytes)? {
            Some(frame) => DaemonMessage::from_payload(frame.kind, frame.payload).map(Some),
            None => Ok(None),
        }
    };
    read(bytes).map_err(|error| Problem::frame(&error))
}

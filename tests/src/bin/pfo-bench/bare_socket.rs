//! The floor under every daemon: a process that blocks in a read of a Unix socket, and does nothing
//! with what it reads but look at the clock. Then it is as busy as if it called the driver, because
//! what arrives during a call waits for every receiver.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::socket::{MsgFlags, send};
use nix::unistd;
use pfo_protocol::Pid;

use crate::Result;
use crate::proc_status::Process;
use crate::samples::now_ns;

/// What a message is for.
#[derive(Clone, Copy)]
pub(crate) enum Message {
    /// To be read, as the begin of an instruction, which asks for no other clock.
    Passing,
    /// To be timed, as the end of one.
    Timed,
    /// To report what was timed, and to be busy for `busy_ns` after each later timed message.
    Report { busy_ns: u64 },
}

/// The argument that makes this program the receiving process.
pub(crate) const RECEIVER: &str = "--receive-on-standard-input";

/// As long as the longest event frame: when it was sent, if that matters, and how long to be busy
/// from a report on.
const MESSAGE_BYTES: usize = 48;

const NO_STAMP: u64 = 0;
const NO_REPORT: u64 = u64::MAX;

/// As the shim sends.
pub(crate) const NEVER_WAIT: MsgFlags = MsgFlags::MSG_DONTWAIT.union(MsgFlags::MSG_NOSIGNAL);

/// The sending end, and the process at the other.
pub(crate) struct BareSocket {
    stream: UnixStream,
    reports: ChildStdout,
    receiver: Child,
}

impl BareSocket {
    pub(crate) fn connect() -> Result<Self> {
        let (stream, theirs) = UnixStream::pair()?;
        let mut receiver = Command::new(std::env::current_exe()?)
            .arg(RECEIVER)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .spawn()?;
        let reports = receiver.stdout.take().ok_or("the receiver has no standard output")?;
        Ok(Self { stream, reports, receiver })
    }

    /// The receiving process.
    pub(crate) fn process(&self) -> Process {
        Process(Pid(self.receiver.id()))
    }

    /// The threads of the receiving process.
    pub(crate) fn receivers(&self) -> Result<Vec<unistd::Pid>> {
        self.process().threads()
    }

    /// Sends a message, stamped with the time just before the call.
    pub(crate) fn send(&self, what: Message) -> Result<()> {
        let (stamp, busy_ns) = match what {
            Message::Passing => (NO_STAMP, NO_REPORT),
            Message::Timed => (now_ns(), NO_REPORT),
            Message::Report { busy_ns } => (NO_STAMP, busy_ns),
        };
        let mut message = [0; MESSAGE_BYTES];
        message[..8].copy_from_slice(&stamp.to_le_bytes());
        message[8..16].copy_from_slice(&busy_ns.to_le_bytes());
        match send(self.stream.as_raw_fd(), &message, NEVER_WAIT)? {
            MESSAGE_BYTES => Ok(()),
            sent => Err(format!("the socket took {sent} of {MESSAGE_BYTES} bytes").into()),
        }
    }

    /// The age of the newest timed message at the end of each read since the last report, in ns.
    pub(crate) fn report(&mut self, busy_ns: u64) -> Result<Vec<u64>> {
        self.send(Message::Report { busy_ns })?;
        let mut number = [0; 8];
        self.reports.read_exact(&mut number)?;
        let mut bytes = vec![0; 8 * u64::from_le_bytes(number) as usize];
        self.reports.read_exact(&mut bytes)?;
        let (numbers, _) = bytes.as_chunks();
        Ok(numbers.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect())
    }
}

impl Drop for BareSocket {
    fn drop(&mut self) {
        // The end of the connection is the end of the receiver.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        let _ = self.receiver.wait();
    }
}

/// The receiving process.
pub(crate) fn receive() -> Result<()> {
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut ages = Vec::with_capacity(1 << 16);
    let mut buffer = [0; MESSAGE_BYTES * 256];
    let mut busy_ns = 0;
    loop {
        let read = match socket.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        let now = now_ns();
        let (messages, _) = buffer[..read].as_chunks::<MESSAGE_BYTES>();
        let words = |message: &[u8; MESSAGE_BYTES]| {
            let (words, _) = message.as_chunks();
            (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]))
        };
        let mut stamps = messages.iter().map(|message| words(message).0);
        if let Some(newest) = stamps.rfind(|&stamp| stamp != NO_STAMP) {
            ages.push(now.saturating_sub(newest));
            while now_ns() < now + busy_ns {}
        }
        let mut reports = messages.iter().map(|message| words(message).1);
        if let Some(asked) = reports.rfind(|&busy_ns| busy_ns != NO_REPORT) {
            busy_ns = asked;
            let mut report = (ages.len() as u64).to_le_bytes().to_vec();
            report.extend(ages.drain(..).flat_map(u64::to_le_bytes));
            let mut reports = std::io::stdout().lock();
            reports.write_all(&report)?;
            reports.flush()?;
        }
    }
}

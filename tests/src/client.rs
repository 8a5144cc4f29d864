//! A client that sends any bytes that a test asks for.

use std::fs::{self, File};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use pfo_protocol::{
    ClientMessage, DaemonMessage, DpRank, Event, FrameError, GpuName, Hello, Mark, Rank,
    RankPosition, Refusal, Stage, TpRank, Welcome,
};

use crate::{machine, wait};

/// A raw connection to pfod or the agent.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    devices: PathBuf,
    sequence: u64,
}

/// A hello of one rank of a pipeline.
#[must_use]
pub fn hello(job: &str, rank: u32, stages: u32, gpu: GpuName) -> Hello {
    Hello {
        client: "pfo-tests".into(),
        job: job.parse().unwrap(),
        position: RankPosition {
            rank: Rank(rank),
            pp_rank: Stage(rank as u16),
            dp_rank: DpRank(0),
            tp_rank: TpRank(0),
            pp_degree: stages,
            dp_degree: 1,
            tp_degree: 1,
        },
        gpu,
        num_microbatches: None,
        next_step: 0,
    }
}

/// The device files of the simulated machine beside a socket.
#[must_use]
pub fn devices_beside(socket: &Path) -> PathBuf {
    nvidia_ml::machine::devices(&socket.with_file_name(machine::STATE))
}

/// Opens every device file of a directory that can be opened.
#[must_use]
pub fn devices_in(directory: &Path) -> Vec<File> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let open = |path: PathBuf| File::options().read(true).write(true).open(path).ok();
    entries.filter_map(|entry| open(entry.unwrap().path())).collect()
}

/// Sends bytes with open files.
///
/// # Errors
/// If the kernel refuses to pass them.
pub fn send_with(stream: &UnixStream, bytes: &[u8], files: &[impl AsFd]) -> io::Result<()> {
    let raw: Vec<_> = files.iter().map(|file| file.as_fd().as_raw_fd()).collect();
    let (parts, passed) = ([IoSlice::new(bytes)], [ControlMessage::ScmRights(&raw)]);
    let passed = if raw.is_empty() { &[][..] } else { &passed[..] };
    let sent = sendmsg::<()>(stream.as_raw_fd(), &parts, passed, MsgFlags::MSG_NOSIGNAL, None)?;
    (&*stream).write_all(&bytes[sent..])
}

impl Client {
    /// Connects.
    #[must_use]
    pub fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(wait::LONG)).unwrap();
        stream.set_write_timeout(Some(wait::LONG)).unwrap();
        Self { stream, devices: devices_beside(socket), sequence: 0 }
    }

    /// Passes the device files of this directory with a hello, in place of those of the node.
    pub fn pass_devices_of(&mut self, directory: &Path) {
        directory.clone_into(&mut self.devices);
    }

    /// Sends bytes with open files.
    ///
    /// # Errors
    /// If the kernel refuses to pass them.
    pub fn send_with(&mut self, bytes: &[u8], files: &[impl AsFd]) -> io::Result<()> {
        send_with(&self.stream, bytes, files)
    }

    /// Sends bytes. That the daemon may have hung up already is no failure here.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Sends a message; a hello with every device file that can be opened.
    pub fn say(&mut self, message: &ClientMessage) {
        let devices = match message {
            ClientMessage::Hello(_) => devices_in(&self.devices),
            _ => Vec::new(),
        };
        // That the daemon may have hung up already is no failure here.
        let _ = self.send_with(&message.to_frame().unwrap(), &devices);
    }

    /// Sends the next event.
    pub fn tell(&mut self, mark: Mark) {
        self.tell_at(0, mark);
    }

    /// Sends the next event, as if it had happened at a time.
    pub fn tell_at(&mut self, client_ns: u64, mark: Mark) {
        let event = Event { sequence: self.sequence, client_ns, mark };
        self.sequence += 1;
        self.say(&ClientMessage::Event(event));
    }

    /// Leaves out the numbers of some events, as if these had been lost.
    pub fn lose(&mut self, events: u64) {
        self.sequence += events;
    }

    /// Counts events from 0 again, as no client may within a session.
    pub fn count_anew(&mut self) {
        self.sequence = 0;
    }

    /// The next message from the other side.
    ///
    /// # Errors
    /// If the connection ends instead.
    pub fn answer(&mut self) -> Result<DaemonMessage, FrameError> {
        DaemonMessage::read_from(&mut self.stream)
    }

    /// Opens a session, as a process that can open every device file there.
    ///
    /// # Errors
    /// The refusal.
    pub fn open(&mut self, hello: Hello) -> Result<Welcome, Refusal> {
        self.say(&ClientMessage::Hello(hello));
        self.until_welcome()
    }

    /// The answer to a hello.
    ///
    /// # Errors
    /// The refusal.
    pub fn until_welcome(&mut self) -> Result<Welcome, Refusal> {
        match self.answer() {
            Ok(DaemonMessage::Welcome(welcome)) => Ok(welcome),
            Ok(DaemonMessage::Refusal(refusal)) => Err(refusal),
            other => panic!("the answer to a hello is {other:?}"),
        }
    }

    /// Waits for the daemon to hang up, without another word.
    pub fn assert_ended(&mut self) {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => assert!(rest.is_empty(), "the daemon had more to say: {rest:?}"),
            // It hung up with bytes of ours unread.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}"),
        }
    }

    /// Waits until the daemon has read everything that was sent.
    pub fn until_read(&self) {
        wait::until_is("bytes that the daemon has not read", &0, || {
            let mut unread: libc::c_int = 0;
            // SAFETY: the kernel writes one int, which outlives the call.
            let asked =
                unsafe { libc::ioctl(self.stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) };
            assert_eq!(asked, 0);
            unread
        });
    }

    /// Lets no read take longer than this.
    pub fn be_patient_for(&mut self, patience: Duration) {
        self.stream.set_read_timeout(Some(patience)).unwrap();
    }

    /// Lets no write take longer than this.
    pub fn be_patient_for_writing(&mut self, patience: Duration) {
        self.stream.set_write_timeout(Some(patience)).unwrap();
    }

    /// Hangs up one direction: nothing more will be sent.
    pub fn finish_sending(&mut self) {
        self.stream.shutdown(std::net::Shutdown::Write).unwrap();
    }
}

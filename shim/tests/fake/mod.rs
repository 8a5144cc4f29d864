//! A daemon as a test wants it: it says what it is told to and nothing else.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pfo::{Instruction, ProblemCode, Rank, RankDescription, Session, Stage};
use pfo_protocol::{
    ClientMessage, Closing, ClosingReason, DaemonMessage, Event, HEADER_BYTES, Header, Hello, Mark,
    Refusal, RefusalCode, SessionId, Welcome,
};
use tempfile::TempDir;

/// Far beyond what anything takes here, so that only a hang is one.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What is wrong with a session, for programs.
pub(crate) fn code(session: &Session) -> Option<ProblemCode> {
    session.problem().map(|problem| problem.code)
}

/// A whole step of one instruction.
pub(crate) fn one_step(session: &Session) {
    session.step_begin();
    session.instruction_begin(Instruction::Forward, None);
    session.instruction_end();
    session.step_end();
}

/// A directory for the socket of a daemon that comes and goes.
pub(crate) struct Place {
    directory: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { directory: TempDir::new().unwrap() }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("pfod.sock")
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn daemon(&self) -> Daemon {
        let _ = std::fs::remove_file(self.socket());
        let listener = UnixListener::bind(self.socket()).unwrap();
        listener.set_nonblocking(true).unwrap();
        Daemon { listener }
    }

    pub(crate) fn description(&self) -> RankDescription {
        RankDescription {
            job: Some("job".into()),
            gpu: Some("GPU-1234".parse().unwrap()),
            socket: Some(self.socket()),
            rank: Rank(3),
            pp_rank: Stage(3),
            pp_degree: 4,
            num_microbatches: Some(8),
            ..RankDescription::default()
        }
    }

    /// A session that has its lease, and the daemon's end of it.
    pub(crate) fn session(&self, daemon: &Daemon) -> (Session, Peer) {
        daemon.open(self.description())
    }
}

pub(crate) struct Daemon {
    listener: UnixListener,
}

impl Daemon {
    pub(crate) fn accept(&self) -> Peer {
        eventually(|| self.try_accept())
    }

    pub(crate) fn try_accept(&self) -> Option<Peer> {
        let (stream, _) = self.listener.accept().ok()?;
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Some(Peer { stream, hello: None })
    }

    /// Accepts a session.
    pub(crate) fn welcome(&self) -> Peer {
        self.welcome_as("fake")
    }

    /// Accepts a session as a daemon with this name and version.
    pub(crate) fn welcome_as(&self, daemon: &str) -> Peer {
        let mut peer = self.accept();
        peer.read_hello();
        peer.say_bytes(&welcome_frame_of(daemon));
        peer
    }

    /// Opens a session and accepts it.
    pub(crate) fn open(&self, description: RankDescription) -> (Session, Peer) {
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| Session::open(description).unwrap());
            let peer = self.welcome();
            let session = opened.join().unwrap();
            assert_eq!(session.problem(), None);
            (session, peer)
        })
    }
}

pub(crate) fn welcome_frame() -> Vec<u8> {
    welcome_frame_of("fake")
}

fn welcome_frame_of(daemon: &str) -> Vec<u8> {
    let welcome = Welcome {
        daemon: daemon.into(),
        session: SessionId(1),
        gpu_uuid: "GPU-1234".parse().unwrap(),
        gpu_model: "model".into(),
        idle_limit_ms: 1000,
    };
    DaemonMessage::Welcome(welcome).to_frame().unwrap()
}

/// The daemon's end of a connection.
pub(crate) struct Peer {
    stream: UnixStream,
    hello: Option<Hello>,
}

impl Peer {
    /// The next message; none at the end of the connection.
    pub(crate) fn next(&mut self) -> Option<ClientMessage> {
        let mut header = [0; HEADER_BYTES];
        self.stream.read_exact(&mut header).ok()?;
        let header = Header::parse(header).unwrap();
        let mut payload = vec![0; header.length];
        self.stream.read_exact(&mut payload).unwrap();
        Some(ClientMessage::from_payload(header.kind, &payload).unwrap())
    }

    pub(crate) fn read_hello(&mut self) {
        match self.next() {
            Some(ClientMessage::Hello(hello)) => self.hello = Some(hello),
            other => panic!("no hello but {other:?}"),
        }
    }

    pub(crate) fn hello(&self) -> &Hello {
        self.hello.as_ref().unwrap()
    }

    pub(crate) fn read_list_gpus(&mut self) {
        match self.next() {
            Some(ClientMessage::ListGpus) => (),
            other => panic!("no question for the GPUs but {other:?}"),
        }
    }

    pub(crate) fn event(&mut self) -> Event {
        match self.next() {
            Some(ClientMessage::Event(event)) => event,
            other => panic!("no event but {other:?}"),
        }
    }

    pub(crate) fn marks(&mut self, count: usize) -> Vec<Mark> {
        (0..count).map(|_| self.event().mark).collect()
    }

    /// Everything up to the end of the connection.
    pub(crate) fn rest(&mut self) -> Vec<ClientMessage> {
        std::iter::from_fn(|| self.next()).collect()
    }

    pub(crate) fn say(&mut self, message: &DaemonMessage) {
        self.say_bytes(&message.to_frame().unwrap());
    }

    pub(crate) fn say_bytes(&mut self, bytes: &[u8]) {
        self.try_say_bytes(bytes).unwrap();
    }

    pub(crate) fn try_say_bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub(crate) fn refuse(mut self, code: RefusalCode, message: &str, remedy: &str) {
        self.read_hello();
        self.say(&DaemonMessage::Refusal(Refusal::new(code, message, remedy)));
    }

    pub(crate) fn close(mut self, reason: ClosingReason, message: &str) {
        self.say(&DaemonMessage::Closing(Closing { reason, message: message.into() }));
    }
}

/// Tries until it works; a test that waits in vain fails.
pub(crate) fn eventually<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(Instant::now() < deadline, "it never happened");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until something is the case.
pub(crate) fn until(mut condition: impl FnMut() -> bool) {
    eventually(|| condition().then_some(()));
}

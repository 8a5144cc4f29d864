//! The daemon as a whole: everything behind its sockets, on the thread of the caller.
//!
//! Time passes only when the caller lets it pass. What the kernel says of a peer, the caller says;
//! what systemd keeps across a restart, this keeps. The driver is the one of the configuration.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::yield_now;
use std::time::Duration;

use clap::Parser;
use pfo_keeper::{Entry, Ledger, LedgerError};
use pfo_protocol::{
    ClosingReason, DaemonMessage, Frame, Hello, Mhz, Pid, Refusal, Request, Response, SessionId,
    Status, Uid,
};
use pfo_service::{Door, Peer, User};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::sleep;

use crate::cli::{Arguments, ConfigSource};
use crate::gpu::{LateDriver, Owed};
use crate::job::{Holds, Job};
use crate::node::Node;
use crate::rank::{End, Rank};
use crate::requests::{Answer, answer, stream};
use crate::session::{Opening, Origin, open};
use pfo_policy::{Action, Caller, Claim};

/// Longer than a request takes that waits for nothing.
const MOMENT: Duration = Duration::from_millis(25);

/// How long the driver may take to restore what is owed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A user, through the trainers' socket.
    User(Uid),
    /// Root, through the socket for administration.
    Administrator,
    /// The agent, through its socket.
    Agent,
    /// The agent, in the name of a user.
    AgentFor(Uid),
}

impl Who {
    fn caller(self) -> Caller {
        let peer = |uid| Peer {
            uid,
            person: uid,
            pid: Pid(std::process::id()),
            groups: Vec::new(),
            cgroups: Vec::new(),
        };
        match self {
            Self::User(uid) => Caller::new(peer(uid), Door::Users),
            Self::Administrator => Caller::new(peer(Uid::ROOT), Door::Admin),
            Self::Agent => Caller::new(peer(Uid(998)), Door::Agent),
            Self::AgentFor(uid) => Self::Agent.caller().on_behalf(
                User { uid, person: uid },
                None,
                Vec::new(),
                Claim::User,
            ),
        }
    }
}

/// How a daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// By SIGKILL or a panic.
    Killed,
    /// By SIGTERM.
    Stopped,
}

/// A connection that requests are made over.
struct Line {
    who: Who,
    caller: Caller,
    holds: Holds,
    /// The request that is not answered yet.
    under_way: Option<JoinHandle<(Answer, Holds)>>,
    /// What follows the answer.
    frames: Option<(AbortHandle, UnixStream)>,
}

impl Line {
    fn new(who: Who) -> Self {
        let (caller, holds) = (who.caller(), Holds::default());
        Self { who, caller, holds, under_way: None, frames: None }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.under_way.iter().for_each(JoinHandle::abort);
        self.frames.iter().for_each(|(task, _)| task.abort());
    }
}

/// What systemd keeps of a session.
struct Kept {
    number: usize,
    session: SessionId,
    uid: Uid,
    hello: Hello,
    near: UnixStream,
    _far: UnixStream,
}

/// A rank in a session.
struct Seat {
    opening: Opening,
    rank: Rank,
    job: Arc<Job>,
    unread: Vec<u8>,
    kept: Kept,
}

impl Seat {
    /// Ends the session as a daemon that stops does. Returns what systemd keeps of it.
    fn hand_over(self) -> Option<Kept> {
        let Self { opening, rank, job, unread, kept } = self;
        opening.session().hand_over();
        let end = rank.asked_to_end(unread.len()).unwrap_or(End::HungUp);
        let is_kept = matches!(end, End::HandedOver);
        let end = opening.leave(rank, &job, end);
        opening.close(Ok(end));
        is_kept.then_some(kept)
    }
}

/// A daemon that serves.
pub struct Daemon {
    source: ConfigSource,
    runtime: Runtime,
    node: Arc<Node>,
    lines: Vec<Line>,
    seats: BTreeMap<usize, Seat>,
}

impl Daemon {
    /// Starts a daemon of this configuration and driver, with a connection for each of these.
    ///
    /// # Panics
    /// If the configuration is wrong.
    #[must_use]
    pub fn start(config: &Path, library: &Path, who: &[Who]) -> Self {
        let arguments = ["pfod".as_ref(), "--config".as_ref(), config, "--nvml".as_ref(), library];
        Self::begin(Arguments::parse_from(arguments).source, Self::known_driver(library), who)
    }

    /// To load the driver takes longer than to start a daemon: most of them find it loaded.
    fn known_driver(library: &Path) -> Arc<LateDriver> {
        static KNOWN: OnceLock<Arc<LateDriver>> = OnceLock::new();
        Arc::clone(KNOWN.get_or_init(|| Arc::new(LateDriver::new(library))))
    }

    fn begin(source: ConfigSource, driver: Arc<LateDriver>, who: &[Who]) -> Self {
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
        let config = source.read().expect("a configuration");
        let ledger = loop {
            match Ledger::open(&config.paths.ledger) {
                // A thread of the former daemon is about to let go of it.
                Err(LedgerError::InUse(_)) => yield_now(),
                opened => break opened.expect("a ledger"),
            }
        };
        let mut node = Node::new(source.clone(), config, ledger);
        let (ledger, leases) = (Arc::clone(&node.ledger), Arc::clone(&node.leases));
        node.owed = Arc::new(Owed::new(ledger, leases, Arc::clone(&driver)));
        node.driver = driver;
        let node = Arc::new(node);
        let lines = who.iter().copied().map(Line::new).collect();
        Self { source, runtime, node, lines, seats: BTreeMap::new() }
    }

    /// Opens a session under a number that none has.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn hello(&mut self, number: usize, uid: Uid, hello: Hello) -> Result<(), Refusal> {
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        let kept = Kept { number, session: SessionId(0), uid, hello, near, _far: far };
        let opening = self.lease(&kept, Origin::Hello(Vec::new()))?;
        let session = opening.session().holder.session;
        self.seat(opening, Kept { session, ..kept })
    }

    fn lease(&self, kept: &Kept, origin: Origin) -> Result<Opening, Refusal> {
        let settings = self.node.settings();
        let caller = Who::User(kept.uid).caller();
        let permit = settings.authority.permit(&caller, Action::OpenSession)?;
        let socket = kept.near.try_clone().expect("a descriptor").into();
        self.runtime.block_on(open(&self.node, &permit, kept.hello.clone(), origin, socket))
    }

    fn seat(&mut self, opening: Opening, kept: Kept) -> Result<(), Refusal> {
        match opening.begin() {
            Ok((rank, job)) => {
                opening.session().mark_kept();
                let seat = Seat { opening, rank, job, unread: Vec::new(), kept };
                self.seats.insert(seat.kept.number, seat);
                Ok(())
            }
            Err(refusal) => {
                opening.close(Err(refusal.clone()));
                Err(refusal)
            }
        }
    }

    /// The sessions that are open.
    pub fn sessions(&self) -> impl Iterator<Item = usize> {
        self.seats.keys().copied()
    }

    /// Sends what a rank sends. The clock is set when this returns.
    pub fn send(&mut self, number: usize, bytes: &[u8]) {
        let Some(seat) = self.seats.get_mut(&number) else { return };
        seat.unread.extend_from_slice(bytes);
        match seat.rank.take(&seat.unread) {
            Ok(taken) => drop(seat.unread.drain(..taken)),
            Err(end) => self.end(number, end),
        }
        self.end_sessions();
    }

    /// The connection of a rank ends.
    pub fn hang_up(&mut self, number: usize) {
        self.end(number, End::HungUp);
    }

    /// A rank has been silent for as long as it may.
    pub fn fall_silent(&mut self, number: usize) {
        self.end(number, End::Closed(ClosingReason::Idle, "silent".into()));
    }

    fn end(&mut self, number: usize, end: End) {
        let Some(Seat { opening, rank, job, .. }) = self.seats.remove(&number) else { return };
        let end = opening.leave(rank, &job, end);
        opening.close(Ok(end));
    }

    /// Ends the sessions that something else has ended meanwhile.
    fn end_sessions(&mut self) {
        let asked = |(number, seat): (&usize, &Seat)| {
            Some((*number, seat.rank.asked_to_end(seat.unread.len())?))
        };
        let asked: Vec<_> = self.seats.iter().filter_map(asked).collect();
        asked.into_iter().for_each(|(number, end)| self.end(number, end));
    }

    /// Makes a request over one of the connections, unless the last one is not answered yet.
    /// Returns the answer, if it comes in a moment.
    pub fn ask(&mut self, line: usize, request: Request) -> Option<Response> {
        let asking = &mut self.lines[line];
        if asking.under_way.is_some() || asking.frames.is_some() {
            return None;
        }
        let (node, caller) = (Arc::clone(&self.node), asking.caller.clone());
        let mut holds = std::mem::take(&mut asking.holds);
        asking.under_way = Some(self.runtime.spawn(async move {
            let answered = answer(&node, &caller, &mut holds, request).await;
            (answered, holds)
        }));
        let mut answers = self.pass(MOMENT);
        answers.iter().position(|(of, _)| *of == line).map(|at| answers.swap_remove(at).1)
    }

    /// Lets time pass. Returns the answers that come, each with its connection.
    ///
    /// # Panics
    /// If an answer cannot be sent or read.
    pub fn pass(&mut self, time: Duration) -> Vec<(usize, Response)> {
        self.runtime.block_on(async { sleep(time).await });
        self.end_sessions();
        let mut answers = Vec::new();
        for (number, line) in self.lines.iter_mut().enumerate() {
            let Some(answered) = line.under_way.take_if(|request| request.is_finished()) else {
                continue;
            };
            let (answer, holds) = self.runtime.block_on(answered).expect("no panic");
            line.holds = holds;
            let response = match answer {
                Answer::Response(response) => response,
                Answer::Caller(response, caller) => {
                    line.caller = caller;
                    response
                }
                Answer::Stream(response, frames) => {
                    let (near, far) = UnixStream::pair().expect("a pair of sockets");
                    near.set_nonblocking(true).expect("a socket");
                    far.set_nonblocking(true).expect("a socket");
                    let _entered = self.runtime.enter();
                    let near = tokio::net::UnixStream::from_std(near).expect("a socket");
                    let task = self.runtime.spawn(async move { stream(frames, &near).await });
                    line.frames = Some((task.abort_handle(), far));
                    response
                }
            };
            assert_sent(&DaemonMessage::Response(response.clone()));
            answers.push((number, response));
        }
        answers
    }

    /// What was streamed over a connection since the last call.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn streamed(&mut self, line: usize) -> Vec<DaemonMessage> {
        let Some((_, far)) = &mut self.lines[line].frames else { return Vec::new() };
        let (mut bytes, mut messages) = (Vec::new(), Vec::new());
        match far.read_to_end(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            ended => drop(ended.expect("a socket")),
        }
        let mut rest = &bytes[..];
        while let Some(frame) = Frame::first_of(rest).expect("a frame") {
            messages.push(DaemonMessage::from_payload(frame.kind, frame.payload).expect("one"));
            rest = &rest[frame.total_bytes()..];
        }
        messages
    }

    /// Ends a connection, whatever is under way over it, and opens another one.
    pub fn cut(&mut self, line: usize) {
        let who = self.lines[line].who;
        self.lines[line] = Line::new(who);
        self.pass(MOMENT);
    }

    /// The daemon after this one. Sessions continue, connections begin anew. What is owed is
    /// restored before sessions are taken up if `restore_first`, and the driver is loaded anew if
    /// `load`.
    #[must_use]
    pub fn next(self, death: Death, restore_first: bool, load: bool) -> Self {
        let Self { source, runtime, node, lines, seats } = self;
        let who: Vec<_> = lines.iter().map(|line| line.who).collect();
        let kept: Vec<_> = match death {
            Death::Killed => seats.into_values().map(|seat| seat.kept).collect(),
            Death::Stopped => {
                node.leases.close();
                node.jobs.keep_all();
                seats.into_values().filter_map(Seat::hand_over).collect()
            }
        };
        // Nothing runs any more when the connections end.
        drop(runtime);
        let driver = if load {
            Arc::new(LateDriver::new(&node.settings().config.driver.library))
        } else {
            Arc::clone(&node.driver)
        };
        drop((lines, node));
        Self::begin(source, driver, &who).with_sessions(kept, restore_first)
    }

    fn with_sessions(mut self, mut kept: Vec<Kept>, restore_first: bool) -> Self {
        if restore_first {
            self.restore();
        }
        kept.sort_by_key(|kept| kept.session.0);
        let mut openings = Vec::new();
        for kept in kept.into_iter().rev() {
            self.node.session_was_opened(kept.session);
            if let Ok(opening) = self.lease(&kept, Origin::LastDaemon(kept.session)) {
                openings.push((opening, kept));
            }
        }
        self.node.jobs.restore(&self.node.leases.sessions());
        for (opening, kept) in openings {
            let _ = self.seat(opening, kept);
        }
        self.restore();
        self
    }

    /// Restores what no session answers for. Returns what could not be restored.
    pub fn restore(&self) -> Vec<String> {
        let left = self.node.owed.restore_now(PATIENCE);
        left.into_iter().map(|(entry, why)| format!("{}: {why}", entry.gpu_uuid)).collect()
    }

    /// What the ledger says is locked.
    #[must_use]
    pub fn ledger(&self) -> Vec<Entry> {
        self.node.ledger.entries()
    }

    /// The clocks that a session may lock, and those that it may not ask for.
    #[must_use]
    pub fn bounds(&self, number: usize) -> Option<(Mhz, Mhz)> {
        let seat = self.seats.get(&number)?;
        Some(seat.opening.session().grant.load().terms.bounds())
    }

    /// The status, as an administrator sees it.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn status(&self) -> Status {
        let caller = Who::Administrator.caller();
        let mut holds = Holds::default();
        let asked = answer(&self.node, &caller, &mut holds, Request::Status);
        let Answer::Response(response) = self.runtime.block_on(asked) else { panic!("no status") };
        assert_sent(&DaemonMessage::Response(response.clone()));
        let Response::Status(status) = response else { panic!("{response:?}") };
        *status
    }
}

/// Requires that a message reaches its reader.
fn assert_sent(message: &DaemonMessage) {
    let bytes = message.to_frame().unwrap_or_else(|error| panic!("{error}: {message:?}"));
    let frame = Frame::first_of(&bytes).ok().flatten().expect("a frame");
    let read = DaemonMessage::from_payload(frame.kind, frame.payload);
    assert!(read.is_ok(), "{read:?}: {message:?}");
}

//! What following and recording ranks costs the daemon's processor, beside what it costs anybody to be
//! woken by their messages: ranks that tell a thousand instructions a second each.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pfo::{Instruction, RankDescription, Session};
use pfo_protocol::TrialRun;
use pfo_tests::node::Node;

use crate::Result;
use crate::bare_socket::{BareSocket, Message};
use crate::node::{GPUS, PATIENCE, daemon, wait_until};
use crate::proc_status::Process;
use crate::report::{Cell, Report};

const JOB: &str = "bench-recording";

const INSTRUCTIONS: u32 = 100;

/// The states take turns: so many times, for so many steps of a tenth of a second.
const TURNS: usize = 4;
const STEPS: u32 = 20;

/// How the thousand instructions of a second are told.
struct Rhythm {
    name: &'static str,
    instruction: Duration,
    pause: Duration,
}

const RHYTHMS: [Rhythm; 2] = [
    Rhythm {
        name: "one after another",
        instruction: Duration::from_micros(1000),
        pause: Duration::ZERO,
    },
    Rhythm {
        name: "a pause after each",
        instruction: Duration::from_micros(500),
        pause: Duration::from_micros(500),
    },
];

/// Who is told.
struct Listeners<'n> {
    node: &'n Node,
    bare: Vec<Process>,
    /// The bare sockets are, and not the daemon.
    told_bare: AtomicBool,
    stop: AtomicBool,
}

/// What they consumed in a state.
#[derive(Default)]
struct Consumed {
    seconds: f64,
    cpu_ticks: u64,
}

impl Consumed {
    fn while_it(&mut self, listeners: &[Process], does: impl FnOnce() -> Result<()>) -> Result<()> {
        let ticks = || listeners.iter().map(|process| process.cpu_ticks()).sum::<Result<u64>>();
        let (began, before) = (Instant::now(), ticks()?);
        does()?;
        self.cpu_ticks += ticks()? - before;
        self.seconds += began.elapsed().as_secs_f64();
        Ok(())
    }

    /// Of one core, in percent.
    fn share(&self) -> f64 {
        100.0 * (self.cpu_ticks as f64 / 100.0) / self.seconds
    }
}

/// Measures while every GPU computes and has a rank.
pub(crate) fn measure(node: &Node, report: &mut Report) -> Result<()> {
    let _computing: Vec<_> = (0..GPUS).map(|gpu| node.machine.compute(gpu)).collect();
    let rows = RHYTHMS.iter().map(|rhythm| row(node, rhythm)).collect::<Result<Vec<_>>>()?;
    report.table(
        "recording",
        &format!(
            "Processor time, in % of a core, while {GPUS} ranks tell 1,000 instructions a second each: of \
             processes that read\nthe messages and do nothing else, of the daemon, and of the daemon in a \
             trial (aim: under 5 %)"
        ),
        &[
            ("instructions", "instructions"),
            ("bare_percent", "bare readers"),
            ("following_percent", "daemon"),
            ("recording_percent", "in a trial"),
            ("ratio", "ratio to bare"),
            ("added_percent", "recording adds"),
        ],
        &rows,
    );
    Ok(())
}

fn row(node: &Node, rhythm: &Rhythm) -> Result<Vec<Cell>> {
    let sessions = (0..GPUS as u32).map(|rank| open(node, rank)).collect::<Result<Vec<_>>>()?;
    let sockets = (0..GPUS).map(|_| BareSocket::connect()).collect::<Result<Vec<_>>>()?;
    let listeners = Listeners {
        node,
        bare: sockets.iter().map(|it| Process(it.receiver().as_raw().unsigned_abs())).collect(),
        told_bare: AtomicBool::new(false),
        stop: AtomicBool::new(false),
    };
    let [bare, following, recording] = std::thread::scope(|scope| {
        for (session, socket) in sessions.iter().zip(&sockets) {
            scope.spawn(|| train(session, socket, rhythm, &listeners));
        }
        let result = listeners.take_turns();
        listeners.stop.store(true, Relaxed);
        result
    })?;
    let dropped: u64 = sessions.iter().map(|session| session.counters().dropped).sum();
    if dropped > 0 {
        return Err(format!("the sockets were full {dropped} times").into());
    }
    let figure = |value| Cell::Figure(value, 2);
    let shares = [&bare, &following, &recording].map(Consumed::share);
    let [bare, following, recording] = shares;
    let ratio = recording / bare;
    Ok([Cell::text(rhythm.name)]
        .into_iter()
        .chain([bare, following, recording, ratio, recording - following].map(figure))
        .collect())
}

impl Listeners<'_> {
    fn take_turns(&self) -> Result<[Consumed; 3]> {
        wait_until("every rank is in a step", || {
            let ranks = self.node.find_job(JOB).map(|job| job.ranks).unwrap_or_default();
            Ok(ranks.iter().filter(|rank| rank.step.is_some()).count() == GPUS)
        })?;
        let turn = Duration::from_millis(100) * STEPS;
        let wait = || {
            std::thread::sleep(turn);
            Ok(())
        };
        let daemon = [daemon(self.node)?];
        let [mut bare, mut following, mut recording] = <[Consumed; 3]>::default();
        for _ in 0..TURNS {
            self.told_bare.store(true, Relaxed);
            bare.while_it(&self.bare, wait)?;
            self.told_bare.store(false, Relaxed);
            following.while_it(&daemon, wait)?;
            recording.while_it(&daemon, || {
                self.node.control().trial(JOB, TrialRun::DefaultClocks, STEPS)?;
                Ok(())
            })?;
        }
        Ok([bare, following, recording])
    }
}

fn open(node: &Node, rank: u32) -> Result<Session> {
    let session = Session::open(RankDescription {
        job: Some(JOB.into()),
        gpu: Some(node.machine.uuid(rank as usize).as_str().parse()?),
        socket: Some(node.socket()),
        rank,
        dp_rank: rank,
        dp_degree: GPUS as u32,
        setup_timeout: PATIENCE,
        ..RankDescription::default()
    })?;
    session.problem().map_or(Ok(session), |problem| Err(problem.to_string().into()))
}

/// Trains until it is asked to stop; whole steps are told to the same listener.
fn train(session: &Session, socket: &BareSocket, rhythm: &Rhythm, listeners: &Listeners<'_>) {
    let mut next = Instant::now();
    let mut wait = |duration: Duration| {
        if !duration.is_zero() {
            next += duration;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    };
    while !listeners.stop.load(Relaxed) {
        if listeners.told_bare.load(Relaxed) {
            for _ in 0..INSTRUCTIONS {
                tell(socket);
                wait(rhythm.instruction);
                tell(socket);
                wait(rhythm.pause);
            }
            continue;
        }
        session.step_begin();
        for microbatch in 0..INSTRUCTIONS {
            session.instruction_begin(Instruction::Forward, microbatch);
            wait(rhythm.instruction);
            session.instruction_end();
            wait(rhythm.pause);
        }
        session.step_end();
    }
}

/// A reader that does not keep up misses a message, as with the shim.
fn tell(socket: &BareSocket) {
    let _ = socket.send(Message::Passing);
}

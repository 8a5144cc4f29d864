//! What following and recording ranks costs the processor, beside what it costs anybody to be woken by their
//! messages: ranks that tell a thousand instructions a second each.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pfo::{DpRank, Instruction, Rank, RankDescription, Session};
use pfo_tests::Node;

use crate::Result;
use crate::bare_socket::{BareSocket, Message};
use crate::before::Before;
use crate::extent::Extent;
use crate::node::{self, GPUS, Measured, until_free};
use crate::proc_status::Process;
use crate::report::{Cell, Report};

const JOB: &str = "bench-recording";

const INSTRUCTIONS: u32 = 100;

/// How many steps of a tenth of a second each state has at a time.
const STEPS: u32 = 20;

/// How the thousand instructions of a second follow each other.
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

/// The place of the bare readers, beyond that of every node.
const BARE: usize = usize::MAX;

/// The trainers of every GPU, who tell one reader at a time.
struct Trainers {
    /// The place of the node that reads, or [`BARE`].
    reader: AtomicUsize,
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

/// What a node consumed while it followed its ranks, and while it recorded them too.
#[derive(Default)]
struct OfNode {
    following: Consumed,
    recording: Consumed,
}

/// Measures while every GPU computes and has a rank.
pub(crate) fn measure(
    node: &Node,
    before: Option<&Before>,
    extent: Extent,
    report: &mut Report,
) -> Result<()> {
    let nodes: Vec<&dyn Measured> =
        [Some(node as &dyn Measured), before.map(|it| it as _)].into_iter().flatten().collect();
    let _computing: Vec<_> =
        nodes.iter().flat_map(|node| (0..GPUS).map(|gpu| node.machine().compute(gpu))).collect();
    let rows =
        RHYTHMS.iter().map(|rhythm| row(&nodes, rhythm, extent)).collect::<Result<Vec<_>>>()?;
    report.table(
        "recording",
        &format!(
            "Processor time, in % of a core, while {GPUS} ranks tell 1,000 instructions a second each: of \
             processes that read\nthe messages and do nothing else, of pfod and pfo-agent together, and of \
             both while the ranks are recorded\n(aim: under 5 %, and recording at most 1.3 of the version \
             before pfo-agent)"
        ),
        &[
            ("instructions", "instructions"),
            ("bare_percent", "bare readers"),
            ("following_percent", "following"),
            ("recording_percent", "recording"),
            ("ratio", "ratio to bare"),
            ("added_percent", "recording adds"),
            ("before_following_percent", "before: following"),
            ("before_recording_percent", "recording"),
            ("before_ratio", "recording to before"),
        ],
        &rows,
    );
    Ok(())
}

fn row(nodes: &[&dyn Measured], rhythm: &Rhythm, extent: Extent) -> Result<Vec<Cell>> {
    let sockets = (0..GPUS).map(|_| BareSocket::connect()).collect::<Result<Vec<_>>>()?;
    // The sessions of each GPU, one for each node.
    let sessions = (0..GPUS)
        .map(|gpu| nodes.iter().map(|node| open(*node, gpu)).collect::<Result<Vec<_>>>())
        .collect::<Result<Vec<_>>>()?;
    let trainers = Trainers { reader: AtomicUsize::new(0), stop: AtomicBool::new(false) };
    let bare: Vec<_> = sockets.iter().map(BareSocket::process).collect();
    let (bare, of_nodes) = std::thread::scope(|scope| {
        for (sessions, socket) in sessions.iter().zip(&sockets) {
            scope.spawn(|| train(sessions, socket, rhythm, &trainers));
        }
        let result = trainers.take_turns(nodes, &bare, extent);
        trainers.stop.store(true, Relaxed);
        result
    })?;
    let dropped: u64 = sessions.iter().flatten().map(|session| session.counters().dropped).sum();
    if dropped > 0 {
        return Err(format!("the sockets were full {dropped} times").into());
    }
    drop(sessions);
    nodes.iter().try_for_each(|node| until_free(*node))?;
    let figure = |value| Cell::Figure(value, 2);
    let bare = bare.share();
    let shares = |of: &OfNode| (of.following.share(), of.recording.share());
    let (following, recording) = of_nodes.first().map(shares).ok_or("there is no node")?;
    let figures = [bare, following, recording, recording / bare, recording - following];
    let mut row = vec![Cell::text(rhythm.name)];
    row.extend(figures.map(figure));
    row.extend(match of_nodes.get(1).map(shares) {
        Some((following, before)) => [following, before, recording / before].map(figure),
        None => [""; 3].map(Cell::text),
    });
    Ok(row)
}

impl Trainers {
    fn take_turns(
        &self,
        nodes: &[&dyn Measured],
        bare: &[Process],
        extent: Extent,
    ) -> Result<(Consumed, Vec<OfNode>)> {
        let (turns, steps) = (extent.of(4, 1), extent.of(STEPS, 4));
        let turn = Duration::from_millis(100) * steps;
        let wait = || {
            std::thread::sleep(turn);
            Ok(())
        };
        let mut of_bare = Consumed::default();
        let mut of_nodes: Vec<OfNode> = nodes.iter().map(|_| OfNode::default()).collect();
        for _ in 0..turns {
            self.tell(BARE);
            of_bare.while_it(bare, wait)?;
            for (place, (node, of_node)) in nodes.iter().zip(&mut of_nodes).enumerate() {
                self.tell(place);
                let processes = node.processes()?;
                of_node.following.while_it(&processes, wait)?;
                of_node.recording.while_it(&processes, || node.record(JOB, steps))?;
            }
        }
        Ok((of_bare, of_nodes))
    }

    /// Lets the ranks tell another reader from their next step on.
    fn tell(&self, reader: usize) {
        self.reader.store(reader, Relaxed);
        // Until the last of them has begun such a step.
        std::thread::sleep(Duration::from_millis(120));
    }
}

fn open(node: &dyn Measured, gpu: usize) -> Result<Session> {
    let description = RankDescription {
        job: Some(JOB.into()),
        rank: Rank(gpu as u32),
        dp_rank: DpRank(gpu as u32),
        dp_degree: GPUS as u32,
        ..RankDescription::default()
    };
    node::open(node, gpu, description)
}

/// Trains until it is asked to stop; each whole step goes to one reader.
fn train(sessions: &[Session], socket: &BareSocket, rhythm: &Rhythm, trainers: &Trainers) {
    let mut next = Instant::now();
    let mut wait = |duration: Duration| {
        if !duration.is_zero() {
            next += duration;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    };
    while !trainers.stop.load(Relaxed) {
        let Some(session) = sessions.get(trainers.reader.load(Relaxed)) else {
            for _ in 0..INSTRUCTIONS {
                tell(socket);
                wait(rhythm.instruction);
                tell(socket);
                wait(rhythm.pause);
            }
            continue;
        };
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

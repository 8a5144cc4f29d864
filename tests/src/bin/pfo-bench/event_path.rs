//! From a trainer's call of the shim to the entry of the driver's set function, next to the bare
//! wake-up of a process by a Unix socket.
//!
//! The rank runs a plan in which every instruction has a clock of its own, so that each end of an
//! instruction changes the clock, and each set call tells by its clock which event it answers. Events
//! that arrive while the driver is busy are answered by the newest of them, as on a real GPU.

use std::time::{Duration, Instant};

use nvidia_ml::driver::Gpu;
use nvidia_ml::set_call::SetCall;
use pfo::{Instruction, Session};
use pfo_planner::{
    Chunk, Delays, Mhz, Microbatch, Plan, PlannedInstruction, Schedule, Stage, StagePlan,
};
use pfo_tests::log_text::tail;
use pfo_tests::node::Node;

use crate::Result;
use crate::bare_socket::{BareSocket, Message};
use crate::node::{daemon, job, open_session, wait_until};
use crate::placement::{Cores, Placement};
use crate::report::{Cell, Report};
use crate::samples::{Percentiles, Samples, now_ns};

/// An A100 has 81 clocks, 15 MHz apart: one for each instruction of a step.
const MICROBATCHES: u32 = 40;
pub(crate) const INSTRUCTIONS: usize = 2 * MICROBATCHES as usize;
const LAST: usize = INSTRUCTIONS - 1;
const LOWEST_MHZ: u32 = 210;
const CLOCK_STEP_MHZ: u32 = 15;

const PERIOD: Duration = Duration::from_millis(1);

/// Blocks of one step each: a good five seconds of each kind at one event per millisecond.
const PACED_BLOCKS: usize = 30;
const BURST_BLOCKS: usize = 300;

/// What the first clock, the plan's swap and cold caches disturb.
const WARM_UP_STEPS: usize = 4;

/// How fast events follow each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    OnePerMillisecond,
    /// All events of a step, then a pause in which everything drains.
    BackToBack,
}

impl Pace {
    fn name(self) -> &'static str {
        match self {
            Self::OnePerMillisecond => "one event per ms",
            Self::BackToBack => "back to back",
        }
    }

    fn blocks(self) -> usize {
        match self {
            Self::OnePerMillisecond => PACED_BLOCKS,
            Self::BackToBack => BURST_BLOCKS,
        }
    }

    fn metronome(self) -> Metronome {
        Metronome { pace: self, next: Instant::now() }
    }
}

struct Metronome {
    pace: Pace,
    next: Instant,
}

impl Metronome {
    fn wait(&mut self) {
        if self.pace == Pace::OnePerMillisecond {
            self.next += PERIOD;
            std::thread::sleep(self.next.saturating_duration_since(Instant::now()));
        }
    }
}

/// Measures both ways at every pace and placement.
pub(crate) fn measure(node: &Node, report: &mut Report) -> Result<()> {
    let cores = Cores::of_this_process()?;
    let mut trainer = Trainer::begin(node)?;
    let mut bare = BareSocket::connect()?;
    let mut receivers = daemon(node)?.threads_named("rank ")?;
    receivers.push(bare.receiver());
    let mut rows = Vec::new();
    for pace in [Pace::OnePerMillisecond, Pace::BackToBack] {
        for placement in Placement::all()? {
            cores.place(placement, &receivers)?;
            rows.push(compare(&mut trainer, &mut bare, pace, placement)?);
        }
    }
    cores.place(Placement::Free, &receivers)?;
    report.table(
        "event_path",
        "From the shim's call to the driver's set function, next to a bare wake-up of a process by \
         48 bytes over a Unix socket\n(µs; aim: ratio of p50 at most 1.3)",
        &[
            ("pace", "pace"),
            ("placement", "placement"),
            ("bare_p50_us", "bare p50"),
            ("bare_p99_us", "bare p99"),
            ("pfo_p50_us", "pfo p50"),
            ("pfo_p99_us", "pfo p99"),
            ("ratio_p50", "ratio p50"),
            ("ratio_p99", "ratio p99"),
            ("events", "events"),
            ("sets", "set calls"),
            ("driver_p50_us", "driver's own"),
        ],
        &rows,
    );
    Ok(())
}

fn compare(
    trainer: &mut Trainer<'_>,
    bare: &mut BareSocket,
    pace: Pace,
    placement: Placement,
) -> Result<Vec<Cell>> {
    let (mut floor, mut pfo, mut driver) = <(Samples, Samples, Samples)>::default();
    for _ in 0..WARM_UP_STEPS {
        driver.extend(trainer.step(Pace::BackToBack)?.iter().filter_map(Answer::driver_ns));
    }
    let driver = driver.percentiles();
    let busy_ns = (driver.p50_us * 1e3) as u64;
    bare_step(bare, pace, busy_ns)?;
    for _ in 0..pace.blocks() {
        floor.extend(bare_step(bare, pace, busy_ns)?);
        let answers = trainer.step(pace)?;
        pfo.extend(answers.iter().map(|answer| answer.latency_ns));
    }
    let (events, sets) = (pace.blocks() * INSTRUCTIONS, pfo.count());
    let (floor, pfo) = (floor.percentiles(), pfo.percentiles());
    let figures = |p: Percentiles| [Cell::Figure(p.p50_us, 1), Cell::Figure(p.p99_us, 1)];
    let mut row = vec![Cell::text(pace.name()), Cell::text(placement.name())];
    row.extend(figures(floor));
    row.extend(figures(pfo));
    row.push(Cell::Figure(pfo.p50_us / floor.p50_us, 2));
    row.push(Cell::Figure(pfo.p99_us / floor.p99_us, 2));
    row.extend([Cell::count(events as u64), Cell::count(sets as u64)]);
    row.push(Cell::Figure(driver.p50_us, 1));
    Ok(row)
}

/// As many messages as a step has events, and as many of them timed.
fn bare_step(bare: &mut BareSocket, pace: Pace, busy_ns: u64) -> Result<Vec<u64>> {
    let mut metronome = pace.metronome();
    let mut send = |message| {
        metronome.wait();
        bare.send(message)
    };
    send(Message::Passing)?;
    for _ in 0..INSTRUCTIONS {
        send(Message::Passing)?;
        send(Message::Timed)?;
    }
    send(Message::Passing)?;
    std::thread::sleep(2 * PERIOD);
    bare.report(busy_ns)
}

/// A set call and the event that it answers.
pub(crate) struct Answer {
    pub(crate) latency_ns: u64,
    call: SetCall,
}

impl Answer {
    /// How long the driver took.
    fn driver_ns(&self) -> Option<u64> {
        Some(self.call.returned?.0 - self.call.entered.0)
    }

    /// The event is the end of the instruction before the one whose clock is set. None for calls that
    /// belong to the warm-up, and for the single event that ends the step of a burst.
    fn of(call: SetCall, pace: Pace, ended_ns: &[u64; INSTRUCTIONS]) -> Option<Self> {
        let index = (call.max.0.checked_sub(LOWEST_MHZ)? / CLOCK_STEP_MHZ) as usize;
        if index == 0 && pace == Pace::BackToBack {
            return None;
        }
        let event_ns = ended_ns.get((index + LAST) % INSTRUCTIONS)?;
        Some(Self { latency_ns: call.entered.0.checked_sub(*event_ns)?, call })
    }
}

/// A rank that follows its plan to the letter.
pub(crate) struct Trainer<'a> {
    node: &'a Node,
    session: Session,
    gpu: Gpu<'a>,
    sets_seen: u64,
}

impl<'a> Trainer<'a> {
    pub(crate) fn begin(node: &'a Node) -> Result<Self> {
        let session = open_session(node, 0)?;
        node.take_up(&job(0), plan().to_json()?.as_bytes());
        let gpu = node.machine.gpu(0);
        Ok(Self { node, session, gpu, sets_seen: 0 })
    }

    /// Runs a step; returns the set calls that it led to.
    pub(crate) fn step(&mut self, pace: Pace) -> Result<Vec<Answer>> {
        let mut metronome = pace.metronome();
        let mut ended_ns = [0; INSTRUCTIONS];
        metronome.wait();
        self.session.step_begin();
        for (index, (instruction, microbatch)) in instructions().enumerate() {
            if index == LAST && pace == Pace::BackToBack {
                // Were the burst a whole step, it would end at the clock with which it began, and
                // a daemon that takes it in at once would rightly set none.
                self.wait_for_clock(LAST, ended_ns[LAST - 1])?;
            }
            metronome.wait();
            self.session.instruction_begin(instruction, microbatch);
            metronome.wait();
            ended_ns[index] = now_ns();
            self.session.instruction_end();
        }
        metronome.wait();
        self.session.step_end();
        self.wait_for_clock(0, ended_ns[LAST])?;
        let calls = self.gpu.set_calls_since(self.sets_seen);
        self.sets_seen += calls.len() as u64;
        match self.session.counters().dropped {
            0 => Ok(calls.into_iter().filter_map(|c| Answer::of(c, pace, &ended_ns)).collect()),
            dropped => Err(format!("the socket was full {dropped} times").into()),
        }
    }

    /// Waits until the driver was asked for the clock of an instruction, and then a little.
    fn wait_for_clock(&self, index: usize, after_ns: u64) -> Result<()> {
        wait_until("the driver is asked for the plan's clock", || {
            let calls = self.gpu.set_calls_since(self.gpu.set_call_count().saturating_sub(1));
            let is_it = |c: &SetCall| c.max.0 == clock_of(index).0 && c.entered.0 >= after_ns;
            Ok(calls.last().is_some_and(is_it))
        })
        .map_err(|error| {
            let calls = self.gpu.set_calls_since(self.gpu.set_call_count().saturating_sub(2));
            let (counters, problem) = (self.session.counters(), self.session.problem());
            let (status, log) = (self.node.rank(&job(0), 0), tail(&self.node.log()));
            format!(
                "{error} ({} after {after_ns} ns); the last were {calls:#?}, {counters:?}, \
                 {problem:?}, {status:#?}; the daemon's log:\n{log}",
                clock_of(index)
            )
        })?;
        std::thread::sleep(2 * PERIOD);
        Ok(())
    }
}

fn instructions() -> impl Iterator<Item = (Instruction, u32)> {
    (0..MICROBATCHES).flat_map(|microbatch| {
        [Instruction::Forward, Instruction::Backward].map(|i| (i, microbatch))
    })
}

pub(crate) fn clock_of(index: usize) -> Mhz {
    Mhz(LOWEST_MHZ + CLOCK_STEP_MHZ * index as u32)
}

pub(crate) fn plan() -> Plan {
    let planned = |index, instruction, microbatch| PlannedInstruction {
        instruction,
        microbatch: Microbatch(microbatch),
        chunk: Chunk(0),
        frequency_mhz: clock_of(index),
    };
    let instructions = (0..MICROBATCHES).flat_map(|microbatch| {
        let first = 2 * microbatch as usize;
        [
            planned(first, pfo_planner::Instruction::Forward, microbatch),
            planned(first + 1, pfo_planner::Instruction::Backward, microbatch),
        ]
    });
    Plan {
        gpu: None,
        schedule: Schedule::OneForwardOneBackward,
        num_stages: 1,
        num_microbatches: MICROBATCHES,
        p2p_blocking_power_w: None,
        delays: Delays::default(),
        predicted: None,
        dependencies: Vec::new(),
        stages: vec![StagePlan { stage: Stage(0), instructions: instructions.collect() }],
    }
}

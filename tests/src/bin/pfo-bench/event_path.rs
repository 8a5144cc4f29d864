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
use pfo_tests::{Node, TestPlan};

use crate::Result;
use crate::bare_socket::{BareSocket, Message};
use crate::before::Before;
use crate::extent::Extent;
use crate::node::{Measured, job, open_session, until_free, wait_until};
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

/// Between two bursts. pfod lets the thread of a rank compute for an eighth of the time: bursts that follow
/// each other at once would show the pauses of that bound, and not what a burst takes.
const BETWEEN_BURSTS: Duration = Duration::from_millis(25);

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
            Self::BackToBack => "bursts of a step",
        }
    }

    /// Blocks of one step each: a good five seconds of each kind at one event per millisecond.
    fn blocks(self, extent: Extent) -> usize {
        match self {
            Self::OnePerMillisecond => extent.of(30, 2),
            Self::BackToBack => extent.of(200, 5),
        }
    }

    /// Waits after a step until the next one may begin.
    fn rest(self) {
        if self == Self::BackToBack {
            std::thread::sleep(BETWEEN_BURSTS);
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

/// Measures every way at every pace and placement.
pub(crate) fn measure(
    node: &Node,
    before: Option<&Before>,
    extent: Extent,
    report: &mut Report,
) -> Result<()> {
    let mut ways = Ways::begin(node, before)?;
    let cores = Cores::of_this_process()?;
    let mut receivers = ways.bare.receivers()?;
    for node in [Some(node as &dyn Measured), before.map(|it| it as _)].into_iter().flatten() {
        receivers.extend(node.pfod()?.threads_named("rank ")?);
    }
    let mut rows = Vec::new();
    for pace in [Pace::OnePerMillisecond, Pace::BackToBack] {
        for placement in Placement::all()? {
            cores.place(placement, &receivers)?;
            rows.push(ways.compare(pace, placement, pace.blocks(extent))?);
        }
    }
    cores.place(Placement::Free, &receivers)?;
    drop(ways);
    until_free(node)?;
    report.table(
        "event_path",
        "From the shim's call to the driver's set function, next to a bare wake-up of a process by \
         48 bytes over a Unix socket\n(µs; aims: p50 at most 1.3 of the bare one, and both at most 1.05 of \
         the version before pfo-agent)",
        &[
            ("pace", "pace"),
            ("placement", "placement"),
            ("bare_p50_us", "bare p50"),
            ("bare_p99_us", "p99"),
            ("pfo_p50_us", "pfo p50"),
            ("pfo_p99_us", "p99"),
            ("ratio_p50", "to bare p50"),
            ("ratio_p99", "p99"),
            ("before_p50_us", "before p50"),
            ("before_p99_us", "p99"),
            ("before_ratio_p50", "pfo to before p50"),
            ("before_ratio_p99", "p99"),
            ("events", "events"),
            ("sets", "set calls"),
            ("driver_p50_us", "driver's own"),
        ],
        &rows,
    );
    report.note(
        "Bursts are far enough apart for the eighth of the time that pfod lets the thread of a rank compute: \
         no pause\nfor a flood is in these figures.",
    );
    Ok(())
}

/// What takes turns: a bare socket, and a rank of each version.
struct Ways<'n> {
    bare: BareSocket,
    now: Trainer<'n>,
    before: Option<Trainer<'n>>,
}

impl<'n> Ways<'n> {
    fn begin(node: &'n Node, before: Option<&'n Before>) -> Result<Self> {
        let before = before.map(|before| Trainer::begin(before)).transpose()?;
        Ok(Self { bare: BareSocket::connect()?, now: Trainer::begin(node)?, before })
    }

    fn compare(&mut self, pace: Pace, placement: Placement, blocks: usize) -> Result<Vec<Cell>> {
        let (mut floor, mut now, mut driver) = <(Samples, Samples, Samples)>::default();
        let mut before = Samples::default();
        for _ in 0..WARM_UP_STEPS {
            let answers = self.now.step(Pace::BackToBack)?;
            driver.extend(answers.iter().filter_map(Answer::driver_ns));
            if let Some(trainer) = &mut self.before {
                trainer.step(Pace::BackToBack)?;
            }
        }
        let driver = driver.percentiles();
        let busy_ns = (driver.p50_us * 1e3) as u64;
        bare_step(&mut self.bare, pace, busy_ns)?;
        for _ in 0..blocks {
            floor.extend(bare_step(&mut self.bare, pace, busy_ns)?);
            now.extend(latencies(&mut self.now, pace)?);
            if let Some(trainer) = &mut self.before {
                before.extend(latencies(trainer, pace)?);
            }
        }
        let (events, sets) = (blocks * INSTRUCTIONS, now.count());
        let floor = floor.percentiles();
        let now = now.percentiles();
        let before = self.before.as_ref().map(|_| before.percentiles());
        let mut row = vec![Cell::text(pace.name()), Cell::text(placement.name())];
        row.extend(figures(Some(floor), 1));
        row.extend(figures(Some(now), 1));
        row.extend(figures(Some(now.ratio_to(floor)), 2));
        row.extend(figures(before, 1));
        row.extend(figures(before.map(|before| now.ratio_to(before)), 2));
        row.extend([Cell::count(events as u64), Cell::count(sets as u64)]);
        row.push(Cell::Figure(driver.p50_us, 1));
        Ok(row)
    }
}

/// The middle and the tail, or two empty cells.
pub(crate) fn figures(percentiles: Option<Percentiles>, decimals: usize) -> [Cell; 2] {
    let Some(Percentiles { p50_us, p99_us }) = percentiles else {
        return [Cell::text(""), Cell::text("")];
    };
    [Cell::Figure(p50_us, decimals), Cell::Figure(p99_us, decimals)]
}

fn latencies(trainer: &mut Trainer<'_>, pace: Pace) -> Result<Vec<u64>> {
    Ok(trainer.step(pace)?.iter().map(|answer| answer.latency_ns).collect())
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
    pace.rest();
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
    node: &'a dyn Measured,
    session: Session,
    gpu: Gpu<'a>,
    sets_seen: u64,
    /// How long its calls took that begin an instruction, and those that end one.
    calls: [Samples; 2],
}

impl<'a> Trainer<'a> {
    pub(crate) fn begin(node: &'a dyn Measured) -> Result<Self> {
        let session = open_session(node, 0)?;
        node.run_plan(&job(0), &plan())?;
        Ok(Self {
            node,
            session,
            gpu: node.machine().gpu(0),
            sets_seen: 0,
            calls: Default::default(),
        })
    }

    /// Its session.
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// How long its calls took since this was asked last: begins, and ends.
    pub(crate) fn take_calls(&mut self) -> [Samples; 2] {
        std::mem::take(&mut self.calls)
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
            let began_ns = now_ns();
            self.session.instruction_begin(instruction, microbatch);
            self.calls[0].add(now_ns() - began_ns);
            metronome.wait();
            ended_ns[index] = now_ns();
            self.session.instruction_end();
            self.calls[1].add(now_ns() - ended_ns[index]);
        }
        metronome.wait();
        self.session.step_end();
        self.wait_for_clock(0, ended_ns[LAST])?;
        pace.rest();
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
            let is_it = |c: &SetCall| c.max.0 == clock_of(index) && c.entered.0 >= after_ns;
            Ok(calls.last().is_some_and(is_it))
        })
        .map_err(|error| {
            let calls = self.gpu.set_calls_since(self.gpu.set_call_count().saturating_sub(2));
            let (counters, problem) = (self.session.counters(), self.session.problem());
            let log = self.node.log();
            format!(
                "{error} ({} MHz after {after_ns} ns); the last were {calls:#?}, {counters:?}, \
                 {problem:?}; the log of pfod:\n{log}",
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

/// The clock of an instruction, in MHz.
pub(crate) fn clock_of(index: usize) -> u32 {
    LOWEST_MHZ + CLOCK_STEP_MHZ * index as u32
}

/// One stage, whose order is that of [`instructions`].
pub(crate) fn plan() -> TestPlan {
    TestPlan::new(1, MICROBATCHES, |_, index| clock_of(index))
}

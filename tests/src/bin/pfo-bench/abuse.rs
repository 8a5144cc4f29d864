//! What a rank that trains notices of a process that takes all it can get of pfod and the agent, in one
//! way or in all of them at once.
//!
//! Three take turns of one step each: nobody else, a process that leaves pfo alone but computes as much as
//! the abuser and the daemon together do because of it, and the abuser. The first two tell what any busy
//! neighbour costs on a machine with few cores, the last two what the daemon makes worse.

use std::iter;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd;
use pfo_protocol::Pid;
use pfo_tests::attack::{Target, WAYS};
use pfo_tests::control::job;
use pfo_tests::{Identity, Node, programs};

use crate::Result;
use crate::computing::COMPUTES;
use crate::event_path::{Pace, Trainer};
use crate::extent::Extent;
use crate::node::{self, Measured};
use crate::proc_status::Process;
use crate::report::{Cell, Report};
use crate::samples::{Percentiles, Samples};

/// Of each the middle counts, so that a burst of the machine's own work spoils one of them only.
const ROUNDS: usize = 5;

/// Steps of each kind in a round: some seconds, with one event per millisecond.
const STEPS: usize = 8;

/// Until a process that was stopped or continued has come up to speed.
const SETTLE: Duration = Duration::from_millis(20);

/// So long it is looked how much an abuser makes the machine compute.
const LOOK: Duration = Duration::from_secs(1);

/// The ways that are also measured one by one.
const ALONE: [&str; 7] = ["flood", "trickle", "connect", "garbage", "ask", "deaf", "hoard"];

/// Measures some ways, and all of them together.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    let node = &node::start();
    let mut trainer = Trainer::begin(node)?;
    trainer.step(Pace::BackToBack)?;
    let ways = WAYS.iter().filter(|way| ALONE.contains(&way.name));
    let ways =
        ways.map(|way| (way.what, vec![way.name])).chain([("all that a member may", vec![])]);
    let rows: Result<Vec<_>> =
        ways.map(|(what, ways)| compare(node, &mut trainer, (what, &ways), extent)).collect();
    report.table(
        "abuse",
        "What a rank that trains notices of another user's process, from its call to the driver's set \
         function\n(µs, one event per ms, medians of rounds; aim: p99 at most twice that of the rank alone \
         or,\nwhere the machine has too few cores, of the rank beside a process that only computes as much)",
        &[
            ("what", "the other process sends"),
            ("alone_p50_us", "alone p50"),
            ("alone_p99_us", "p99"),
            ("computing_p50_us", "computing p50"),
            ("computing_p99_us", "p99"),
            ("abuse_p50_us", "abuse p50"),
            ("abuse_p99_us", "p99"),
            ("ratio_p99_alone", "p99 to alone"),
            ("ratio_p99_computing", "to computing"),
            ("abuser_cpu_percent", "its CPU %"),
            ("daemon_cpu_percent", "daemon's"),
            ("daemon_grown_kib", "grown KiB"),
        ],
        &rows?,
    );
    Ok(())
}

fn compare(
    node: &Node,
    trainer: &mut Trainer<'_>,
    (what, ways): (&str, &[&str]),
    extent: Extent,
) -> Result<Vec<Cell>> {
    let pfod = node.pfod()?;
    let rounds_to_run = extent.of(ROUNDS, 1);
    let memory_before = pfod.memory()?.rss_kib;
    let abuser = Neighbour::attack(node, ways)?;
    sleep(LOOK);
    let [own, daemons] = shares(abuser.process(), pfod)?;
    abuser.stop()?;
    let computing = Neighbour::compute(node, &[own, daemons])?;
    computing.stop()?;
    let mut rounds = Vec::new();
    for _ in 0..rounds_to_run {
        let mut samples: [Samples; 3] = Default::default();
        for _ in 0..extent.of(STEPS, 1) {
            samples[0].extend(latencies(trainer)?);
            for (samples, neighbour) in samples[1..].iter_mut().zip([&computing, &abuser]) {
                neighbour.go_on()?;
                samples.extend(latencies(trainer)?);
                neighbour.stop()?;
            }
        }
        rounds.push(samples.map(Samples::percentiles));
    }
    let grown_kib = pfod.memory()?.rss_kib.saturating_sub(memory_before);
    let median = |figure: &dyn Fn(&[Percentiles; 3]) -> f64, decimals| {
        let mut figures: Vec<_> = rounds.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        Cell::Figure(figures[rounds_to_run / 2], decimals)
    };
    Ok(vec![
        Cell::text(what),
        median(&|[alone, ..]| alone.p50_us, 1),
        median(&|[alone, ..]| alone.p99_us, 1),
        median(&|[_, computing, _]| computing.p50_us, 1),
        median(&|[_, computing, _]| computing.p99_us, 1),
        median(&|[.., abused]| abused.p50_us, 1),
        median(&|[.., abused]| abused.p99_us, 1),
        median(&|[alone, _, abused]| abused.p99_us / alone.p99_us, 2),
        median(&|[_, computing, abused]| abused.p99_us / computing.p99_us, 2),
        Cell::count(own),
        Cell::count(daemons),
        Cell::count(grown_kib),
    ])
}

fn latencies(trainer: &mut Trainer<'_>) -> Result<Vec<u64>> {
    sleep(SETTLE);
    Ok(trainer.step(Pace::OnePerMillisecond)?.iter().map(|answer| answer.latency_ns).collect())
}

/// What an abuser would take of a core if it had one to itself, and what the daemon takes, in percent.
fn shares(abuser: Process, pfod: Process) -> Result<[u64; 2]> {
    let look = || -> Result<_> { Ok((abuser.computed_and_waited_ns()?, pfod.cpu_ticks()?)) };
    let (began, (before, ticks_before)) = (Instant::now(), look()?);
    sleep(LOOK);
    let (elapsed, (after, ticks)) = (began.elapsed(), look()?);
    let share = |(thread, [computed, waited]): (&i32, &[u64; 2])| {
        let [computed_before, waited_before] = before.get(thread).copied().unwrap_or_default();
        let waited = Duration::from_nanos(waited - waited_before);
        let wanted_s = elapsed.saturating_sub(waited).as_secs_f64();
        (computed - computed_before) as f64 / 1e9 / wanted_s.max(1e-3) * 100.0
    };
    let own: f64 = after.iter().map(share).sum();
    let daemons = (ticks - ticks_before) as f64 / elapsed.as_secs_f64();
    Ok([own, daemons].map(|percent| percent.round() as u64))
}

/// A process of another user, if that can be.
struct Neighbour(Child);

impl Neighbour {
    fn attack(node: &Node, ways: &[&str]) -> Result<Self> {
        let target = Target {
            socket: node.socket(),
            agent: Some(node.agent_socket()),
            devices: node.machine.devices(),
            gpus: (1..node.machine.gpu_count()).map(|gpu| node.machine.uuid(gpu)).collect(),
            victim: job(&node::job(0)),
        };
        let arguments = target.arguments();
        let arguments: Vec<_> =
            arguments.iter().map(String::as_str).chain(ways.iter().copied()).collect();
        Self::start(node, "pfo-test-attacker", &arguments)
    }

    /// Computes for these parts of a core, in percent.
    fn compute(node: &Node, shares: &[u64]) -> Result<Self> {
        let whole = shares.iter().flat_map(|share| iter::repeat_n(100, (share / 100) as usize));
        let percents = whole.chain(shares.iter().map(|share| share % 100)).map(|p| p.to_string());
        let arguments: Vec<_> = iter::once(COMPUTES.to_owned()).chain(percents).collect();
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        Self::start(node, "pfo-bench", &arguments)
    }

    fn start(node: &Node, program: &str, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(programs::program_for_all(program, node.directory()));
        command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
        Ok(Self(Identity::trainer().assume(&mut command).spawn()?))
    }

    fn process(&self) -> Process {
        Process(Pid(self.0.id()))
    }

    fn stop(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    fn go_on(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(unistd::Pid::from_raw(self.0.id().cast_signed()), signal)?)
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

//! What a rank that trains notices of a process that takes all it can get of pfod.
//!
//! Three take turns of one step each: nobody else, a process that leaves pfo alone but computes as much as
//! the abuser and the daemon together do because of it, and the abuser. The first two tell what any busy
//! neighbour costs on a machine with few cores, the last two what the daemon makes worse.

use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd;
use pfo_protocol::Pid;
use pfo_tests::{Identity, Node, programs};

use crate::Result;
use crate::abuser::{ABUSER, COMPUTES, WAYS};
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

/// Measures every way.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    let node = &node::start();
    let mut trainer = Trainer::begin(node)?;
    trainer.step(Pace::BackToBack)?;
    let rows: Result<Vec<_>> =
        WAYS.iter().map(|way| compare(node, &mut trainer, *way, extent)).collect();
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
    (way, what): (&str, &str),
    extent: Extent,
) -> Result<Vec<Cell>> {
    let pfod = node.pfod()?;
    let rounds_to_run = extent.of(ROUNDS, 1);
    let memory_before = pfod.memory()?.rss_kib;
    let abuser = Neighbour::start(node, &[way, node.machine.uuid(1).as_str()])?;
    sleep(LOOK);
    let [own, daemons] = shares(abuser.process(), pfod)?;
    abuser.stop()?;
    let computing = Neighbour::start(node, &[COMPUTES, &own.to_string(), &daemons.to_string()])?;
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
    let (began, ([computed_before, waited_before], ticks_before)) = (Instant::now(), look()?);
    sleep(LOOK);
    let (elapsed, ([computed, waited], ticks)) = (began.elapsed(), look()?);
    let waited = Duration::from_nanos(waited - waited_before);
    let wanted_s = elapsed.saturating_sub(waited).as_secs_f64();
    let own = (computed - computed_before) as f64 / 1e9 / wanted_s * 100.0;
    let daemons = (ticks - ticks_before) as f64 / elapsed.as_secs_f64();
    Ok([own, daemons].map(|percent| percent.round() as u64))
}

/// A process of another user, if that can be.
struct Neighbour(Child);

impl Neighbour {
    fn start(node: &Node, what: &[&str]) -> Result<Self> {
        let program = programs::program_for_all("pfo-bench", node.directory());
        let mut command = Command::new(program);
        command.arg(ABUSER).arg(node.socket()).args(what);
        command.stdin(Stdio::null()).stderr(Stdio::null());
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

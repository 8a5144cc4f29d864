//! What a rank that trains notices of a process that takes whatever it can get of the daemon.
//!
//! The two run in turns of one step: with the other process stopped, and with it running. A process that
//! only computes shows what any neighbour costs on a machine with few cores.

use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pfo_tests::identity::Identity;
use pfo_tests::node::Node;
use pfo_tests::programs;

use crate::Result;
use crate::abuser::{ABUSER, WAYS};
use crate::event_path::{Pace, Trainer};
use crate::node::daemon;
use crate::report::{Cell, Report};
use crate::samples::Samples;

/// Steps of each kind: some seconds, with one event per millisecond.
const STEPS: usize = 40;

/// Until whoever was stopped or let go has come up to speed.
const SETTLE: Duration = Duration::from_millis(20);

/// Measures every way.
pub(crate) fn measure(node: &Node, report: &mut Report) -> Result<()> {
    let mut trainer = Trainer::begin(node)?;
    trainer.step(Pace::BackToBack)?;
    let rows: Result<Vec<_>> =
        WAYS.iter().map(|(way, what)| compare(node, &mut trainer, way, what)).collect();
    report.table(
        "abuse",
        "What a rank that trains notices of another user's process, from its call to the driver's set \
         function\n(µs, one event per ms; aim: ratio of p99 at most 2)",
        &[
            ("what", "the other process"),
            ("quiet_p50_us", "stopped p50"),
            ("quiet_p99_us", "p99"),
            ("p50_us", "running p50"),
            ("p99_us", "p99"),
            ("ratio_p50", "ratio p50"),
            ("ratio_p99", "ratio p99"),
            ("daemon_cpu_percent", "daemon's CPU %"),
            ("daemon_grown_kib", "grown KiB"),
        ],
        &rows?,
    );
    Ok(())
}

fn compare(node: &Node, trainer: &mut Trainer<'_>, way: &str, what: &str) -> Result<Vec<Cell>> {
    let (mut quiet, mut abused) = <(Samples, Samples)>::default();
    let pfod = daemon(node)?;
    let memory_before = pfod.memory()?.rss_kib;
    let abuser = Abuser::start(node, way)?;
    sleep(10 * SETTLE);
    let mut ticks = 0;
    let mut seconds = 0.0;
    for _ in 0..STEPS {
        abuser.stop()?;
        quiet.extend(latencies(trainer)?);
        abuser.go_on()?;
        let (began, before) = (std::time::Instant::now(), pfod.cpu_ticks()?);
        abused.extend(latencies(trainer)?);
        ticks += pfod.cpu_ticks()? - before;
        seconds += began.elapsed().as_secs_f64();
    }
    let grown_kib = pfod.memory()?.rss_kib.saturating_sub(memory_before);
    drop(abuser);
    let (quiet, abused) = (quiet.percentiles(), abused.percentiles());
    Ok(vec![
        Cell::text(what),
        Cell::Figure(quiet.p50_us, 1),
        Cell::Figure(quiet.p99_us, 1),
        Cell::Figure(abused.p50_us, 1),
        Cell::Figure(abused.p99_us, 1),
        Cell::Figure(abused.p50_us / quiet.p50_us, 2),
        Cell::Figure(abused.p99_us / quiet.p99_us, 2),
        Cell::Figure(ticks as f64 / seconds, 0),
        Cell::count(grown_kib),
    ])
}

fn latencies(trainer: &mut Trainer<'_>) -> Result<Vec<u64>> {
    sleep(SETTLE);
    Ok(trainer.step(Pace::OnePerMillisecond)?.iter().map(|answer| answer.latency_ns).collect())
}

/// A process of another user, if that can be.
struct Abuser(Child);

impl Abuser {
    fn start(node: &Node, way: &str) -> Result<Self> {
        let program = programs::program_for_all("pfo-bench", node.directory());
        let mut command = Command::new(program);
        command.arg(ABUSER).arg(node.socket()).arg(way).arg(node.machine.uuid(1).as_str());
        command.stdin(Stdio::null()).stderr(Stdio::null());
        Ok(Self(Identity::trainer().assume(&mut command).spawn()?))
    }

    fn stop(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    fn go_on(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.0.id().cast_signed()), signal)?)
    }
}

impl Drop for Abuser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

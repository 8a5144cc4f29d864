//! The nodes that are measured: daemons as processes of their own, on a simulated driver that answers at
//! once.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use pfo::{RankDescription, Session};
use pfo_tests::{Identity, Machine, MachineSetup, Node, Setup, TestPlan, tail};

use crate::Result;
use crate::proc_status::Process;

/// As many GPUs as ranks are measured at most.
pub(crate) const GPUS: usize = 8;

/// Nothing that is waited for takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// More than any burst here asks for: where there is no room for a change, nothing answers an event.
pub(crate) const CHANGES_PER_SECOND: u32 = 100_000;

/// A node of either version.
pub(crate) trait Measured {
    /// Its GPUs.
    fn machine(&self) -> &Machine;

    /// Where its pfod serves trainers.
    fn socket(&self) -> PathBuf;

    /// The process of its pfod.
    fn pfod(&self) -> Result<Process>;

    /// The process of its agent, if it has one.
    fn agent(&self) -> Option<Process>;

    /// Lets a job of this user run a plan from its next step on.
    fn run_plan(&self, job: &str, plan: &TestPlan) -> Result<()>;

    /// Records some steps of a job of this user, each instruction by itself.
    fn record(&self, job: &str, steps: u32) -> Result<()>;

    /// The end of what its pfod has logged.
    fn log(&self) -> String;

    /// Every process that a rank has to do with.
    fn processes(&self) -> Result<Vec<Process>> {
        Ok([self.pfod()?].into_iter().chain(self.agent()).collect())
    }
}

impl Measured for Node {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn socket(&self) -> PathBuf {
        self.socket()
    }

    fn pfod(&self) -> Result<Process> {
        let pfod = self.daemon.as_ref().ok_or("there is no pfod")?;
        Ok(Process(pfod.process.pid()))
    }

    fn agent(&self) -> Option<Process> {
        self.agent.as_ref().map(|agent| Process(agent.process.pid()))
    }

    fn run_plan(&self, job: &str, plan: &TestPlan) -> Result<()> {
        self.take_up(job, plan);
        Ok(())
    }

    fn record(&self, job: &str, steps: u32) -> Result<()> {
        let output = self.directory().join("samples.csv").display().to_string();
        let steps = steps.to_string();
        let arguments = ["profile", "samples", job, "--steps", &steps, "--output", &output];
        let _ = self.pfoctl(&Identity::own(), &arguments).printed();
        Ok(())
    }

    fn log(&self) -> String {
        tail(&self.log())
    }
}

/// The GPUs of every node here.
pub(crate) fn machine_setup() -> MachineSetup {
    MachineSetup { gpus: "8xA100", set_latency_ms: 0, settle_ms: 0, ..MachineSetup::default() }
}

/// A node whose daemons serve.
pub(crate) fn start() -> Node {
    let changes_per_second = CHANGES_PER_SECOND;
    Node::start_with(&Setup { machine: machine_setup(), changes_per_second, ..Setup::default() })
}

/// The job whose only rank is on the GPU with this index.
pub(crate) fn job(gpu: usize) -> String {
    format!("bench-{gpu}")
}

/// A session of the rank on the GPU with this index.
pub(crate) fn open_session(node: &dyn Measured, gpu: usize) -> Result<Session> {
    open(node, gpu, RankDescription { job: Some(job(gpu)), ..RankDescription::default() })
}

/// A session of a rank on the GPU with this index, which nobody else may hold.
pub(crate) fn open(
    node: &dyn Measured,
    gpu: usize,
    description: RankDescription,
) -> Result<Session> {
    let session = Session::open(RankDescription {
        gpu: Some(node.machine().uuid(gpu).as_str().parse()?),
        socket: Some(node.socket()),
        devices: Some(node.machine().devices()),
        setup_timeout: PATIENCE,
        ..description
    })?;
    match session.problem() {
        None => Ok(session),
        Some(problem) => Err(format!("no lease: {problem}; log:\n{}", node.log()).into()),
    }
}

/// Waits until no rank holds a GPU. A session that was dropped ends when pfod has read its goodbye, and only
/// a session of the same job is let in before.
pub(crate) fn until_free(node: &dyn Measured) -> Result<()> {
    let is_free = || Ok(node.pfod()?.threads_named("rank ")?.is_empty());
    wait_until("every session has ended", is_free)
}

/// Asks until it is so.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !is_so()? {
        if began.elapsed() > PATIENCE {
            return Err(format!("waited {PATIENCE:?} in vain until {what}").into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

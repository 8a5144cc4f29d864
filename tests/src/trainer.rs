//! A simulated training: ranks in processes of their own, on simulated GPUs, through the real shim.

use std::process::{Command, ExitStatus};

use nix::sys::signal::Signal;
use pfo_protocol::{Pid, SwapTarget};
use serde_json::Value;

use crate::identity::Identity;
use crate::node::Node;
use crate::plan::TestPlan;
use crate::process::{self, Process};
use crate::programs;
use crate::ran::Ran;

/// Stages of a training here, one rank each.
pub const STAGES: u32 = 4;

/// Microbatches of its steps.
pub const MICROBATCHES: u32 = 3;

/// What a perfect measurement of a training on A40s gives, as a profile.
#[must_use]
pub fn true_profile(time_scale: &str) -> String {
    profile_of("A40", &["--ideal"], time_scale)
}

/// The same for another model of GPU, with further arguments of `pfo-sim profile`.
#[must_use]
pub fn profile_of(model: &str, arguments: &[&str], time_scale: &str) -> String {
    let mut command = Command::new(programs::program("pfo-sim"));
    command.args(["profile", "--gpu", model, "--stages", &STAGES.to_string()]);
    command.args(["--time-scale", time_scale]).args(arguments);
    Ran::from(command.output().unwrap()).printed()
}

/// The frontier of such a profile, in a file that everybody may read.
#[must_use]
pub fn true_frontier(node: &Node, time_scale: &str) -> String {
    let profile = node.plan_file("profile.csv", true_profile(time_scale).as_bytes());
    let frontier = node.directory().join("a40.frontier").to_str().unwrap().to_owned();
    let microbatches = MICROBATCHES.to_string();
    let mut command = Command::new(programs::program("pfoctl"));
    command.args(["plan", "optimize", "--p2p-power", "70", "--microbatches", &microbatches]);
    let _ = Ran::from(command.arg(profile).args(["-o", &frontier]).output().unwrap()).printed();
    frontier
}

/// A running training of [`STAGES`] ranks on the node's first GPUs.
#[derive(Debug)]
pub struct Training {
    /// The launcher of its ranks.
    pub process: Process,
    job: String,
}

impl Training {
    /// Starts one that trains until it is asked to stop.
    #[must_use]
    pub fn start(node: &Node, job: &str, user: &Identity, options: &[&str]) -> Self {
        Self::start_for(node, job, user, 0, options)
    }

    /// Starts one that trains for some steps; 0 has no end.
    #[must_use]
    pub fn start_for(
        node: &Node,
        job: &str,
        user: &Identity,
        steps: u64,
        options: &[&str],
    ) -> Self {
        Self::start_in(node, job, user, (steps, &[]), options)
    }

    /// Starts one for some steps in an environment, such as a scheduler's.
    #[must_use]
    pub fn start_in(
        node: &Node,
        job: &str,
        user: &Identity,
        (steps, environment): (u64, &[(&str, &str)]),
        options: &[&str],
    ) -> Self {
        let mut command = Command::new(programs::program("pfo-sim-trainer"));
        command.args(["launch", "--json", "--time-scale", "0.02", "--job", job]);
        command.args(["--steps", &steps.to_string()]);
        command.arg("--state").arg(node.machine.state()).arg("--socket").arg(node.socket());
        command.args([
            "--stages",
            &STAGES.to_string(),
            "--microbatches",
            &MICROBATCHES.to_string(),
        ]);
        user.pass_to_trainer(&mut command);
        command.args(options).envs(environment.iter().copied());
        let process = Process::start(job, node.directory(), &mut command);
        Self { process, job: job.to_owned() }
    }

    /// Starts one and waits until every rank runs a plan, in steps after that of the swap.
    #[must_use]
    pub fn start_on_plan(node: &Node, job: &str, user: &Identity, plan: &TestPlan) -> Self {
        let training = Self::start(node, job, user, &[]);
        training.until_leased(node);
        let swapped = training.take_up(node, plan);
        training.until_step(node, swapped + 2);
        training
    }

    /// Loads a plan and swaps to it; returns the step of the swap.
    pub fn take_up(&self, node: &Node, plan: &TestPlan) -> u64 {
        node.load(&self.job, plan).unwrap();
        node.swap(&self.job, SwapTarget::Loaded).unwrap().step
    }

    /// Waits until every rank holds its lease.
    pub fn until_leased(&self, node: &Node) {
        node.until_is("ranks with a lease", &(STAGES as usize), || self.ranks(node).len());
    }

    /// Waits until every rank has begun a step.
    pub fn until_step(&self, node: &Node, step: u64) {
        node.until_is(&format!("ranks in step {step}"), &(STAGES as usize), || {
            self.ranks(node).iter().filter(|rank| rank.1 >= Some(step)).count()
        });
    }

    /// Process and step of every rank that holds a lease.
    #[must_use]
    pub fn ranks(&self, node: &Node) -> Vec<(Pid, Option<u64>)> {
        let ranks = node.find_job(&self.job).map(|job| job.ranks).unwrap_or_default();
        ranks.iter().map(|rank| (rank.pid, rank.step)).collect()
    }

    /// Sends every rank a signal.
    pub fn signal_ranks(&self, node: &Node, signal: Signal) {
        let ranks = self.ranks(node);
        assert_eq!(ranks.len(), STAGES as usize);
        for (pid, _) in ranks {
            process::send(pid, signal);
        }
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> (ExitStatus, Value) {
        let status = self.process.wait();
        let printed = self.process.printed();
        let report = serde_json::from_str(&printed);
        (status, report.unwrap_or_else(|error| panic!("{error}: {}", self.process.errors())))
    }

    /// Asks it to stop, and checks that no step of it has failed.
    pub fn stop(mut self) -> Value {
        self.process.signal(Signal::SIGTERM);
        let (status, report) = self.wait();
        assert!(status.success(), "the training failed: {}", self.process.errors());
        assert_eq!(report["failed_steps"], 0, "{report}");
        report
    }
}

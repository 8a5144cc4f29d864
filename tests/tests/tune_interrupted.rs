//! `pfoctl tune` or the daemon ends in the middle of tuning: the job is at default clocks, nothing is
//! locked, and tuning it again continues with what was measured.

use std::process::Child;
use std::time::Duration;

use nix::sys::signal::Signal;
use pfo_protocol::{AgentRequest, AgentResponse, Pid, SweepState, SweepStatus};
use pfo_tests::{Identity, Node, Ran, STAGES, Training, process, true_profile, wait};
use serde_json::Value;

const JOB: &str = "job";
const MICROBATCHES: &str = "4";

/// Of instructions long enough for the counter.
const TIME_SCALE: &str = "0.05";

/// On a busy machine the daemon measures each clock of a sweep again, for much longer.
const SWEPT_WITHIN: Duration = Duration::from_secs(180);

const QUICKLY: [&str; 4] = ["--set", "rounds=2", "--steps", "8"];

/// Default clocks, the highest one, and one that is too slow to be measured again.
const SHORT_SWEEP: [&str; 6] =
    ["--set", "sweep_stride=500", "--set", "sweep_steps=3", "--set", "sweep_max_slowdown=0.2"];

/// The same with one more in between.
const SWEEP: [&str; 6] =
    ["--set", "sweep_stride=500", "--set", "sweep_steps=3", "--set", "sweep_max_slowdown=1"];

/// What tuning does before anything is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The daemon sweeps the job.
    Sweep,
    /// It has measured a clock, and sweeps on.
    LaterSweep,
    /// The job runs at default clocks, for the P2P-blocking power among others.
    DefaultClocks,
    /// The plan and default clocks take turns.
    Verification,
}

struct Tuning {
    node: Node,
    training: Training,
    /// True tables, for what needs no sweep.
    profile: String,
}

impl Tuning {
    fn start() -> Self {
        let node = Node::start();
        let profile = node.plan_file("profile.csv", true_profile(TIME_SCALE).as_bytes());
        let options = ["--microbatches", MICROBATCHES, "--time-scale", TIME_SCALE];
        let training = Training::start(&node, JOB, &Identity::own(), &options);
        training.until_leased(&node);
        training.until_step(&node, 1);
        Self { node, training, profile }
    }

    fn tune(&self, phase: Phase, arguments: &[&str]) -> Child {
        let tune = ["tune", JOB, "--max-slowdown", "50%", "--json"];
        // What a busy machine may not let be found out in a few steps is given.
        let given = [
            "--profile",
            self.profile.as_str(),
            "--set",
            "microbatches=4",
            "--set",
            "p2p_power_w=[70]",
        ];
        let profile = match phase {
            Phase::Sweep => &SHORT_SWEEP[..],
            Phase::LaterSweep => &SWEEP,
            Phase::DefaultClocks | Phase::Verification => &given,
        };
        self.node.begin_pfoctl(&Identity::own(), &[&tune[..], profile, arguments].concat())
    }

    /// Tunes until this phase, which it would be in for long.
    fn tune_until(&self, phase: Phase) -> Child {
        let endless: &[_] = match phase {
            Phase::Sweep | Phase::LaterSweep => &QUICKLY,
            Phase::DefaultClocks => &["--steps", "10000"],
            Phase::Verification => &["--set", "rounds=1000"],
        };
        let tuning = self.tune(phase, endless);
        self.until_in(phase);
        tuning
    }

    fn until_in(&self, phase: Phase) {
        let is_in = || {
            let job = self.node.job(JOB);
            let clocks = self.sweep().map(|sweep| sweep.measured);
            match phase {
                Phase::Sweep => clocks == Some(0) && self.locked() > 0,
                Phase::LaterSweep => clocks == Some(1) && self.locked() > 0,
                Phase::DefaultClocks => {
                    job.measured_by.is_some_and(|by| by.pid.is_some()) && job.plan.is_none()
                }
                Phase::Verification => job.plan.is_some_and(|plan| plan.label == "pfo 1"),
            }
        };
        let reached = wait::until_within(SWEPT_WITHIN, || is_in().then_some(()).ok_or(()));
        assert!(reached.is_ok(), "tuning was never in {phase:?}");
    }

    fn sweep(&self) -> Option<SweepStatus> {
        match self.node.agent_control().ask_agent(AgentRequest::Sweeps) {
            Ok(AgentResponse::Sweeps(sweeps)) => sweeps.into_iter().next(),
            other => panic!("the answer to a request for sweeps is {other:?}"),
        }
    }

    fn locked(&self) -> usize {
        (0..STAGES as usize).filter(|&gpu| self.node.machine.sm_lock(gpu).is_some()).count()
    }

    /// Waits until the job is as if it had never been tuned, and stays so.
    fn until_left_alone(&self) {
        self.node.until_is("who measures", &None, || self.node.job(JOB).measured_by);
        self.node.until_is("the job's plan", &None, || self.node.job(JOB).plan);
        self.node.until_is("GPUs with a lock", &0, || self.locked());
        let step = self.training.ranks(&self.node).iter().filter_map(|rank| rank.1).max();
        self.training.until_step(&self.node, step.unwrap_or(0) + 2);
        assert_eq!(self.locked(), 0);
    }

    /// Tunes to the end; returns the report. On a busy machine it may be that no saving is certain.
    fn finish(&self, tuning: Child) -> Value {
        let ran = Ran::from(tuning.wait_with_output().unwrap());
        assert!(matches!(ran.code, Some(0 | 5)), "{ran:?}");
        assert_eq!(self.node.job(JOB).plan.is_some(), ran.code == Some(0), "{ran:?}");
        ran.json()
    }

    /// Tunes again after a phase was interrupted; a sweep is gone on with.
    fn finish_after(self, phase: Phase) {
        let report = self.finish(self.tune(phase, &QUICKLY));
        if phase == Phase::LaterSweep {
            assert_eq!(report["profile_origin"], "measured", "{report}");
            assert!(report["profile_clocks_reused"].as_u64() > Some(0), "{report}");
        }
        self.training.stop();
    }
}

fn pfoctl_ends_in(phase: Phase, signal: Signal) -> Tuning {
    let tuned = Tuning::start();
    let tuning = tuned.tune_until(phase);
    process::send(Pid(tuning.id()), signal);
    let ran = Ran::from(tuning.wait_with_output().unwrap());
    assert_eq!(ran.code, (signal == Signal::SIGINT).then_some(130), "{ran:?}");
    tuned.until_left_alone();
    tuned
}

fn the_daemon_is_killed_in(phase: Phase) {
    let mut tuned = Tuning::start();
    let tuning = tuned.tune(phase, &QUICKLY);
    tuned.until_in(phase);
    tuned.node.kill_daemon();
    tuned.node.start_daemon();
    tuned.finish(tuning);
    tuned.training.stop();
}

fn both_are_killed_in(phase: Phase) -> Tuning {
    let mut tuned = Tuning::start();
    let mut tuning = tuned.tune_until(phase);
    tuned.node.kill_daemon();
    tuning.kill().unwrap();
    tuning.wait().unwrap();
    tuned.node.start_daemon();
    tuned.training.until_leased(&tuned.node);
    tuned.until_left_alone();
    tuned
}

#[test]
fn a_tune_killed_while_it_sweeps_continues_the_next_time() {
    pfoctl_ends_in(Phase::LaterSweep, Signal::SIGKILL).finish_after(Phase::LaterSweep);
}

#[test]
fn a_tune_killed_at_default_clocks_leaves_the_job_alone() {
    pfoctl_ends_in(Phase::DefaultClocks, Signal::SIGKILL).finish_after(Phase::DefaultClocks);
}

#[test]
fn a_tune_killed_while_it_verifies_leaves_the_job_alone() {
    pfoctl_ends_in(Phase::Verification, Signal::SIGKILL).finish_after(Phase::Verification);
}

#[test]
fn ctrl_c_while_it_sweeps_leaves_the_job_alone_and_the_sweep_paused() {
    let tuned = pfoctl_ends_in(Phase::Sweep, Signal::SIGINT);
    let state = tuned.sweep().unwrap().state;
    assert!(matches!(state, SweepState::Paused { why: Some(_) }), "{state:?}");
    tuned.training.stop();
}

#[test]
fn ctrl_c_at_default_clocks_leaves_the_job_alone() {
    pfoctl_ends_in(Phase::DefaultClocks, Signal::SIGINT).training.stop();
}

#[test]
fn ctrl_c_while_it_verifies_leaves_the_job_alone() {
    pfoctl_ends_in(Phase::Verification, Signal::SIGINT).training.stop();
}

#[test]
fn a_daemon_that_is_killed_while_it_sweeps_for_tune_is_waited_for() {
    the_daemon_is_killed_in(Phase::Sweep);
}

#[test]
fn a_daemon_that_is_killed_at_default_clocks_is_waited_for() {
    the_daemon_is_killed_in(Phase::DefaultClocks);
}

#[test]
fn a_daemon_that_is_killed_while_tune_verifies_is_waited_for() {
    the_daemon_is_killed_in(Phase::Verification);
}

#[test]
fn after_both_were_killed_nothing_continues_that_nobody_waits_for() {
    let tuned = both_are_killed_in(Phase::Sweep);
    let state = tuned.sweep().unwrap().state;
    assert!(matches!(state, SweepState::Paused { why: Some(_) }), "{state:?}");
    tuned.training.stop();
    both_are_killed_in(Phase::Verification).training.stop();
}

#[test]
fn a_second_tune_that_is_killed_takes_the_sweep_from_nobody() {
    let tuned = Tuning::start();
    let first = tuned.tune(Phase::Sweep, &QUICKLY);
    tuned.until_in(Phase::Sweep);
    let mut second = tuned.tune(Phase::Sweep, &QUICKLY);
    let waiting = || tuned.node.agent_log().matches("waits for the sweep").count();
    tuned.node.until_is("who waits", &2, waiting);
    second.kill().unwrap();
    second.wait().unwrap();
    tuned.finish(first);
    tuned.training.stop();
}

//! A daemon, `pfoctl` or the terminal ends in the middle of tuning: the tune continues. Who stops it has
//! the job at default clocks, nothing locked, and what was measured of the profile for the next time.

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

/// The agent measures a clock again where its steps scatter.
const SWEPT_WITHIN: Duration = Duration::from_secs(180);

const QUICKLY: [&str; 4] = ["--set", "rounds=4", "--steps", "8"];

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
        // What takes more steps than these tunes have is given.
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
                Phase::DefaultClocks => job.measured_by.is_some() && job.plan.is_none(),
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

    /// Waits for the end of a tune; returns the report.
    fn finish(&self, tuning: Child) -> Value {
        let ran = Ran::from(tuning.wait_with_output().unwrap());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(self.node.job(JOB).plan.is_some(), "{ran:?}");
        ran.json()
    }

    /// Watches the tune again.
    fn attach(&self) -> Child {
        self.node.begin_pfoctl(&Identity::own(), &["tune", JOB, "--attach", "--json"])
    }

    fn stop(&self) {
        let ran = self.node.pfoctl(&Identity::own(), &["tune", JOB, "--stop"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
}

/// A tune that goes on in this phase although its `pfoctl` got this signal.
fn pfoctl_is_lost_in(phase: Phase, signal: Signal) {
    let tuned = Tuning::start();
    let tuning = tuned.tune(phase, &QUICKLY);
    tuned.until_in(phase);
    process::send(Pid(tuning.id()), signal);
    let ran = Ran::from(tuning.wait_with_output().unwrap());
    assert_eq!(ran.code, (signal == Signal::SIGHUP).then_some(130), "{ran:?}");
    tuned.finish(tuned.attach());
    tuned.training.stop();
}

fn ctrl_c_in(phase: Phase) -> Tuning {
    let tuned = Tuning::start();
    let tuning = tuned.tune_until(phase);
    process::send(Pid(tuning.id()), Signal::SIGINT);
    let ran = Ran::from(tuning.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{ran:?}");
    tuned.until_left_alone();
    tuned
}

/// A tune that is watched while this happens in a phase, and goes on.
fn goes_on_after(phase: Phase, happens: impl FnOnce(&mut Node)) -> Value {
    let mut tuned = Tuning::start();
    let tuning = tuned.tune(phase, &QUICKLY);
    tuned.until_in(phase);
    happens(&mut tuned.node);
    let report = tuned.finish(tuning);
    tuned.training.stop();
    report
}

fn the_daemon_is_killed(node: &mut Node) {
    node.kill_daemon();
    node.start_daemon();
}

fn the_agent_is_killed(node: &mut Node) {
    node.kill_agent();
    node.start_agent();
}

#[test]
fn a_tune_whose_pfoctl_is_killed_while_it_sweeps_continues() {
    pfoctl_is_lost_in(Phase::LaterSweep, Signal::SIGKILL);
}

#[test]
fn a_tune_whose_pfoctl_is_killed_while_it_verifies_continues() {
    pfoctl_is_lost_in(Phase::Verification, Signal::SIGKILL);
}

#[test]
fn a_tune_whose_terminal_is_lost_continues() {
    pfoctl_is_lost_in(Phase::Verification, Signal::SIGHUP);
}

#[test]
fn ctrl_c_while_it_sweeps_leaves_the_job_alone_and_the_sweep_paused_for_the_next_time() {
    let tuned = ctrl_c_in(Phase::LaterSweep);
    let state = tuned.sweep().unwrap().state;
    assert!(matches!(state, SweepState::Paused { why: Some(_) }), "{state:?}");
    let report = tuned.finish(tuned.tune(Phase::LaterSweep, &QUICKLY));
    assert_eq!(report["profile_origin"], "measured", "{report}");
    assert!(report["profile_clocks_reused"].as_u64() > Some(0), "{report}");
    tuned.training.stop();
}

#[test]
fn ctrl_c_at_default_clocks_leaves_the_job_alone() {
    ctrl_c_in(Phase::DefaultClocks).training.stop();
}

#[test]
fn ctrl_c_while_it_verifies_leaves_the_job_alone() {
    ctrl_c_in(Phase::Verification).training.stop();
}

#[test]
fn a_tune_goes_on_when_the_daemon_was_killed_while_it_sweeps() {
    goes_on_after(Phase::Sweep, the_daemon_is_killed);
}

#[test]
fn a_tune_goes_on_when_the_daemon_was_killed_at_default_clocks() {
    goes_on_after(Phase::DefaultClocks, the_daemon_is_killed);
}

#[test]
fn a_tune_goes_on_when_the_daemon_was_killed_while_it_verifies() {
    goes_on_after(Phase::Verification, the_daemon_is_killed);
}

#[test]
fn a_tune_goes_on_when_the_agent_was_killed_while_it_sweeps() {
    let report = goes_on_after(Phase::LaterSweep, the_agent_is_killed);
    assert_eq!(report["profile_origin"], "measured", "{report}");
}

#[test]
fn a_tune_goes_on_when_the_agent_was_killed_at_default_clocks() {
    goes_on_after(Phase::DefaultClocks, the_agent_is_killed);
}

#[test]
fn a_tune_goes_on_when_the_agent_was_killed_while_it_verifies() {
    goes_on_after(Phase::Verification, the_agent_is_killed);
}

#[test]
fn what_a_tune_has_found_is_still_shown_after_a_restart_of_the_agent() {
    let mut tuned = Tuning::start();
    let report = tuned.finish(tuned.tune(Phase::Verification, &QUICKLY));
    the_agent_is_killed(&mut tuned.node);
    assert_eq!(tuned.finish(tuned.attach()), report);
    tuned.training.stop();
}

#[test]
fn a_job_is_tuned_once_at_a_time_and_its_tune_is_shown_until_it_is_stopped() {
    let tuned = Tuning::start();
    let tuning = tuned.tune_until(Phase::Verification);
    let second = tuned.node.pfoctl(&Identity::own(), &["tune", JOB]);
    assert_eq!(second.code, Some(4), "{second:?}");
    for words in ["is being tuned", "--attach", "--stop"] {
        assert!(second.stderr.contains(words), "no {words:?} in {second:?}");
    }
    let status = tuned.node.pfoctl(&Identity::own(), &["status"]).printed();
    assert!(status.contains("proving pfo 1, round") && status.contains(" left"), "{status}");
    tuned.stop();
    let ran = Ran::from(tuning.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{ran:?}");
    tuned.until_left_alone();
    tuned.training.stop();
}

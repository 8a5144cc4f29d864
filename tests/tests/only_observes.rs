//! A `pfod` that only observes, over a library that aborts whoever calls a setter.

use std::fs;

use nix::sys::signal::Signal;
use pfo_protocol::{Mhz, RefusalCode, Request, Response, SwapTarget, TrialRun};
use pfo_tests::control::after_settling;
use pfo_tests::{Daemon, Identity, MICROBATCHES, Node, STAGES, Setup, TestPlan, Training};

const JOB: &str = "job";

/// A node whose driver nobody survives who changes anything of a GPU.
fn deadly(mode: &'static str) -> Node {
    let mut node = Node::create(&Setup { mode, ..Setup::default() });
    node.machine.fault("setters", "crash", None);
    node.start_daemon();
    node.start_agent();
    node
}

fn observed() -> (Node, Training) {
    let node = deadly("observe");
    let training = Training::start(&node, JOB, &Identity::own(), &[]);
    training.until_leased(&node);
    training.until_step(&node, 1);
    (node, training)
}

fn plan(mhz: u32) -> TestPlan {
    TestPlan::new(STAGES, MICROBATCHES, |_, _| mhz)
}

/// Ends pfod in order, and checks that no setter was called in its life.
fn end(mut node: Node) {
    assert!(node.daemon.take().unwrap().stop().success(), "pfod died of a setter");
    for gpu in 0..STAGES as usize {
        assert!(node.machine.calls(gpu).is_empty(), "GPU {gpu}");
    }
}

#[test]
fn the_library_that_aborts_ends_a_pfod_that_controls() {
    let mut node = deadly("control");
    let training = Training::start(&node, JOB, &Identity::own(), &[]);
    let ended = node.daemon.as_mut().unwrap().process.wait();
    assert!(!ended.success(), "{ended}");
    node.machine.clear_faults();
    drop(training);
}

#[test]
fn a_plan_is_followed_as_if_and_every_name_of_it_says_so() {
    let (node, training) = observed();
    let step = training.take_up(&node, &plan(900));
    training.until_step(&node, step + 3);
    let status = node.job(JOB);
    let ran = status.plan.unwrap();
    assert!(ran.label.starts_with("as if: "), "{ran:?}");
    assert!(ran.suspended.is_none(), "{ran:?}");
    for rank in &status.ranks {
        assert_eq!((rank.clock_changes, rank.mismatched_steps), (0, 0), "{rank:?}");
        assert!(rank.problem.is_none() && rank.skipped_changes == 0, "{rank:?}");
    }
    for gpu in node.status().gpus {
        assert_eq!((gpu.requested_mhz, gpu.memory_locked_mhz), (None, None), "{gpu:?}");
    }
    let windows = status.windows.iter().filter_map(|window| window.plan.as_ref());
    assert!(windows.into_iter().all(|plan| plan.label.starts_with("as if: ")));
    let shown = node.pfoctl(&Identity::own(), &["status"]).printed();
    assert!(shown.contains("pfod only observes") && !shown.contains("in force"), "{shown}");
    training.stop();
    end(node);
}

#[test]
fn energy_is_measured_and_what_only_a_setting_could_show_is_refused() {
    let (node, training) = observed();
    let mut client = node.agent_control();
    let trial = client.record(JOB, TrialRun::DefaultClocks, after_settling(3), false).unwrap();
    assert!(trial.trial.steps.iter().all(|step| step.energy_j.unwrap() > 0.0), "{trial:?}");
    assert!(trial.ranks.iter().all(|rank| rank.rows.len() == 2), "{trial:?}");
    drop(client);
    for run in [TrialRun::Uniform(Mhz(900)), TrialRun::FreeMemory] {
        let refusal = node.agent_control().trial(JOB, run, 2).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::NotAuthorized, "{refusal}");
        assert!(refusal.message.contains("only observes"), "{refusal}");
    }
    training.stop();
    node.until_so("the leases are over", || node.status().gpus.iter().all(|gpu| !gpu.leased));
    let reset = Request::ClocksReset { gpu: None, all: true };
    let Response::Reset(outcomes) = node.control().ask(reset).unwrap() else { panic!() };
    assert!(outcomes.iter().all(|of| !of.restored && of.outcome.contains("only observes")));
    end(node);
}

#[test]
fn a_job_goes_on_over_a_death_of_pfod_and_its_own_and_nothing_is_restored() {
    let (mut node, training) = observed();
    let step = training.take_up(&node, &plan(900));
    training.until_step(&node, step + 1);
    node.kill_daemon();
    node.start_daemon();
    training.until_leased(&node);
    training.signal_ranks(&node, Signal::SIGKILL);
    node.until_so("the ranks are gone", || {
        node.find_job(JOB).is_none_or(|job| job.ranks.is_empty())
    });
    end(node);
}

#[test]
fn what_an_earlier_pfod_left_locked_stays_until_the_last_resort_is_asked() {
    let mut node = Node::create(&Setup { mode: "observe", ..Setup::default() });
    let controls = fs::read_to_string(node.config()).unwrap().replace("\"observe\"", "\"control\"");
    let observes = fs::read_to_string(node.config()).unwrap();
    fs::write(node.config(), controls).unwrap();
    node.start_daemon();
    let training = Training::start_on_plan(&node, JOB, &Identity::own(), &plan(900));
    node.kill_daemon();
    fs::write(node.config(), observes).unwrap();
    drop(training);
    node.machine.fault("setters", "crash", None);
    node.start_daemon();
    let status = node.status().daemon;
    assert!(status.only_observes && status.unrestored.len() == STAGES as usize, "{status:?}");
    assert!(node.swap(JOB, SwapTarget::Loaded).is_err());
    let _ = node.daemon.take().unwrap().stop();
    node.machine.clear_faults();
    assert_eq!(node.machine.sm_lock(0), Some(900), "nothing was restored");
    assert!(Daemon::start(&node, &["--restore-only"]).process.wait().success());
    assert_eq!(node.machine.sm_lock(0), None, "the last resort restores whatever the mode is");
}

//! A `pfod` that only observes, over a library that aborts whoever calls a setter.

use std::fs;

use nix::sys::signal::Signal;
use pfo_protocol::{Mhz, RefusalCode, Request, Response, SwapTarget, TrialRun};
use pfo_tests::control::after_settling;
use pfo_tests::{Daemon, Identity, MICROBATCHES, Node, STAGES, Setup, TestPlan, Training};

const JOB: &str = "job";

fn observed() -> (Node, Training) {
    let node = Node::start_with(&Setup { mode: "observe", ..Setup::default() });
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
    let mut node = Node::start();
    node.machine.fault("setters", "crash", None);
    let training = Training::start(&node, JOB, &Identity::own(), &[]);
    let ended = node.daemon.take().unwrap().process.wait();
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
fn nothing_that_is_shown_says_that_a_plan_is_in_force() {
    let (node, training) = observed();
    let file = node.directory().join("plan.json");
    fs::write(&file, plan(900).to_json()).unwrap();
    let (file, page) = (file.display().to_string(), node.directory().join("page.html"));
    let page = page.display().to_string();
    let swapped = node.pfoctl(&Identity::own(), &["plan", "swap", JOB, &file, "--wait"]).printed();
    assert!(swapped.contains("plan 1 as if: plan.json (predicted"), "{swapped}");
    for arguments in [
        &["status"][..],
        &["status", "--jobs", JOB],
        &["plan", "list", JOB],
        &["report", JOB, "-o", &page],
        &["doctor"],
        &["savings"],
        &["lease", "list"],
    ] {
        let ran = node.pfoctl(&Identity::own(), arguments);
        let shown = ran.stdout + &ran.stderr;
        let mut lines = shown.lines().filter(|line| !line.contains(".toml"));
        assert!(lines.all(|line| !line.contains("in force")), "{arguments:?}: {shown}");
    }
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("as if: plan.json") && !page.contains("in force"), "{page}");
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
    let mut node = Node::start_with(&Setup::without_agent());
    let controls = fs::read_to_string(node.config()).unwrap();
    let observes = controls.replace("\"control\"", "\"observe\"");
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

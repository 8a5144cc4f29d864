//! `pfoctl tune` with Zeus' search over power limits, on a training.

use std::process::Child;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pfo_protocol::SwapTarget;
use pfo_tests::{Identity, Node, Ran, STAGES, Training};
use serde_json::Value;

const JOB: &str = "job";

/// Of instructions long enough that what else the machine does matters little.
const TIME_SCALE: &str = "0.05";

fn start() -> (Node, Training) {
    let node = Node::start();
    let training = Training::start(&node, JOB, &Identity::own(), &["--time-scale", TIME_SCALE]);
    training.until_leased(&node);
    training.until_step(&node, 1);
    (node, training)
}

/// Waits until the job runs as it does without pfo.
fn until_as_before(node: &Node) {
    node.until_is("the job's plan", &None, || node.job(JOB).plan);
    node.machine.assert_power_limits_are_defaults();
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Searches 300, 200 and 100 W as Zeus does, and returns the report.
fn searched(node: &Node, policy: &str) -> Value {
    let tune = ["compare", "tune", JOB, "--policy", policy, "--zeus-eta", "1", "--json"];
    let loosely = ["--max-slowdown", "60%", "--rounds", "4", "--steps", "3"];
    // A limit is in force some time after a step's first event.
    let search = ["--power-step-w", "100", "--search-steps", "1", "--settling-steps", "3"];
    let report =
        node.pfoctl(&Identity::own(), &[&tune[..], &loosely, &search].concat()).tune_report();
    assert!(report["searched"].as_array().unwrap().len() >= 3, "{report}");
    report
}

#[test]
fn zeus_leaves_the_job_under_the_power_limits_that_it_proved() {
    let (node, training) = start();
    for policy in ["zeus-global", "zeus-per-stage"] {
        let report = searched(&node, policy);
        assert!(!report["kept"].is_null(), "{report}");
        let kept = report["kept"]["power_limits_w"].clone();
        let kept: Vec<u32> = serde_json::from_value(kept).unwrap();
        let in_force: Vec<_> =
            (0..STAGES as usize).map(|gpu| node.machine.power_limit_w(gpu)).collect();
        assert_eq!(in_force, kept.iter().copied().map(f64::from).collect::<Vec<_>>(), "{report}");
        assert_eq!(node.job(JOB).plan.unwrap().power_limits_w, kept);
    }
    node.swap(JOB, SwapTarget::DefaultClocks).unwrap();
    until_as_before(&node);
    training.stop();
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn zeus_finds_the_limit_below_which_a_step_takes_more_energy_again() {
    let (node, training) = start();
    for policy in ["zeus-global", "zeus-per-stage"] {
        let report = searched(&node, policy);
        assert!(number(&report["tried"][0]["saving"]["low"]) > 0.0, "{report}");
        let trials = report["searched"].as_array().unwrap().iter();
        let energies_j: Vec<_> = trials.map(|trial| number(&trial["iteration_energy_j"])).collect();
        let least_j = energies_j.iter().copied().fold(f64::INFINITY, f64::min);
        let ends_j = [energies_j.first(), energies_j.last()];
        assert!(ends_j.into_iter().flatten().all(|end_j| least_j < 0.95 * end_j), "{report}");
    }
    training.stop();
}

/// Begins a search, and waits until it tries a limit below the default.
fn begin_search(node: &Node) -> Child {
    // It begins with the highest, which is what is there anyway.
    let tune = ["compare", "tune", JOB, "--policy", "zeus-global", "--rounds", "1000"];
    let searching = node.begin_pfoctl(&Identity::own(), &tune);
    until_limited(node);
    searching
}

fn until_limited(node: &Node) {
    let limited = || node.machine.power_limit_w(0) < node.machine.default_power_limit_w(0);
    node.until_so("a lower power limit is tried", limited);
}

fn stop_search(node: &Node) {
    let ran = node.pfoctl(&Identity::own(), &["tune", JOB, "--stop"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn a_search_over_power_limits_that_is_interrupted_leaves_none() {
    let (node, training) = start();
    let searching = begin_search(&node);
    kill(Pid::from_raw(searching.id().cast_signed()), Signal::SIGINT).unwrap();
    let ran = Ran::from(searching.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{ran:?}");
    until_as_before(&node);
    training.stop();
}

#[test]
fn a_search_over_power_limits_whose_pfoctl_was_killed_leaves_none_when_it_is_stopped() {
    let (node, training) = start();
    let mut searching = begin_search(&node);
    searching.kill().unwrap();
    searching.wait().unwrap();
    stop_search(&node);
    until_as_before(&node);
    training.stop();
}

#[test]
fn a_search_over_power_limits_whose_daemon_was_killed_leaves_none_when_it_is_stopped() {
    let (mut node, training) = start();
    let searching = begin_search(&node);
    node.kill_daemon();
    node.start_daemon();
    training.until_leased(&node);
    stop_search(&node);
    let ran = Ran::from(searching.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{ran:?}");
    until_as_before(&node);
    training.stop();
}

//! A node that leaves for good: what was planned and measured there is used by the others, in the next run
//! of the job without it.

use pfo_protocol::{SweepState, SweepStatus};
use pfo_tests::{Identity, Node, kept_plan, wait};

use super::cluster::{JOB, NODES, PATIENCE};
use super::slow_node::{SLOW, make_slow, setup};
use super::staged::{Staged, frontier, pfoctl};
use super::swept::{swept, until_swept_within};

/// The node at which everything is asked for, and that leaves.
const GONE: usize = 1;

fn until_swept(node: &Node, what: &str, so: impl Fn(&SweepStatus) -> bool) -> SweepStatus {
    until_swept_within(2 * PATIENCE, node, what, so)
}

/// Checks that nothing is left of the node in the store beside its job's former run and what it saved.
fn assert_little_is_left(staged: &Staged) {
    let left = staged.store.keys_with(&format!("/{}", NODES[GONE]));
    let saved = format!("/pfo/1/savings/{}", NODES[GONE]);
    let is_of_former = |key: &str| key.contains("@77.0/") && key.starts_with("/pfo/1/job/");
    assert!(left.iter().all(|key| *key == saved || is_of_former(key)), "{left:?}");
}

/// Has the job run a plan. A sweep that is about to let the job go, and an answer to a slow stage that takes the
/// place of the plan, are in the way for a moment.
fn swap_to(node: &Node, plan: &str) {
    let swap = ["plan", "swap", JOB, plan, "--wait"];
    let swapped = wait::until_within(PATIENCE, || match node.pfoctl(&Identity::own(), &swap) {
        ran if ran.code == Some(0) => Ok(()),
        ran => Err(ran),
    });
    swapped.unwrap_or_else(|ran| panic!("{ran:?}"));
}

#[test]
fn what_was_made_on_a_node_that_leaves_for_good_goes_on_without_it() {
    let Some(mut staged) = Staged::start_with(setup) else { return };
    make_slow(&staged.nodes[SLOW], false);
    let sweep = ["profile", "start", JOB, "--steps", "2", "--stride", "200", "--min-mhz", "600"];
    pfoctl(&staged.nodes[GONE], &sweep);
    until_swept(&staged.nodes[GONE], "a clock is measured", |sweep| sweep.measured > 0);
    // The agent that sweeps is killed, and the next one goes on.
    staged.nodes[GONE].kill_agent();
    staged.nodes[GONE].start_agent();
    let gone = &staged.nodes[GONE];
    until_swept(gone, "it goes on", |sweep| sweep.measured > 1);
    pfoctl(gone, &["profile", "pause", JOB]);

    let [file, own] = frontier(gone, "1.15x");
    pfoctl(gone, &["plan", "load", JOB, &file]);
    swap_to(gone, &own);
    pfoctl(gone, &["job", "straggler", JOB, "--auto"]);
    let paused = swept(gone).unwrap();
    pfoctl(gone, &["profile", "resume", JOB]);
    let before = until_swept(gone, "a clock more", |sweep| sweep.measured > paused.measured);
    assert!(!matches!(before.state, SweepState::Ended(_)), "{before:?}");
    // What it has measured last is in the store in a moment.
    std::thread::sleep(std::time::Duration::from_secs(3));

    staged.nodes[GONE].kill_agent();
    staged.nodes[GONE].kill_daemon();
    let staged = staged.requeued_without(GONE);
    let [first, second, last] = &staged.nodes[..] else { panic!() };

    let listed = || pfoctl(first, &["fleet", "status"]);
    first.until_so("it is not listed", || !listed().contains(NODES[GONE]));
    assert_little_is_left(&staged);

    // The others run what all of them ran, and slow stages are answered by the node with rank 0.
    staged.until_all_run(|label| label == "own.json");
    let answers = wait::until_within(PATIENCE, || match staged.whole(1).answered_by {
        Some(node) if node == NODES[0] => Ok(()),
        other => Err(other),
    });
    answers.unwrap_or_else(|other| panic!("{other:?} answers"));
    staged.until_all_run(|label| label == "own.json");

    // The sweep goes on where it was, on the node with rank 0.
    let going_on = until_swept(first, "it goes on there", |_| true);
    assert!(going_on.measured >= before.measured, "{before:?}, then {going_on:?}");
    let is_over = |sweep: &SweepStatus| matches!(sweep.state, SweepState::Ended(_));
    let ended = until_swept(first, "it ends", is_over);
    assert!(ended.measured > before.measured, "{before:?}, then {ended:?}");

    // A job that was swept runs default clocks, and any node may have it run a plan of its frontier.
    let file = frontier(second, "1.15x")[1].clone();
    swap_to(second, &file);
    // pfod has locked the memory clocks again, with the first plan of this run.
    make_slow(last, false);
    staged.assert_all_run("own.json");
    pfoctl(last, &["job", "straggler", JOB, "1.3", "--wait"]);
    staged.until_all_run(|label| label.ends_with("at 1.3x"));
    pfoctl(second, &["job", "straggler", JOB, "--clear", "--wait"]);
    staged.assert_all_run("own.json");
    make_slow(last, true);
    staged.until_all_run(|label| label.ends_with(", replanned"));
    make_slow(last, false);
    staged.assert_all_run("own.json");
    pfoctl(last, &["job", "straggler", JOB, "--auto", "off"]);

    tunes_with_what_was_measured(&staged, 1);
    staged.training.stop();
}

fn tunes_with_what_was_measured(staged: &Staged, node: usize) {
    stores_the_profile_without_a_step_of_the_job(&staged.nodes[0], &staged.nodes[node + 1]);
    let report = staged.tune(node, &["--max-slowdown", "50%"]);
    assert_eq!(report["profile_origin"], "stored", "{report}");
    assert!(kept_plan(&report)["saving"]["low"].as_f64() > Some(0.0), "{report}");
}

fn stores_the_profile_without_a_step_of_the_job(first: &Node, other: &Node) {
    let csv = |node: &Node| node.directory().join("exported.csv").display().to_string();
    pfoctl(other, &["profile", "start", JOB, "--reuse"]);
    let exported = [first, other].map(|node| {
        pfoctl(node, &["profile", "export", JOB, "-o", &csv(node)]);
        std::fs::read_to_string(csv(node)).unwrap()
    });
    assert_eq!(exported[0], exported[1]);
}

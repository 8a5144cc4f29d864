//! A plan that makes the steps of a job over four nodes longer than its guard allows.

use std::time::Duration;

use pfo_protocol::GuardStatus;
use pfo_tests::{Identity, Setup, wait};

use super::cluster::{JOB, NODES};
use super::staged::{Staged, frontier};

/// Longer than six comparisons take.
const PATIENCE: Duration = Duration::from_secs(600);

fn until_every_node_knows(staged: &Staged, what: &str, so: impl Fn(&GuardStatus) -> bool) {
    for (node, name) in staged.nodes.iter().zip(NODES) {
        let guard = || node.find_watched(JOB).and_then(|job| job.guard);
        let seen = wait::until_within(PATIENCE, || match guard() {
            Some(guard) if so(&guard) => Ok(()),
            other => Err(other),
        });
        seen.unwrap_or_else(|guard| panic!("{name}: never {what}: {guard:?}"));
    }
}

#[test]
fn a_plan_that_is_too_slow_is_given_up_on_all_nodes_or_corrected_where_the_frontier_is() {
    let Some(staged) = Staged::start_with(|_| Setup::default()) else { return };
    let asked = &staged.nodes[1];
    let run = |arguments: &[&str]| asked.pfoctl(&Identity::own(), arguments).printed();
    let [frontier, own] = frontier(asked, "1.5x");
    let _ = run(&["plan", "swap", JOB, &own, "--guard", "5%", "--wait"]);
    until_every_node_knows(&staged, "given up", |guard| guard.given_up.is_some());
    for node in &staged.nodes {
        node.until_so("it is at default clocks", || node.job(JOB).plan.is_none());
    }

    let _ = run(&["plan", "load", JOB, &frontier]);
    let _ = run(&["plan", "swap", JOB, &own, "--guard", "15%", "--wait"]);
    until_every_node_knows(&staged, "corrected", |guard| guard.corrected.is_some());
    staged.until_all_run(|label| label != "own.json");
    staged.training.stop();
}

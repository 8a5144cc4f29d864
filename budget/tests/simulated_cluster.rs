//! A cluster of jobs that come and end stays below its budget, and loses little more than it has to.

use std::sync::LazyLock;

use crate::cluster::kind::{Kind, kinds};
use crate::cluster::policy::Policy;
use crate::cluster::{Cluster, Outcome, TICK_S};

const JOBS: usize = 100;
const HOUR_S: f64 = 3600.0;

fn outcome(policy: Policy, without: usize, budget_w: f64) -> Outcome {
    static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(kinds);
    let mut cluster = Cluster::new(&KINDS, JOBS, without, 1);
    cluster.run(policy, HOUR_S, |_| budget_w, |_, _, _| {}).unwrap()
}

/// Checks that jobs make at least this share of the progress that perfect knowledge could have had, under a budget of
/// each share. Of each four jobs, `without` have no frontier.
fn assert_progress(without: usize, least: [(f64, f64); 3]) {
    let full = outcome(Policy::Frontiers, without, 1e12);
    for (share, least) in least {
        let budget_w = Cluster::budget_w(&full, share);
        let ours = outcome(Policy::Frontiers, without, budget_w);
        let progress = ours.progress / ours.optimum;
        println!("{share}: {progress:.4} of the optimum, {ours:?}");
        assert!(progress >= least, "{share}: {progress}, {ours:?}");
        assert!(ours.used_j >= 0.97 * ours.usable_j, "{share}: {ours:?}");
        assert!(ours.longest_s <= ours.slowest_step_s + TICK_S, "{share}: {ours:?}");
    }
}

#[test]
fn a_cluster_of_frontiers_loses_little_to_what_it_does_not_know() {
    assert_progress(0, [(0.95, 0.99), (0.8, 0.985), (0.5, 0.965)]);
}

#[test]
fn jobs_without_a_frontier_cost_little_more_once_they_were_measured() {
    assert_progress(2, [(0.95, 0.985), (0.8, 0.985), (0.5, 0.95)]);
    assert_progress(4, [(0.95, 0.985), (0.8, 0.985), (0.5, 0.95)]);
}

#[test]
fn others_get_less_progress_from_the_same_watts_even_if_they_know_everything() {
    let full = outcome(Policy::Frontiers, 0, 1e12);
    for share in [0.95, 0.8, 0.6] {
        let budget_w = Cluster::budget_w(&full, share);
        let ours = outcome(Policy::Frontiers, 0, budget_w);
        for other in &Policy::ALL[1..] {
            let theirs = outcome(*other, 0, budget_w);
            println!("{share}: {} {:.4}", other.name(), theirs.progress / ours.optimum);
            assert!(1.03 * theirs.progress < ours.progress, "{share}: {} {theirs:?}", other.name());
        }
    }
}

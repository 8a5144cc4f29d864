//! A cluster of jobs that come and end stays below its budget, and loses little more than it has to.

use crate::cluster::kind::kinds;
use crate::cluster::policy::Policy;
use crate::cluster::{Cluster, Outcome, TICK_S};

const JOBS: usize = 100;
const HOUR_S: f64 = 3600.0;

fn outcome(policy: Policy, budget_w: f64) -> Outcome {
    let kinds = kinds();
    Cluster::new(&kinds, JOBS, 1).run(policy, HOUR_S, |_| budget_w, |_, _, _| {}).unwrap()
}

#[test]
fn a_cluster_stays_below_its_budget_and_loses_no_more_than_one_percent_to_what_it_does_not_know() {
    let full_w = outcome(Policy::Frontiers, 1e12).mean_w;
    for share in [0.95, 0.9, 0.8, 0.7] {
        let ours = outcome(Policy::Frontiers, share * full_w);
        println!("{share}: {:.4} of the optimum, {ours:?}", ours.progress / ours.optimum);
        assert!(ours.progress >= 0.99 * ours.optimum, "{share}: {ours:?}");
        assert!(ours.longest_s <= ours.slowest_step_s + TICK_S, "{share}: {ours:?}");
        for other in &Policy::ALL[1..] {
            let theirs = outcome(*other, share * full_w);
            println!("    {}: {:.4}", other.name(), theirs.progress / ours.optimum);
            assert!(theirs.progress < ours.progress, "{share}: {} {theirs:?}", other.name());
        }
    }
}

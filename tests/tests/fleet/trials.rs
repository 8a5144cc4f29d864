//! Plans that are measured on all nodes of a job, while what measures them is killed.

use std::fs;
use std::process::Child;

use pfo_tests::{Identity, Ran};
use serde_json::Value;

use super::cluster::{Cluster, JOB, PLANS, plan};

/// Runs both plans one after the other, asked on some node.
pub(crate) fn sweep(cluster: &Cluster, node: usize) -> Child {
    let directory = cluster.nodes[node].directory().join("plans");
    fs::create_dir_all(&directory).unwrap();
    for base in PLANS {
        fs::write(directory.join(format!("{base:05}.json")), plan(base).to_json()).unwrap();
    }
    let (plans, csv) = (directory.display().to_string(), directory.join("measured.csv"));
    let csv = csv.display().to_string();
    let arguments = ["plan", "sweep", JOB, &plans, "--steps", "4", "-o", &csv, "--json"];
    cluster.nodes[node].begin_pfoctl(&Identity::own(), &arguments)
}

/// Waits for a sweep: both plans were measured, on all nodes.
pub(crate) fn assert_swept(asked: Child) {
    let ran = Ran::from(asked.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let measured: Value = ran.json();
    let plans = measured["plans"].as_array().unwrap();
    assert_eq!(plans.len(), PLANS.len(), "{measured}");
    for plan in plans {
        // Predictions are of one rank of each stage: all of them were measured.
        assert_eq!(plan["steps"], 4, "{measured}");
        assert!(plan["predicted_energy_j"].as_f64().is_some(), "{measured}");
    }
}

#[test]
fn whatever_is_killed_all_nodes_run_what_is_measured_and_default_clocks_in_the_end() {
    let Some(mut cluster) = Cluster::start() else { return };

    // Who asked is killed: nobody measures the job any more.
    let mut asked = sweep(&cluster, 0);
    cluster.until_all_run(PLANS[0]);
    let first = cluster.file(1, PLANS[0]);
    let refused = cluster.nodes[1].pfoctl(&Identity::own(), &["plan", "swap", JOB, &first]);
    assert!(refused.stderr.contains("begun on node node-a holds"), "{refused:?}");
    asked.kill().unwrap();
    asked.wait().unwrap();
    cluster.until_at_default_clocks();

    // The agent that was asked is killed with it.
    let mut asked = sweep(&cluster, 0);
    cluster.until_all_run(PLANS[0]);
    cluster.nodes[0].kill_agent();
    asked.kill().unwrap();
    asked.wait().unwrap();
    cluster.nodes[0].start_agent();
    cluster.until_at_default_clocks();

    // Another agent is killed, and then that which was asked: the sweep goes on when they are back.
    let asked = sweep(&cluster, 0);
    cluster.until_all_run(PLANS[0]);
    cluster.nodes[2].kill_agent();
    cluster.nodes[2].start_agent();
    cluster.until_all_run(PLANS[1]);
    cluster.nodes[0].kill_agent();
    cluster.nodes[0].start_agent();
    assert_swept(asked);
    cluster.converges(None);
}

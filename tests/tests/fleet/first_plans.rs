//! A plan that is kept for a job, on one of its nodes only.

use pfo_tests::{EtcdSetup, Identity, Node, wait};

use super::cluster::{Cluster, JOB, PATIENCE, PLANS, plan};

/// Steps in which a swap of the whole job would have come about.
const A_WHILE: usize = 60;

/// Keeps a plan for the job on a node.
fn load(node: &Node, base: u32) {
    let file = node.plan_file(&format!("{base}.json"), &plan(base).to_json());
    let loaded = node.pfoctl(&Identity::own(), &["plan", "load", "--for", JOB, &file]);
    assert_eq!(loaded.code, Some(0), "{loaded:?}");
}

/// What a node says of the plan that it keeps.
fn kept(node: &Node) -> String {
    let listed = node.pfoctl(&Identity::own(), &["plan", "list", "--json"]).json();
    listed[0]["state"].to_string()
}

fn still_runs_after_a_while(cluster: &Cluster, base: u32) {
    let from = cluster.training.steps();
    wait::until_within(PATIENCE, || match cluster.training.steps() - from {
        A_WHILE.. => Ok(()),
        steps => Err(steps),
    })
    .unwrap();
    assert_eq!(cluster.training.last(), [Some(base); 4]);
}

#[test]
fn a_plan_that_one_node_keeps_is_the_whole_jobs_once_and_undoes_no_later_swap() {
    let [first, later] = PLANS;
    let before = |nodes: &[Node]| load(&nodes[1], first);
    let Some(mut cluster) = Cluster::start_after(&EtcdSetup::default(), None, before) else {
        return;
    };
    cluster.until_all_run(first);

    let file = cluster.file(2, later);
    cluster.swap(2, &["plan", "swap", JOB, &file], |_| {});
    cluster.until_all_run(later);
    // The next agent does not know whether the one before it has asked.
    cluster.nodes[1].kill_agent();
    cluster.nodes[1].start_agent();
    cluster.nodes[1]
        .until_so("the agent has seen the job", || kept(&cluster.nodes[1]).contains("NextRun"));
    still_runs_after_a_while(&cluster, later);

    // On the node of the first rank, for the next run.
    load(&cluster.nodes[0], first);
    assert!(kept(&cluster.nodes[0]).contains("NextRun"), "{}", kept(&cluster.nodes[0]));
    still_runs_after_a_while(&cluster, later);
    cluster.ends_without_a_lock();
}

//! A plan that is guarded over four nodes: it is compared with default clocks on all of them at once.

use pfo_tests::{Identity, wait};

use super::cluster::{Cluster, JOB, NODES, PATIENCE, PLANS};

#[test]
fn a_guarded_plan_is_compared_on_all_nodes_and_runs_again_whatever_is_killed() {
    let Some(mut cluster) = Cluster::start() else { return };
    let file = cluster.file(1, PLANS[0]);
    cluster.swap(1, &["plan", "swap", JOB, &file, "--guard", "500%"], |_| {});
    cluster.until_all_run(PLANS[0]);

    // Who compares is killed while all nodes are at default clocks: the plan runs again.
    cluster.until_at_default_clocks();
    cluster.nodes[1].kill_agent();
    cluster.nodes[1].start_agent();
    cluster.until_all_run(PLANS[0]);

    // The next one goes on, and every node knows of it.
    let guard = |node: usize| cluster.nodes[node].find_watched(JOB).and_then(|job| job.guard);
    for node in 0..NODES.len() {
        let compared = wait::until_within(PATIENCE, || match guard(node) {
            Some(guard) if guard.slowdown.is_some() => Ok(guard),
            other => Err(other),
        });
        let guard = compared.unwrap_or_else(|other| panic!("never compared: {other:?}"));
        assert_eq!((guard.max_slowdown, guard.given_up), (5.0, None));
    }
    cluster.converges(Some(PLANS[0]));
    let status = cluster.nodes[3].pfoctl(&Identity::own(), &["status", "--job", JOB]).printed();
    assert!(status.contains("Node node-b compares its plans"), "{status}");

    // A comparison is nothing that a rollback leads to.
    cluster.swap(2, &["plan", "rollback", JOB], |_| {});
    cluster.converges(None);
    let off = cluster.nodes[2].pfoctl(&Identity::own(), &["plan", "guard", JOB, "--off"]);
    assert_eq!(off.code, Some(0), "{off:?}");
    assert_eq!(cluster.nodes[0].find_watched(JOB).and_then(|job| job.guard), None);
    cluster.assert_same_everywhere();
}

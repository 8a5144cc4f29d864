//! The door beside the agreement: a node whose agent is away does not change alone.

use pfo_tests::Identity;

use super::cluster::{Cluster, JOB, NODES, PLANS};

#[test]
fn a_node_whose_agent_is_away_changes_alone_only_if_one_insists() {
    let Some(mut cluster) = Cluster::start() else { return };
    let user = Identity::own();
    let first = cluster.file(0, PLANS[0]);
    cluster.swap(0, &["plan", "swap", JOB, &first], |_| {});
    cluster.converges(Some(PLANS[0]));

    let second = cluster.file(1, PLANS[1]);
    cluster.nodes[1].kill_agent();
    let swap = ["plan", "swap", JOB, &second, "--wait"];
    for request in [&swap[..], &["plan", "rollback", JOB]] {
        let refused = cluster.nodes[1].pfoctl(&user, request);
        assert_eq!(refused.code, Some(4), "{refused:?}");
        assert!(refused.stderr.contains("has 4 ranks, 1 on this node"), "{refused:?}");
    }
    cluster.until_all_run(PLANS[0]);

    let alone = cluster.nodes[1].pfoctl(&user, &[&swap[..], &["--this-node-only"]].concat());
    assert_eq!(alone.code, Some(0), "{alone:?}");
    cluster.nodes[1].start_agent();
    // The other nodes hear of it a moment after it runs what they run.
    cluster.until("the node that changed alone is reported", |job| {
        job.nodes.iter().any(|member| member.node == NODES[1] && member.late.is_some())
    });
    cluster.converges(Some(PLANS[0]));
    cluster.ends_without_a_lock();
}

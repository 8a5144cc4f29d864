//! A node whose link to the store is cut and mended, in network namespaces.

use std::thread::sleep;
use std::time::Duration;

use pfo_tests::{EtcdSetup, Identity, Link, wait};

use super::cluster::{Cluster, JOB, NODES, PATIENCE, PLANS};
use super::trials::{assert_swept, sweep};

/// The node behind the link.
const BEHIND: usize = 1;

/// Waits until the others have the node no more.
fn until_gone(cluster: &Cluster) {
    let seen = wait::until_within(PATIENCE, || {
        let job = cluster.job(0).ok_or_else(String::new)?;
        let is_there = job.nodes.iter().any(|member| member.node == NODES[BEHIND]);
        if is_there { Err(format!("{job:?}")) } else { Ok(()) }
    });
    seen.unwrap_or_else(|job| panic!("{} does not leave: {job}", NODES[BEHIND]));
}

#[test]
fn a_link_that_is_cut_in_swaps_and_sweeps_and_mended_leaves_nothing_to_do_by_hand() {
    let Some(link) = Link::create() else { return };
    let setup = EtcdSetup { members: 3, address: Some(link.address()), quota_bytes: None };
    let Some(mut cluster) = Cluster::start_with(&setup, Some((BEHIND, &link))) else { return };
    let [first, second] = PLANS.map(|base| cluster.file(0, base));
    cluster.swap(0, &["plan", "swap", JOB, &first], |_| {});
    cluster.converges(Some(PLANS[0]));

    // In a swap that another node was asked for: it takes place or not, and there too once it is back.
    let asked = cluster.nodes[0].begin_pfoctl(&Identity::own(), &["plan", "swap", JOB, &second]);
    sleep(Duration::from_millis(300));
    link.cut();
    asked.wait_with_output().unwrap();
    until_gone(&cluster);
    let steps = cluster.training.steps();
    link.mend();
    cluster.swap(0, &["plan", "swap", JOB, &second], |_| {});
    cluster.converges(Some(PLANS[1]));
    assert!(cluster.training.steps() > steps, "training stands still");

    // In a sweep that another node was asked for: it waits, and measures everything.
    let asked = sweep(&cluster, 0);
    cluster.until_all_run(PLANS[0]);
    link.cut();
    until_gone(&cluster);
    link.mend();
    assert_swept(asked);
    cluster.converges(None);

    // In a sweep that this node was asked for.
    let asked = sweep(&cluster, BEHIND);
    cluster.until_all_run(PLANS[0]);
    link.cut();
    until_gone(&cluster);
    link.mend();
    assert_swept(asked);
    cluster.converges(None);

    // Who asked for a sweep there gives up meanwhile: the job returns to default clocks.
    let mut asked = sweep(&cluster, BEHIND);
    cluster.until_all_run(PLANS[0]);
    link.cut();
    asked.kill().unwrap();
    asked.wait().unwrap();
    until_gone(&cluster);
    link.mend();
    cluster.converges(None);
    cluster.ends_without_a_lock();
}

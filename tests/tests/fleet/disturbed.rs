//! What happens to the store, to certificates and to `pfod` while a job over four nodes is swapped.

use std::thread::sleep;
use std::time::Duration;

use pfo_protocol::FleetOutcome;
use pfo_tests::{EtcdSetup, Identity, wait};

use super::cluster::{Cluster, JOB, NODES, PATIENCE, PLANS};

#[test]
fn the_leader_of_the_store_and_a_pfod_are_killed_in_the_middle_of_swaps() {
    let setup = EtcdSetup { members: 3, ..EtcdSetup::default() };
    let Some(mut cluster) = Cluster::start_with(&setup, None) else { return };
    let files = PLANS.map(|base| cluster.file(0, base));
    let [first, second] = files.each_ref().map(|file| ["plan", "swap", JOB, file]);
    cluster.swap(0, &first, |_| {});
    cluster.converges(Some(PLANS[0]));

    // The leader is gone before the nodes have agreed, and stays away until all have changed.
    let leader = cluster.store.leader();
    cluster.swap(1, &second, |cluster| cluster.store.kill(leader));
    cluster.converges(Some(PLANS[1]));
    cluster.store.restart(leader);

    // So is a pfod, before its node has armed the swap.
    cluster.swap(3, &first, |cluster| cluster.restart_pfod(2));
    cluster.converges(Some(PLANS[0]));

    // And once the swap is committed, before its step has begun.
    let before = cluster.job(3).unwrap().swap.unwrap().number;
    cluster.swap(0, &second, |cluster| {
        let committed = wait::until_within(PATIENCE, || {
            let swap = cluster.job(0).and_then(|job| job.swap);
            let swap = swap.filter(|swap| swap.number > before).ok_or("none is proposed")?;
            if swap.outcome == FleetOutcome::Open { Err("it is open") } else { Ok(()) }
        });
        committed.unwrap();
        cluster.restart_pfod(2);
    });
    cluster.converges(Some(PLANS[1]));
    cluster.ends_without_a_lock();
}

#[test]
fn a_plan_stays_in_force_while_the_store_is_full_and_a_certificate_has_expired() {
    let setup = EtcdSetup { quota_bytes: Some(4 << 20), ..EtcdSetup::default() };
    let Some(mut cluster) = Cluster::start_with(&setup, None) else { return };
    let [first, second] = PLANS.map(|base| cluster.file(0, base));
    cluster.swap(0, &["plan", "swap", JOB, &first], |_| {});
    cluster.converges(Some(PLANS[0]));

    let user = Identity::own();
    cluster.store.fill();
    // As long as leases, and what is written of every step, last.
    sleep(Duration::from_secs(12));
    let full = "the store is full: etcdserver: mvcc: database space exceeded";
    let refused = cluster.nodes[1].pfoctl(&user, &["plan", "swap", JOB, &second]);
    assert!(refused.stderr.contains(full), "{refused:?}");
    let checked = cluster.nodes[1].pfoctl(&user, &["fleet", "check"]);
    assert!(checked.code == Some(1) && checked.stdout.contains(full), "{checked:?}");
    let logged = || cluster.nodes[2].agent_log().contains(full);
    cluster.nodes[2].until_so("the journal says why", logged);
    cluster.converges(Some(PLANS[0]));
    cluster.store.make_room();
    cluster.swap(1, &["plan", "swap", JOB, &second], |_| {});
    cluster.converges(Some(PLANS[1]));

    let last = NODES.len() - 1;
    cluster.store.expire_certificate(NODES[last]);
    sleep(Duration::from_secs(2));
    cluster.nodes[last].kill_agent();
    cluster.nodes[last].start_agent();
    let expired = "the certificate expired";
    let checked = cluster.nodes[last].pfoctl(&user, &["fleet", "check"]);
    assert!(checked.code == Some(1) && checked.stdout.contains(expired), "{checked:?}");
    let logged = || cluster.nodes[last].agent_log().contains(expired);
    cluster.nodes[last].until_so("the journal says why", logged);
    let status = cluster.nodes[last].pfoctl(&user, &["status"]).printed();
    assert!(status.contains("the store of the fleet has not answered"), "{status}");
    cluster.until_all_run(PLANS[1]);
    let refused = cluster.nodes[0].pfoctl(&user, &["plan", "swap", JOB, &first]);
    assert_ne!(refused.code, Some(0), "{refused:?}");

    cluster.store.renew_certificate(NODES[last]);
    cluster.nodes[last].kill_agent();
    cluster.nodes[last].start_agent();
    cluster.converges(Some(PLANS[1]));
    cluster.swap(last, &["plan", "swap", JOB, &first], |_| {});
    cluster.converges(Some(PLANS[0]));
    cluster.ends_without_a_lock();
}

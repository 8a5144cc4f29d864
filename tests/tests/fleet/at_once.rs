//! What several nodes are asked for at the same time: each is done, one after the other.

use pfo_tests::{Identity, Ran, wait};

use super::cluster::{Cluster, JOB, NODES, PATIENCE, PLANS};

/// The slowdown that is asked for on each node.
const ALLOWED: [&str; 4] = ["500%", "600%", "700%", "800%"];

#[test]
fn guards_that_several_nodes_are_asked_for_at_once_are_all_taken_and_the_last_one_stays() {
    let Some(mut cluster) = Cluster::start() else { return };
    let file = cluster.file(1, PLANS[0]);
    cluster.swap(1, &["plan", "swap", JOB, &file], |_| {});
    cluster.until_all_run(PLANS[0]);

    let ask = |node: usize, what: &str| {
        cluster.nodes[node].begin_pfoctl(&Identity::own(), &["plan", "guard", JOB, what])
    };
    // Two of one node are among them, and comparisons begin meanwhile.
    let all = ALLOWED.iter().enumerate().map(|(node, allowed)| ask(node, allowed));
    let asked: Vec<_> = all.chain([ask(0, ALLOWED[0])]).collect();
    for asked in asked {
        let ran = Ran::from(asked.wait_with_output().unwrap());
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let guard = |node: usize| {
        let guard = cluster.nodes[node].find_watched(JOB).and_then(|job| job.guard);
        guard.map(|guard| guard.max_slowdown)
    };
    wait::until_within(PATIENCE, || {
        let known: Vec<_> = (0..NODES.len()).map(guard).collect();
        let is_one = known[0].is_some() && known.iter().all(|guard| *guard == known[0]);
        if is_one { Ok(()) } else { Err(known) }
    })
    .unwrap_or_else(|known| panic!("the nodes know of different guards: {known:?}"));

    for asked in [ask(3, "--off"), ask(1, "--off")] {
        let ran = Ran::from(asked.wait_with_output().unwrap());
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    cluster.converges(Some(PLANS[0]));
    cluster.ends_without_a_lock();
}

#[test]
fn a_swap_that_another_one_replaces_before_its_step_is_no_success() {
    let Some(mut cluster) = Cluster::start() else { return };
    let [first, later] = PLANS.map(|base| cluster.file(1, base));
    let at = (cluster.training.steps() + 150).to_string();
    let swap = ["plan", "swap", JOB, &first, "--at-step", &at, "--wait"];
    let waiting = cluster.nodes[1].begin_pfoctl(&Identity::own(), &swap);
    cluster.nodes[1].until_so("the swap is to come", || {
        let whole = cluster.nodes[1].find_watched(JOB).and_then(|job| job.fleet);
        whole.is_some_and(|whole| whole.swap.is_some())
    });
    cluster.swap(1, &["plan", "swap", JOB, &later], |_| {});
    let ran = Ran::from(waiting.wait_with_output().unwrap());
    assert_eq!((ran.code, &*ran.stdout), (Some(7), ""), "{ran:?}");
    let why = format!("was swapped to something else before step {at}: by swap 2");
    assert!(ran.stderr.contains(&why), "{ran:?}");
    cluster.until_all_run(PLANS[1]);
    cluster.ends_without_a_lock();
}

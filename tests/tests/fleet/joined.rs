//! One training over TCP between four network namespaces, each with a node of its own.

use std::thread::sleep;
use std::time::Duration;

use pfo_tests::{EtcdCluster, EtcdSetup, Fabric, Identity, Node, Setup, Training, wait};

use super::cluster::{JOB, NODES, PATIENCE, start_node_at};
use super::staged::{frontier, train, until_nodes_run};

/// The node that is cut off: its stage has one before it and one after it.
const CUT: usize = 1;

/// Four nodes and a training over TCP, whose ranks take a neighbour for gone after so many seconds.
fn start(fabric: &Fabric, patience_s: &str) -> Option<(EtcdCluster, Vec<Node>, Training)> {
    let address = Some(fabric.address());
    let store = EtcdCluster::start(&EtcdSetup { address, ..EtcdSetup::default() })?;
    // Longer than a link is cut.
    let setup = Setup { idle_limit_s: 600, ..Setup::default() };
    let node = |(place, name): (usize, &&str)| {
        let at = (Some(fabric.namespace(place)), fabric.address());
        start_node_at(&setup, name, &store, at)
    };
    let nodes: Vec<_> = NODES.iter().enumerate().map(node).collect();
    let list =
        |of: &dyn Fn(usize) -> String| (0..NODES.len()).map(of).collect::<Vec<_>>().join(",");
    let addresses = list(&|place| format!("{}:4100", fabric.address_of(place)));
    let namespaces = list(&|place| fabric.namespace(place).to_owned());
    let over_tcp = ["--tcp", &addresses, "--namespace", &namespaces, "--patience-s", patience_s];
    let training = train(&nodes, 0, &over_tcp);
    let [_, own] = frontier(&nodes[0], "1.15x");
    let swap = ["plan", "swap", JOB, &own, "--wait"];
    let _ = nodes[0].pfoctl(&Identity::own(), &swap).printed();
    until_nodes_run(&nodes, |label| label == "own.json");
    Some((store, nodes, training))
}

/// The last step that a node's rank has begun.
fn step(node: &Node) -> u64 {
    node.job(JOB).ranks[0].step.unwrap_or(0)
}

fn until_step(node: &Node, step_wanted: u64) {
    let seen = wait::until_within(PATIENCE, || match step(node) {
        step if step >= step_wanted => Ok(()),
        step => Err(step),
    });
    seen.unwrap_or_else(|step| panic!("in step {step}, not {step_wanted}"));
}

/// Waits until the other nodes have the cut one no more.
fn until_gone(nodes: &[Node]) {
    nodes[0].until_so("it is gone", || {
        let job = nodes[0].find_watched(JOB).and_then(|job| job.fleet);
        job.is_some_and(|job| job.nodes.iter().all(|member| member.node != NODES[CUT]))
    });
}

#[test]
fn a_training_over_tcp_stalls_while_a_link_is_cut_and_goes_on_with_its_plan() {
    let Some(fabric) = Fabric::create(NODES.len()) else { return };
    let Some((_store, nodes, training)) = start(&fabric, "0") else { return };
    fabric.cut(CUT);
    until_gone(&nodes);
    let stalled = step(&nodes[0]);
    sleep(Duration::from_secs(2));
    assert!(step(&nodes[0]) <= stalled + 1, "it trains without one of its stages");
    assert!(nodes.iter().all(|node| node.job(JOB).ranks.len() == 1), "a rank was lost");
    fabric.mend(CUT);
    nodes.iter().for_each(|node| until_step(node, stalled + 20));
    until_nodes_run(&nodes, |label| label == "own.json");
    // All of it can be changed again.
    let swap = ["plan", "swap", JOB, "--default-clocks", "--wait"];
    let changed = wait::until_within(PATIENCE, || {
        let ran = nodes[CUT].pfoctl(&Identity::own(), &swap);
        if ran.code == Some(0) { Ok(()) } else { Err(ran) }
    });
    changed.unwrap_or_else(|ran| panic!("{ran:?}"));
    training.stop();
    without_a_lock(&nodes);
}

#[test]
fn a_training_whose_link_stays_cut_ends_and_leaves_no_lock() {
    let Some(fabric) = Fabric::create(NODES.len()) else { return };
    let Some((_store, nodes, mut training)) = start(&fabric, "4") else { return };
    fabric.cut(CUT);
    // Every rank loses a neighbour in the step that it is in, and nothing else.
    let (status, report) = training.wait();
    assert!(!status.success(), "{report}");
    assert_eq!(report["failed_steps"], NODES.len(), "{report}");
    let ranks = report["ranks"].as_array().unwrap();
    assert!(ranks.iter().all(|rank| rank["problem"].is_null()), "{report}");
    without_a_lock(&nodes);
}

fn without_a_lock(nodes: &[Node]) {
    for (gpu, node) in nodes.iter().enumerate() {
        node.until_is("nothing is owed", &(None, 0), || {
            (node.machine.sm_lock(gpu).map(|_| ()), node.ledger_entries())
        });
    }
}

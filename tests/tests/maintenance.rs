//! A node that is drained, and a driver that is released, for somebody who works on the GPUs.

use std::fs;
use std::thread;

use pfo_protocol::RefusalCode;
use pfo_tests::{
    Identity, MICROBATCHES, Node, Ran, Rank, STAGES, TestPlan, Training, assert_printed,
};

const JOB: &str = "job";
const MHZ: u32 = 900;

fn train(node: &Node) -> Training {
    let plan = TestPlan::new(STAGES, MICROBATCHES, |_, _| MHZ);
    let training = Training::start_on_plan(node, JOB, &Identity::own(), &plan);
    until_on_plan(node);
    training
}

fn until_on_plan(node: &Node) {
    let locks = || (0..STAGES as usize).map(|gpu| node.machine.sm_lock(gpu)).collect::<Vec<_>>();
    node.until_is("the plan's clocks", &vec![Some(MHZ); STAGES as usize], locks);
}

fn assert_unlocked(node: &Node) {
    for gpu in 0..node.machine.gpu_count() {
        let locks = (node.machine.sm_lock(gpu), node.machine.memory_lock(gpu));
        assert_eq!(locks, (None, None), "GPU {gpu}");
    }
}

fn pfoctl(node: &Node, arguments: &[&str]) -> Ran {
    node.pfoctl(&Identity::administrator(), arguments)
}

/// Whether pfod uses the driver.
fn has_driver(node: &Node) -> bool {
    let pid = node.status().daemon.pid;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.contains(node.machine.state().to_str().unwrap())
}

#[test]
fn a_drained_node_trains_at_default_clocks_until_it_is_undrained_over_restarts_too() {
    let mut node = Node::start();
    let training = train(&node);
    let ran = pfoctl(&node, &["drain", "--reason", "a fan is replaced"]);
    assert_printed!(ran);
    node.until_is("no ledger entry", &0, || node.ledger_entries());
    assert_unlocked(&node);
    // Its ranks would run that when they are back, and those on other nodes something else.
    let swap = pfoctl(&node, &["plan", "swap", JOB, "--default-clocks"]);
    assert_eq!(swap.code, Some(4), "{swap:?}");
    assert!(swap.stderr.contains("this node is drained: job job has no rank here"), "{swap:?}");
    for _ in 0..2 {
        assert_eq!(node.status().daemon.drained.unwrap().reason, "a fan is replaced");
        let told = pfoctl(&node, &["status"]).stdout;
        assert!(told.contains("no GPU is leased: a fan is replaced"), "{told}");
        let may = pfoctl(&node, &["policy", "explain"]).stdout;
        let until =
            "The node is drained (a fan is replaced): no lease is granted before `pfoctl undrain`.";
        assert!(may.contains(until), "{may}");
        let rank = Rank::open_anyway(&node, "other", 0, 1, 1);
        rank.step();
        assert_eq!(node.status().daemon.sessions, 0);
        node.kill_daemon();
        node.start_daemon();
    }
    assert_eq!(node.status().daemon.sessions, 0);
    let ran = pfoctl(&node, &["undrain"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    node.until_is("the leases", &STAGES, || node.status().daemon.sessions);
    assert_eq!(node.status().daemon.drained, None);
    training.stop();
}

#[test]
fn a_released_driver_is_not_loaded_until_the_node_is_undrained() {
    let mut node = Node::start();
    let training = train(&node);
    assert!(has_driver(&node));
    let released = pfoctl(&node, &["driver", "release"]);
    assert!(!has_driver(&node));
    assert_unlocked(&node);
    // Requests that would load the driver, and the next daemon, leave it alone.
    assert_printed!(released, pfoctl(&node, &["gpus"]));
    assert!(!has_driver(&node));
    // Neither does another drain, for another reason.
    assert_eq!(pfoctl(&node, &["drain", "--reason", "a fan"]).code, Some(0));
    assert!(node.status().daemon.drained.unwrap().driver_released);
    node.kill_daemon();
    node.start_daemon();
    assert!(!has_driver(&node));
    assert_eq!(pfoctl(&node, &["undrain"]).code, Some(0));
    node.until_is("the leases", &STAGES, || node.status().daemon.sessions);
    assert!(has_driver(&node));
    training.stop();
}

#[test]
fn a_driver_that_is_in_a_call_that_hangs_is_not_called_released() {
    let node = Node::start();
    let training = train(&node);
    node.machine.fault("*", "hang", Some(1));
    assert_printed!(pfoctl(&node, &["driver", "release"]));
    let drained = node.status().daemon.drained.unwrap();
    assert!(!drained.driver_released);
    node.machine.clear_faults();
    node.until_is("no ledger entry", &0, || node.ledger_entries());
    assert_eq!(pfoctl(&node, &["driver", "release"]).code, Some(0));
    assert!(node.status().daemon.drained.unwrap().driver_released);
    training.stop();
}

#[test]
fn only_administrators_drain_a_node_and_only_for_a_reason_in_one_line() {
    let node = Node::start();
    let ran = node.pfoctl(&Identity::trainer(), &["drain"]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    for reason in ["", "a\nb", "a\u{202e}b", &"x".repeat(201)] {
        let request = pfo_protocol::Request::Drain { reason: reason.into(), release_driver: true };
        let refusal = node.control().ask(request).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::Malformed, "{refusal}");
    }
    assert_eq!(node.status().daemon.drained, None);
}

#[test]
fn a_reload_and_a_grant_leave_a_released_driver_alone() {
    let node = Node::start();
    let training = train(&node);
    assert_eq!(pfoctl(&node, &["driver", "release"]).code, Some(0));
    assert_eq!(pfoctl(&node, &["reload"]).code, Some(0));
    let uuid = node.machine.uuid(0);
    let ran = pfoctl(&node, &["grant", "--uid", "0", "--gpu", uuid.as_str(), "--until", "1h"]);
    assert_printed!(ran);
    assert!(!has_driver(&node));
    assert_eq!(pfoctl(&node, &["undrain"]).code, Some(0));
    node.until_is("the leases", &STAGES, || node.status().daemon.sessions);
    training.stop();
}

#[test]
fn administrators_who_drain_and_undrain_at_once_leave_the_node_in_one_of_both_states() {
    let node = Node::start();
    let training = train(&node);
    thread::scope(|scope| {
        for arguments in [&["drain", "--reason", "x"][..], &["undrain"]] {
            let node = &node;
            scope.spawn(move || {
                for _ in 0..8 {
                    let ran = pfoctl(node, arguments);
                    assert_eq!(ran.code, Some(0), "{ran:?}");
                }
            });
        }
        // Whether ranks use the driver at that moment is up to the other two.
        scope.spawn(|| (0..8).for_each(|_| drop(pfoctl(&node, &["driver", "release"]))));
    });
    assert_eq!(pfoctl(&node, &["drain"]).code, Some(0));
    node.until_is("no ledger entry", &0, || node.ledger_entries());
    assert_unlocked(&node);
    assert_eq!(pfoctl(&node, &["undrain"]).code, Some(0));
    node.until_is("the leases", &STAGES, || node.status().daemon.sessions);
    until_on_plan(&node);
    training.stop();
}

//! The index by which people name a GPU: the driver's, also while another GPU is lost.

use pfo_tests::{Identity, Node, Setup};
use serde_json::Value;

/// A node of four GPUs; GPU 1 was lost before `pfod` started.
fn node() -> Node {
    let setup = Setup::without_agent();
    let mut node = Node::create(&setup);
    node.machine.fault("nvmlDeviceGetName", "gpu-is-lost", Some(1));
    node.start_daemon();
    node
}

#[test]
fn a_lost_gpu_keeps_its_index_and_so_do_the_others() {
    let node = node();
    let listed = node.pfoctl(&Identity::administrator(), &["gpus", "--json"]).json();
    let gpus: Vec<(u64, &str)> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|gpu| (gpu["index"].as_u64().unwrap(), gpu["uuid"].as_str().unwrap()))
        .collect();
    let uuids = [0, 2, 3].map(|index| node.machine.uuid(index).to_string());
    assert_eq!(gpus, [(0, &*uuids[0]), (2, &*uuids[1]), (3, &*uuids[2])]);
}

#[test]
fn every_command_that_takes_a_gpu_takes_the_drivers_index() {
    let node = node();
    let uid = Identity::trainer().uid.to_string();
    let commands: [&[&str]; 4] = [
        &["grant", "--uid", &uid, "--until", "1h"],
        &["revoke-grant", "--uid", &uid],
        &["policy", "explain", "--json"],
        &["clocks", "reset", "--json"],
    ];
    for command in commands {
        let with =
            |gpu| node.pfoctl(&Identity::administrator(), &[command, &["--gpu", gpu]].concat());
        let lost = with("1");
        assert_eq!(lost.code, Some(4), "{command:?}: {lost:?}");
        assert!(lost.stderr.starts_with("pfoctl: GPU 1 cannot be used"), "{command:?}: {lost:?}");
        let other = with("2");
        assert_eq!(other.code, Some(0), "{command:?}: {other:?}");
        let uuid = node.machine.uuid(2);
        assert!(other.stdout.contains(uuid.as_str()), "{command:?}: {other:?}");
    }
}

#[test]
fn a_grant_names_the_gpu_that_the_driver_numbers_so() {
    let node = node();
    let uid = Identity::trainer().uid.to_string();
    let grant = ["grant", "--uid", &uid, "--gpu", "2", "--until", "1h"];
    assert_eq!(node.pfoctl(&Identity::administrator(), &grant).code, Some(0));
    let listed = node.pfoctl(&Identity::administrator(), &["lease", "list", "--json"]).json();
    let granted = listed["granted"].as_array().unwrap();
    let uuids: Vec<&Value> = granted.iter().map(|grant| &grant["gpu_uuid"]).collect();
    assert_eq!(uuids, [&Value::from(node.machine.uuid(2).as_str())]);
}

//! The names of a GPU: the driver's index, also while another GPU is lost, and the device file, by which
//! schedulers count.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use pfo_tests::programs::{program, source_root};
use pfo_tests::{Identity, Node, Rank, Setup, assert_printed, needs_root};
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

/// The UUIDs that are granted.
fn granted(node: &Node) -> Vec<String> {
    let listed = node.pfoctl(&Identity::administrator(), &["lease", "list", "--json"]).json();
    let granted = listed["granted"].as_array().unwrap();
    granted.iter().map(|grant| grant["gpu_uuid"].as_str().unwrap().to_owned()).collect()
}

/// Runs a script of `packaging/slurm` as slurmd does, for a job on the GPUs of these device files.
fn slurm(node: &Node, script: &str, gpus: &str) {
    let bin = node.directory().join("bin");
    fs::create_dir_all(&bin).unwrap();
    let _ = symlink(program("pfoctl"), bin.join("pfoctl"));
    let script = source_root().join("packaging/slurm").join(script);
    // It sets its own PATH; the sockets are those of this node.
    let text = fs::read_to_string(script).unwrap();
    let text = text.replace("PATH=", &format!("PATH={}:", bin.display()));
    let status = Command::new("sh")
        .args(["-c", &text])
        .env("SLURM_JOB_ID", "4711")
        .env("SLURM_JOB_UID", Identity::trainer().uid.to_string())
        .env("SLURM_JOB_GPUS", gpus)
        .env("PFO_SOCKET", node.socket())
        .env("PFO_ADMIN_SOCKET", node.admin_socket())
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn the_prolog_of_slurm_grants_the_gpus_of_the_jobs_device_files() {
    needs_root!();
    let node = Node::start_with(&Setup::without_agent());
    let minor = |index: usize| node.machine.gpu(index).minor();
    assert_ne!(minor(2), 2, "a minor is no index");
    slurm(&node, "prolog", &format!("{},{}", minor(2), minor(3)));
    let [second, third] = [2, 3].map(|index| node.machine.uuid(index).to_string());
    let mut uuids = granted(&node);
    uuids.sort_by_key(|uuid| *uuid != second);
    assert_eq!(uuids, [second, third]);
    slurm(&node, "epilog", &format!("{},{}", minor(2), minor(3)));
    assert_eq!(granted(&node), [""; 0]);
}

#[test]
fn a_device_file_of_a_lost_gpu_is_refused_with_those_that_there_are() {
    let node = node();
    let lost = format!("/dev/nvidia{}", node.machine.gpu(1).minor());
    let grant = ["grant", "--uid", "61299", "--device", &lost, "--until", "1h"];
    assert_printed!(node.pfoctl(&Identity::administrator(), &grant));
    assert_eq!(granted(&node), [""; 0]);
}

#[test]
fn a_gpu_whose_name_is_no_utf_8_is_leased_and_named_by_its_pci_device() {
    let mut node = Node::create(&Setup::without_agent());
    node.machine.fault("nvmlDeviceGetName", "garbled", Some(1));
    node.start_daemon();
    let models: Vec<_> = node.status().gpus.into_iter().map(|gpu| gpu.model).collect();
    assert_eq!(models[0], "NVIDIA A40");
    assert_eq!((models.len(), &*models[1]), (4, "PCI device 223510DE"));
    let _rank = Rank::open(&node, "job", 1, 2, 1);
}

//! The frames that release 0.1 wrote, replayed against the daemon of this release.

use std::fs;

use pfo_protocol::{DaemonMessage, RefusalCode};
use pfo_tests::{Client, Node, ServiceManager, Setup, assert_printed};
use serde_json::Value;

const KIT: &str = include_str!("../../protocol/frames/session.json");

/// The GPU of the recorded session.
const RECORDED_GPU: &str = "GPU-8d4e1b72-0c93-4f6a-b2e5-7a9c3d5f1e08";

fn frames() -> Vec<(String, Vec<u8>)> {
    let kit: Value = serde_json::from_str(KIT).unwrap();
    let byte = |text: &str, at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    let frame = |frame: &Value| {
        let text = frame["bytes"].as_str().unwrap();
        let bytes = (0..text.len()).step_by(2).map(|at| byte(text, at)).collect();
        (frame["name"].as_str().unwrap().to_owned(), bytes)
    };
    kit["frames"].as_array().unwrap().iter().map(frame).collect()
}

fn recorded(name: &str) -> Vec<u8> {
    frames().into_iter().find(|(other, _)| other == name).unwrap().1
}

/// The recorded hello, for a GPU that the node has.
fn hello_of(gpu: &str) -> Vec<u8> {
    let mut hello = recorded("hello");
    assert_eq!(gpu.len(), RECORDED_GPU.len());
    let is_name = |window: &[u8]| window == RECORDED_GPU.as_bytes();
    let at = hello.windows(gpu.len()).position(is_name).unwrap();
    hello[at..at + gpu.len()].copy_from_slice(gpu.as_bytes());
    hello
}

/// A configuration for trainers that have no libpfo of this release yet.
const WITHOUT_PROOF: &str = "[[rule]]\nrequire_device = false\n";

#[test]
fn a_session_recorded_from_release_0_1_is_refused_with_what_it_lacks() {
    let node = Node::start();
    let mut client = Client::connect(&node.socket());
    client.send(&hello_of(node.machine.uuid(1).as_str()));
    let refusal = client.until_welcome().unwrap_err();
    assert_eq!(refusal.code, RefusalCode::NotAuthorized);
    assert_printed!(refusal);
}

#[test]
fn a_session_recorded_from_release_0_1_is_kept_over_the_upgrade() {
    let mut node = Node::create(&Setup { rules: WITHOUT_PROOF, ..Setup::default() });
    let manager = ServiceManager::start(&mut node);
    let mut client = Client::connect(&node.socket());
    client.send(&hello_of(node.machine.uuid(1).as_str()));
    let welcome = client.until_welcome().unwrap();
    let text = fs::read_to_string(node.config()).unwrap();
    fs::write(node.config(), text.replace(WITHOUT_PROOF, "")).unwrap();
    manager.restart(&mut node);
    let sessions = || node.status().jobs.iter().map(|job| job.ranks[0].session).collect();
    node.until_is("its session", &vec![welcome.session], sessions);
    client.send(&recorded("goodbye"));
    client.assert_ended();
}

#[test]
fn a_session_recorded_from_release_0_1_is_served_without_the_proof_to_its_goodbye() {
    let node = Node::start_with(&Setup { rules: WITHOUT_PROOF, ..Setup::default() });
    let uuid = node.machine.uuid(1);
    let mut client = Client::connect(&node.socket());
    client.send(&hello_of(uuid.as_str()));
    let Ok(DaemonMessage::Welcome(welcome)) = client.answer() else { panic!("no welcome") };
    assert_eq!(welcome.gpu_uuid, uuid);
    for (name, bytes) in frames() {
        if name.starts_with("event-") {
            client.send(&bytes);
        }
    }
    let step = || node.status().jobs.first().and_then(|job| job.ranks.first()?.step);
    node.until_is("both steps are read", &Some(1), step);
    let status = node.status();
    let rank = &status.jobs[0].ranks[0];
    assert_eq!((rank.lost_events, rank.problem.as_deref()), (0, None));
    client.send(&recorded("goodbye"));
    client.assert_ended();
    node.assert_only_locked(&[]);
}

#[test]
fn the_list_of_gpus_is_served_as_release_0_1_asks_for_it_and_nothing_else_of_it_is() {
    let node = Node::start();
    let mut client = Client::connect(&node.socket());
    client.send(&recorded("list-gpus"));
    let Ok(DaemonMessage::GpuList(Ok(gpus))) = client.answer() else { panic!("no list") };
    assert_eq!(gpus[1].uuid, node.machine.uuid(1));
    let status_of_release_0_1 = [4, 0, 0, 0, 1, 0, 4, 0, 1, 0, 0, 0];
    client.send(&status_of_release_0_1);
    let Ok(DaemonMessage::Refusal(refusal)) = client.answer() else { panic!("no refusal") };
    assert_eq!(refusal.code, RefusalCode::Malformed);
    assert_printed!(refusal);
    client.assert_ended();
}

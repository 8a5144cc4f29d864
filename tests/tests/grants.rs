//! GPUs that an administrator gives to a user, as the prolog and the epilog of a scheduler do.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pfo_protocol::{ClientMessage, ClosingReason, DaemonMessage, GpuName, Refusal, RefusalCode};
use pfo_tests::{
    Client, Identity, Node, Ran, Relay, ServiceManager, Setup, assert_printed, hello, needs_root,
};
use serde_json::Value;

fn node() -> Node {
    Node::start_with(&Setup::without_agent())
}

fn administer(node: &Node, arguments: &[&str]) -> Ran {
    node.pfoctl(&Identity::administrator(), arguments)
}

/// Gives GPU 0 to a user.
fn grant(node: &Node, user: &Identity, until: &str) {
    let uid = user.uid.to_string();
    let ran = administer(node, &["grant", "--uid", &uid, "--gpu", "0", "--until", until]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains(node.machine.uuid(0).as_str()), "{ran:?}");
}

fn revoke(node: &Node, user: &Identity) -> Ran {
    administer(node, &["revoke-grant", "--uid", &user.uid.to_string(), "--gpu", "0"])
}

fn hello_of(node: &Node, gpu: usize) -> ClientMessage {
    ClientMessage::Hello(hello("job", 0, 1, GpuName::Uuid(node.machine.uuid(gpu))))
}

/// Asks for the lease of a GPU as root, who passes no device file.
fn lease_without_device(node: &Node, gpu: usize) -> (Client, Result<(), Refusal>) {
    let mut client = Client::connect(&node.socket());
    client.send(&hello_of(node, gpu).to_frame().unwrap());
    let answer = client.until_welcome().map(drop);
    (client, answer)
}

/// Asks for the lease of a GPU as a user who passes every device file.
fn lease_with_device(node: &Node, user: &Identity, gpu: usize) -> (Relay, DaemonMessage) {
    let mut relay = Relay::connect(node, user);
    relay.say(&hello_of(node, gpu));
    let answer = relay.answer();
    (relay, answer)
}

fn granted(node: &Node) -> usize {
    let listed = administer(node, &["lease", "list", "--json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    listed["granted"].as_array().unwrap().len()
}

#[test]
fn who_was_granted_a_gpu_leases_it_without_its_device_file_and_nobody_else_does_with_it() {
    needs_root!();
    let mut node = node();
    let trainer = Identity::trainer();
    let (_, refused) = lease_without_device(&node, 0);
    assert!(refused.unwrap_err().remedy.contains("pfoctl grant"));
    grant(&node, &Identity::own(), "job-end");
    for _ in 0..2 {
        let (mut client, leased) = lease_without_device(&node, 0);
        leased.unwrap();
        client.say(&ClientMessage::Goodbye);
        client.assert_ended();
        assert!(lease_without_device(&node, 1).1.is_err(), "another GPU was not granted");
        let (_, DaemonMessage::Refusal(refusal)) = lease_with_device(&node, &trainer, 0) else {
            panic!("another user leased it")
        };
        assert_eq!(refusal.code, RefusalCode::NotAuthorized, "{refusal}");
        assert!(refusal.message.contains("granted GPU") && refusal.remedy.contains("revoke-grant"));
        let explained = node.pfoctl(&trainer, &["policy", "explain", "--gpu", "0"]);
        assert!(explained.code == Some(4) && explained.stdout.contains("to another user"));
        node.kill_daemon();
        node.start_daemon();
    }
    assert_eq!(revoke(&node, &trainer).stdout, "No such grant was in force.\n");
    assert_eq!(granted(&node), 1);
    assert!(revoke(&node, &Identity::own()).stdout.starts_with("Ended:"));
    let (_relay, answer) = lease_with_device(&node, &trainer, 0);
    assert!(matches!(answer, DaemonMessage::Welcome(_)), "{answer:?}");
}

#[test]
fn a_grant_ends_the_lease_of_another_user_and_its_end_that_of_its_own() {
    needs_root!();
    let node = node();
    let trainer = Identity::trainer();
    let (mut relay, answer) = lease_with_device(&node, &trainer, 0);
    assert!(matches!(answer, DaemonMessage::Welcome(_)), "{answer:?}");
    grant(&node, &trainer, "12h");
    assert_eq!(node.status().daemon.sessions, 1, "the user's own lease stays");
    grant(&node, &Identity::own(), "12h");
    let DaemonMessage::Closing(closing) = relay.answer() else { panic!("not ended") };
    assert_eq!(closing.reason, ClosingReason::Revoked, "{closing:?}");
    node.until_is("sessions", &0, || node.status().daemon.sessions);
    let (mut client, leased) = lease_without_device(&node, 0);
    leased.unwrap();
    assert_eq!(revoke(&node, &trainer).stdout, "No such grant was in force.\n");
    assert_eq!(node.status().daemon.sessions, 1, "an epilog that is late ends nothing");
    revoke(&node, &Identity::own());
    let Ok(DaemonMessage::Closing(closing)) = client.answer() else { panic!("not ended") };
    assert_eq!(closing.reason, ClosingReason::Revoked, "{closing:?}");
    node.assert_only_locked(&[]);
}

#[test]
fn a_grant_ends_at_its_time_and_one_that_would_be_over_is_refused() {
    needs_root!();
    let mut node = node();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let until = format!("@{now}");
    let uid = "61299";
    let mut over = administer(&node, &["grant", "--uid", uid, "--gpu", "0", "--until", &until]);
    over.command = over.command.map(|command| command.replace(&until, "@NOW"));
    let of_no_gpu = administer(&node, &["grant", "--uid", uid, "--gpu", "77", "--until", "1h"]);
    assert_printed!(over, of_no_gpu);
    grant(&node, &Identity::own(), "3s");
    let (mut client, leased) = lease_without_device(&node, 0);
    leased.unwrap();
    client.be_patient_for(Duration::from_secs(20));
    let Ok(DaemonMessage::Closing(closing)) = client.answer() else { panic!("not ended") };
    assert_eq!(closing.reason, ClosingReason::Revoked, "{closing:?}");
    assert_eq!(granted(&node), 0);
    // Whoever starts after the end of a grant ends it.
    grant(&node, &Identity::own(), "1s");
    node.kill_daemon();
    std::thread::sleep(Duration::from_secs(2));
    node.start_daemon();
    node.until_is("grants", &0, || granted(&node));
}

#[test]
fn a_grant_that_ends_without_a_daemon_ends_the_session_that_the_next_one_resumes() {
    needs_root!();
    let mut node = Node::create(&Setup::without_agent());
    let manager = ServiceManager::start(&mut node);
    grant(&node, &Identity::own(), "3s");
    let (mut client, leased) = lease_without_device(&node, 0);
    leased.unwrap();
    manager.stop_daemon(&mut node);
    std::thread::sleep(Duration::from_secs(4));
    manager.start_daemon(&mut node);
    let Ok(DaemonMessage::Closing(closing)) = client.answer() else { panic!("not ended") };
    assert_eq!(closing.reason, ClosingReason::Revoked, "{closing:?}");
    node.until_is("sessions", &0, || node.status().daemon.sessions);
}

#[test]
fn a_grant_that_cannot_be_recorded_is_refused_and_changes_nothing() {
    needs_root!();
    let node = node();
    fs::create_dir(node.directory().join("gpu-grants.json")).unwrap();
    let uid = Identity::own().uid.to_string();
    let ran = administer(&node, &["grant", "--uid", &uid, "--gpu", "0", "--until", "1h"]);
    assert_printed!(ran);
    assert!(lease_without_device(&node, 0).1.is_err());
}

#[test]
fn a_rule_about_a_control_group_is_for_the_processes_in_it() {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap();
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let Some(own) = paths.into_iter().find(|path| *path != "/") else {
        eprintln!("skipped: this process is in no control group");
        return;
    };
    for (cgroup, may) in [(own, true), ("/somewhere/else", false)] {
        let rules = format!(
            "[[rule]]\ncgroups = ['{cgroup}']\nrequire_device = false\n[[rule]]\nallow = false\n"
        );
        let node = Node::start_with(&Setup { rules: rules.leak(), ..Setup::without_agent() });
        assert_eq!(lease_without_device(&node, 0).1.is_ok(), may, "{cgroup}");
        for (asked, explained) in [(own, may), ("/somewhere/else", !may)] {
            let arguments = ["policy", "explain", "--user", "0", "--cgroup", asked];
            let ran = node.pfoctl(&Identity::administrator(), &arguments);
            assert_eq!(ran.code == Some(0), explained, "{ran:?}");
        }
    }
}

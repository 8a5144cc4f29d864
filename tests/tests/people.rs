//! Quotas count people: a user together with its subordinate uids, and nobody else.

use std::fs;
use std::sync::{Arc, Barrier};
use std::thread;

use pfo_protocol::{
    ClientMessage, ClockTable, DaemonMessage, GpuName, LARGEST_PAYLOAD, Refusal, RefusalCode,
    Request, Response, SwapTarget,
};
use pfo_tests::{
    Client, Identity, MachineSetup, Node, Program, Relay, Setup, TestPlan, control::job, hello,
    memory_max, needs_root, say_skipped,
};

/// Connections of one person.
const PER_PERSON: u32 = 128;

fn ask_status(mut relay: Relay) -> Result<Relay, String> {
    relay.say(&ClientMessage::Request(Request::Status));
    match relay.answer() {
        DaemonMessage::Response(Response::Status(_)) => Ok(relay),
        DaemonMessage::Refusal(Refusal { code: RefusalCode::LimitReached, message, .. }) => {
            Err(message)
        }
        other => panic!("{other:?}"),
    }
}

/// Connections of a user, one of which has been answered.
fn connect(node: &Node, user: &Identity, count: u32) -> Result<Relay, String> {
    ask_status(Relay::connect_beside(node, user, count - 1))
}

fn open(node: &Node, user: &Identity, gpu: usize) -> Result<Relay, Refusal> {
    let mut relay = Relay::connect(node, user);
    let gpu = GpuName::Uuid(node.machine.uuid(gpu));
    relay.say(&ClientMessage::Hello(hello("j", 0, 1, gpu)));
    match relay.answer() {
        DaemonMessage::Welcome(_) => Ok(relay),
        DaemonMessage::Refusal(refusal) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

#[test]
fn subordinate_uids_share_the_connections_of_their_user_and_the_journal_names_both() {
    needs_root!();
    let node = Node::start_with(&Setup::without_agent());
    let (user, other) = (Identity::trainer(), Identity::other_trainer());
    let half = PER_PERSON / 2;
    let held: Vec<_> =
        [1, 2].map(|n| connect(&node, &user.subordinate(n), half).unwrap()).into_iter().collect();
    let uid = user.uid;
    for one in [user.clone(), user.subordinate(1), user.subordinate(3)] {
        let refused = connect(&node, &one, 1).unwrap_err();
        assert!(refused.contains("has 128 connections open"), "{refused}");
    }
    let named = format!("user {} of user {uid}", user.subordinate(3).uid);
    node.until_logged(&named);
    let log = node.log();
    let line = log.lines().find(|line| line.contains(&named)).unwrap();
    assert!(line.contains(&format!("owner_uid={uid}")), "{line}");
    drop(connect(&node, &other, PER_PERSON).unwrap());
    drop(held);
}

#[test]
fn subordinate_uids_share_the_sessions_of_their_user() {
    needs_root!();
    let setup = Setup { sessions_per_user: 1, ..Setup::without_agent() };
    let node = Node::start_with(&setup);
    let user = Identity::trainer();
    let _held = open(&node, &user.subordinate(1), 0).unwrap();
    for one in [user.clone(), user.subordinate(2)] {
        let refusal = open(&node, &one, 1).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::LimitReached, "{refusal}");
    }
    assert!(open(&node, &Identity::other_trainer().subordinate(1), 1).is_ok());
}

#[test]
fn nobody_is_counted_as_another_user_by_a_namespace_of_its_own() {
    needs_root!();
    let node = Node::start_with(&Setup::without_agent());
    let (user, other) = (Identity::trainer(), Identity::other_trainer());
    let mut hostile = Relay::connect_from_namespace(&node, &user, PER_PERSON - 1);
    hostile.say(&ClientMessage::Request(Request::Status));
    match hostile.try_answer() {
        Some(DaemonMessage::Response(Response::Status(_))) => {}
        None => return say_skipped("users may not make namespaces here"),
        Some(other) => panic!("{other:?}"),
    }
    assert!(connect(&node, &user, 1).is_err(), "it is counted as who it is");
    for one in [other.clone(), other.subordinate(0)] {
        drop(connect(&node, &one, PER_PERSON / 2).unwrap());
    }
}

#[test]
fn sixty_four_ranks_that_start_in_the_same_instant_get_their_leases_at_the_first_try() {
    let machine = MachineSetup { gpus: "64xA40", ..MachineSetup::default() };
    let node = Node::start_with(&Setup { machine, ..Setup::without_agent() });
    let together = Arc::new(Barrier::new(64));
    let ranks: Vec<_> = (0..64)
        .map(|rank| {
            let (socket, together) = (node.socket(), Arc::clone(&together));
            let gpu = GpuName::Uuid(node.machine.uuid(rank as usize));
            thread::spawn(move || {
                together.wait();
                let mut client = Client::connect(&socket);
                client.open(hello("large", rank, 64, gpu)).map(|_| client)
            })
        })
        .collect();
    let opened: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect();
    assert_eq!(node.status().daemon.sessions as usize, opened.len());
}

#[test]
fn ten_users_at_their_limits_leave_room_for_the_status_and_the_hello_of_another() {
    needs_root!();
    let node = Node::start_with(&Setup::without_agent());
    let user = Identity::trainer();
    let greedy = |n: u32| Relay::connect_beside(&node, &user.with_uid(63_000 + n), PER_PERSON);
    let mut held: Vec<_> = (0..10).map(greedy).collect();
    for relay in &mut held {
        let answer = relay.answer();
        assert!(matches!(answer, DaemonMessage::Refusal(_)), "{answer:?}");
    }
    let other = connect(&node, &Identity::other_trainer(), 1).unwrap();
    drop(other);
    assert!(open(&node, &Identity::other_trainer(), 0).is_ok());
}

#[test]
fn ten_users_with_large_frames_that_never_end_do_not_keep_out_that_of_another() {
    needs_root!();
    let node = Node::start_with(&Setup::without_agent());
    let _rank = open(&node, &Identity::other_trainer(), 0).unwrap();
    let header = [&(LARGEST_PAYLOAD as u32).to_le_bytes()[..], &[1, 0, 6, 0]].concat();
    let slow = |n: u32| {
        let mut relay = Relay::connect(&node, &Identity::trainer().with_uid(63_000 + n));
        relay.send(&header);
        relay.send(&[0; 100]);
        relay
    };
    let _slow: Vec<_> = (0..10).map(slow).collect();
    let mut relay = Relay::connect(&node, &Identity::other_trainer());
    let table = ClockTable::from(&TestPlan::new(1, 20_000, |_, _| 900));
    let load = Request::PlanLoad { job: job("j"), label: "p".into(), table };
    let frame = ClientMessage::Request(load).to_frame().unwrap();
    assert!(frame.len() > 64 * 1024, "a large one");
    relay.send(&frame);
    assert!(matches!(relay.answer(), DaemonMessage::Response(Response::Loaded(_))));
}

/// Bytes that count towards `MemoryMax=` of pfod: its own and those of its files below /run.
fn bytes_kept(node: &mut Node) -> u64 {
    let status = format!("/proc/{}/status", node.daemon().process.pid());
    let status = fs::read_to_string(status).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    let records = fs::read_dir(node.directory().join("jobs")).into_iter().flatten();
    let records: u64 = records.map(|record| record.unwrap().metadata().unwrap().len()).sum();
    resident * 1024 + records
}

#[test]
fn ten_users_who_keep_all_the_plans_that_they_may_do_not_reach_memory_max() {
    needs_root!();
    let max = memory_max(Program::Pfod);
    let machine = MachineSetup { gpus: "10xA40", ..MachineSetup::default() };
    let setup = Setup { machine, idle_limit_s: 3600, ..Setup::without_agent() };
    let mut node = Node::start_with(&setup);
    let table = ClockTable::from(&TestPlan::new(1, 95_000, |_, _| 1740));
    let frame = |request| ClientMessage::Request(request).to_frame().unwrap();
    let load = frame(Request::PlanLoad { job: job("j"), label: "p".into(), table });
    let target = SwapTarget::Loaded;
    let swap =
        frame(Request::PlanSwap { job: job("j"), target, at_step: None, after: None, wait: false });
    let mut ranks = Vec::new();
    for number in 0..10 {
        let user = Identity::trainer().with_uid(63_000 + number);
        ranks.push(open(&node, &user, number as usize).unwrap());
        let mut relay = Relay::connect(&node, &user);
        let mut refused = None;
        for request in [&load, &swap, &load, &load] {
            relay.send(request);
            if let DaemonMessage::Response(Response::Refused(refusal)) = relay.answer() {
                refused = Some(refusal);
            }
        }
        let refusal = refused.expect("more than a user may keep");
        assert_eq!(refusal.code, RefusalCode::LimitReached, "{refusal}");
        assert!(refusal.message.contains("leave room for"), "{refusal}");
    }
    let kept = bytes_kept(&mut node);
    // The driver's library of a real node takes a part, and so does what is under way.
    assert!(kept < max / 2, "{kept} of {max} bytes");
    assert_eq!(node.status().daemon.sessions, 10);
}

//! Clients that take all they can get. A well-behaved rank trains beside them, and notices nothing.

use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, recv};
use pfo_protocol::{
    ClientMessage, ClockTable, DaemonMessage, GpuName, LARGEST_PAYLOAD, Mark, Request, Response,
    SwapTarget,
};
use pfo_tests::{
    Client, Identity, Relay, Setup, TestPlan, Undisturbed, control::job, hello, needs_root,
};

/// Bytes of memory that the daemon has, and has not given back.
fn resident_bytes(undisturbed: &mut Undisturbed) -> u64 {
    let pid = undisturbed.node.daemon().process.pid();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn large_requests_that_never_end_take_memory_for_one_of_them() {
    let mut undisturbed = Undisturbed::start();
    let before = resident_bytes(&mut undisturbed);
    let header = [&(LARGEST_PAYLOAD as u32).to_le_bytes()[..], &[1, 0, 6, 0]].concat();
    let part = vec![0; 64 * 1024];
    let clients: Vec<_> = (0..12)
        .map(|_| {
            let mut client = UnixStream::connect(undisturbed.node.socket()).unwrap();
            client.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
            client.write_all(&header).unwrap();
            // Nearly all of it, as long as somebody takes it.
            let parts = 1..LARGEST_PAYLOAD / part.len();
            parts.take_while(|_| client.write_all(&part).is_ok()).for_each(drop);
            client
        })
        .collect();
    let grown = resident_bytes(&mut undisturbed).saturating_sub(before);
    assert!(grown < 3 * LARGEST_PAYLOAD as u64, "it has grown by {grown} bytes");
    assert_eq!(undisturbed.node.status().gpus.len(), 4);
    drop(clients);
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn who_leaves_while_it_waits_for_a_swap_keeps_no_connection() {
    needs_root!();
    // Three quarters of them are for those who take what they can.
    let undisturbed = Undisturbed::start_with(&Setup { connections: 20, ..Setup::default() });
    let node = &undisturbed.node;
    let user = Identity::trainer();
    let mut rank = Relay::connect(node, &user);
    rank.say(&ClientMessage::Hello(hello("slow", 0, 1, GpuName::Uuid(node.machine.uuid(1)))));
    assert!(matches!(rank.answer(), DaemonMessage::Welcome(_)));
    let mut waiting: Vec<_> = (0..15).map(|_| Relay::connect(node, &user)).collect();
    let table = ClockTable::from(&TestPlan::new(1, 2, |_, _| 900));
    let load = Request::PlanLoad { job: job("slow"), label: "p".into(), table };
    let swap = Request::PlanSwap {
        job: job("slow"),
        target: SwapTarget::Loaded,
        at_step: Some(1000),
        after: None,
        wait: true,
    };
    for relay in &mut waiting {
        relay.say(&ClientMessage::Request(load.clone()));
        assert!(matches!(relay.answer(), DaemonMessage::Response(Response::Loaded(_))));
        relay.say(&ClientMessage::Request(swap.clone()));
    }
    let asks = || {
        let mut relay = Relay::connect(node, &user);
        relay.say(&ClientMessage::Request(Request::Status));
        match relay.answer() {
            DaemonMessage::Response(Response::Status(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    node.until_so("every connection is taken", || asks().is_err());
    drop(waiting);
    node.until("the connections are free", asks);
    drop(rank);
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn a_user_who_asks_without_a_pause_is_slowed_down_and_fills_no_log() {
    needs_root!();
    const REQUESTS: usize = 400;
    let undisturbed = Undisturbed::start();
    let node = &undisturbed.node;
    let mut relay = Relay::connect(node, &Identity::trainer());
    let refused = Request::ClocksReset { gpu: None, all: true };
    let began = Instant::now();
    for _ in 0..REQUESTS {
        relay.say(&ClientMessage::Request(refused.clone()));
        assert!(matches!(relay.answer(), DaemonMessage::Response(Response::Refused(_))));
    }
    // 200 ahead of time, and then one in 10 ms.
    assert!(began.elapsed() > Duration::from_millis(1900), "{:?}", began.elapsed());
    let entries = node.log().lines().filter(|line| line.contains("may not reset clocks")).count();
    assert!((256..REQUESTS).contains(&entries), "{entries} entries");
    drop(relay);
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn a_client_that_asks_and_never_reads_holds_up_nobody() {
    let undisturbed = Undisturbed::start();
    let mut clients: Vec<_> = (0..12).map(|_| undisturbed.connect()).collect();
    let request = ClientMessage::Request(Request::Status).to_frame().unwrap().repeat(2000);
    for client in &mut clients {
        client.be_patient_for_writing(Duration::from_millis(10));
        client.send(&request);
    }
    for _ in 0..10 {
        assert_eq!(undisturbed.node.status().gpus.len(), 4);
    }
    drop(clients);
    undisturbed.assert_nothing_else_happened();
}

/// How many of these connections hold bytes that were not read.
fn unread(connections: &[UnixStream]) -> usize {
    let mut byte = [0];
    let peek = |connection: &UnixStream| {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        recv(connection.as_raw_fd(), &mut byte, flags)
    };
    connections.iter().map(peek).filter(|peeked| *peeked == Ok(1)).count()
}

#[test]
fn answers_that_nobody_reads_take_memory_for_a_bounded_number_of_them() {
    // Connections, and twice as many refusals.
    const MOST: usize = 128 + 256;
    const ASKED: usize = 10;
    let undisturbed = Undisturbed::start();
    let request = ClientMessage::Request(Request::Status).to_frame().unwrap().repeat(ASKED);
    let connect = |_| {
        let mut connection = UnixStream::connect(undisturbed.node.socket()).unwrap();
        connection.set_write_timeout(Some(Duration::from_millis(10))).unwrap();
        let _ = connection.write_all(&request);
        connection
    };
    let mut connections: Vec<_> = (0..1000).map(connect).collect();
    undisturbed.node.until_so("the first ones are answered", || unread(&connections) >= 128);
    let found = unread(&connections);
    assert!(found <= MOST, "{found} connections hold something unread");
    // The daemon ends those that are silent; their answers stay.
    thread::sleep(Duration::from_secs(11));
    connections.extend((0..1000).map(connect));
    let found = unread(&connections);
    assert!(found <= MOST, "{found} connections hold something unread");
    drop(connections);
    undisturbed.node.until_so("who has read may ask again", || {
        let mut client = undisturbed.node.trainer_control();
        client.say(&ClientMessage::Request(Request::Status));
        matches!(client.answer(), Ok(DaemonMessage::Response(Response::Status(_))))
    });
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn a_rank_that_sends_without_a_pause_sleeps_on_the_daemons_side() {
    let mut undisturbed = Undisturbed::start();
    let mut client = undisturbed.in_session();
    let ticks = |undisturbed: &mut Undisturbed| {
        let pid = undisturbed.node.daemon().process.pid();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let (before, began) = (ticks(&mut undisturbed), Instant::now());
    while began.elapsed() < Duration::from_secs(2) {
        client.tell(Mark::StepBegin(0));
    }
    let spent = (ticks(&mut undisturbed) - before) as f64 / 100.0;
    assert!(spent < 0.4, "it has computed for {spent} s of 2 s");
    client.say(&ClientMessage::Goodbye);
    client.assert_ended();
    undisturbed.assert_nothing_else_happened();
}

#[test]
fn connections_that_come_and_go_without_a_word_are_forgotten() {
    let mut undisturbed = Undisturbed::start();
    let open_files = |undisturbed: &mut Undisturbed| {
        let pid = undisturbed.node.daemon().process.pid();
        fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
    };
    let before = open_files(&mut undisturbed);
    for _ in 0..5 {
        drop((0..1000).map(|_| undisturbed.connect()).collect::<Vec<Client>>());
    }
    let node = &undisturbed.node;
    node.until_so("status answers", || !node.status().gpus.is_empty());
    let pid = undisturbed.node.daemon().process.pid();
    undisturbed.node.until_so("all are closed", || {
        // It looks which of them were read when somebody connects.
        let _ = undisturbed.node.status();
        thread::sleep(Duration::from_millis(300));
        fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() <= before + 2
    });
    undisturbed.assert_nothing_else_happened();
}

//! What clients of the metrics can do that mean harm, or no good: nothing to other scrapes, to the agent's
//! status or to its memory.

use std::fs;
use std::io::{Read, Write};

use pfo_protocol::{AgentRequest, AgentResponse};
use pfo_tests::Node;
use pfo_tests::metrics_node::{MetricsNode, ask};

/// More than the agent has places for.
const MANY: usize = 100;

/// What the agent has resident, in KiB.
fn resident_kib(node: &Node) -> u64 {
    let pid = node.agent.as_ref().unwrap().process.pid();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Scrapes and asks for the status, as nobody must notice that somebody else is hostile.
fn assert_serves(served: &MetricsNode, meanwhile: &str) {
    assert!(served.page().contains("\npfo_daemon_up 1"), "{meanwhile}");
    assert!(
        ask(served.connect_to_socket(), "GET /metrics", "").unwrap().contains("\npfo_daemon_up 1"),
        "{meanwhile}"
    );
    let status = served.node.agent_control().ask_agent(AgentRequest::Status);
    assert!(matches!(status, Ok(AgentResponse::Status(_))), "{meanwhile}: {status:?}");
}

#[test]
fn clients_that_say_nothing_or_half_a_request_keep_nobody_from_scraping() {
    let served = MetricsNode::start();
    let before_kib = resident_kib(&served.node);
    for begin in ["", "GET /metr", "GET /metrics HTTP/1.1\r\nHost: x\r\nX-Half: "] {
        let open: Vec<_> = (0..MANY)
            .map(|_| {
                let mut stream = served.connect();
                // One that was ended already is no harm.
                let _ = stream.write_all(begin.as_bytes());
                stream
            })
            .collect();
        for _ in 0..3 {
            assert_serves(&served, begin);
        }
        drop(open);
    }
    let grown_kib = resident_kib(&served.node).saturating_sub(before_kib);
    assert!(grown_kib < 32 * 1024, "the agent has grown by {grown_kib} KiB");
}

#[test]
fn a_silent_client_is_ended_by_and_by() {
    let served = MetricsNode::start();
    let mut stream = served.connect();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    let mut answer = Vec::new();
    // An error is a connection that was reset, and also ended; a timeout is neither.
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    assert_serves(&served, "after a silence");
}

#[test]
fn a_megabyte_of_headers_is_refused_and_takes_no_memory() {
    let served = MetricsNode::start();
    let before_kib = resident_kib(&served.node);
    let one_long = format!("X: {}\r\n", "x".repeat(1 << 20));
    let many = "X-Some: thing\r\n".repeat(70_000);
    for headers in [&one_long, &many].into_iter().cycle().take(32) {
        // It may have gone before it was sent everything.
        let answer = ask(served.connect(), "GET /metrics", headers).unwrap_or_default();
        assert!(!answer.contains("pfo_"), "{answer}");
    }
    assert_serves(&served, "after long headers");
    let grown_kib = resident_kib(&served.node).saturating_sub(before_kib);
    assert!(grown_kib < 16 * 1024, "the agent has grown by {grown_kib} KiB");
}

#[test]
fn clients_that_do_not_read_their_answers_keep_nobody_from_scraping() {
    let served = MetricsNode::start();
    let open: Vec<_> = (0..MANY)
        .map(|_| {
            let mut stream = served.connect();
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
            stream
        })
        .collect();
    for _ in 0..3 {
        assert_serves(&served, "with answers unread");
    }
    drop(open);
}

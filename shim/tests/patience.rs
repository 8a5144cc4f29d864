//! A daemon that hangs keeps nobody waiting.

use std::time::{Duration, Instant};

use crate::fake::{Place, code, one_step, until};
use pfo::{Instruction, ProblemCode, RankDescription, Session};
use pfo_protocol::ClientMessage;

#[test]
fn a_socket_that_nobody_reads_drops_and_counts_and_never_blocks() {
    let place = Place::new();
    let daemon = place.daemon();
    let (session, mut peer) = place.session(&daemon);
    session.step_begin();
    let calls = 20_000;
    for _ in 0..calls {
        session.instruction_begin(Instruction::Forward, None);
    }
    let full = session.counters();
    assert_eq!(full.sent + full.dropped, calls + 1);
    assert!(full.sent > 0 && full.dropped > 0 && full.connected);

    for sequence in 0..full.sent {
        assert_eq!(peer.event().sequence, sequence);
    }
    session.step_end();
    assert_eq!(peer.event().sequence, calls + 1, "the gap is to be seen");
}

#[test]
fn open_waits_for_a_daemon_that_hangs_no_longer_than_the_setup_timeout() {
    let place = Place::new();
    let _daemon = place.daemon();
    let before = Instant::now();
    let session = Session::open(RankDescription {
        setup_timeout: Duration::from_millis(200),
        ..place.description()
    })
    .unwrap();
    assert!(before.elapsed() >= Duration::from_millis(200));
    assert!(before.elapsed() < Duration::from_secs(5));
    assert_eq!(code(&session), Some(ProblemCode::NoAnswer));
    one_step(&session);
    assert_eq!(session.counters().dropped, 4);
}

#[test]
fn a_daemon_that_answers_late_still_gives_its_lease() {
    let place = Place::new();
    let daemon = place.daemon();
    let session =
        Session::open(RankDescription { setup_timeout: Duration::ZERO, ..place.description() })
            .unwrap();
    assert_eq!(code(&session), Some(ProblemCode::NoAnswer));
    let _peer = daemon.welcome();
    until(|| session.problem().is_none());
}

#[test]
fn dropping_a_session_while_the_daemon_hangs_is_prompt_and_hangs_up() {
    let place = Place::new();
    let daemon = place.daemon();
    let session =
        Session::open(RankDescription { setup_timeout: Duration::ZERO, ..place.description() })
            .unwrap();
    let mut peer = daemon.accept();
    peer.read_hello();
    let before = Instant::now();
    drop(session);
    assert!(before.elapsed() < Duration::from_secs(1));
    assert_eq!(peer.rest(), []);
    assert!(before.elapsed() < Duration::from_secs(5));
}

#[test]
fn dropping_a_session_whose_socket_is_full_is_prompt_and_hangs_up() {
    let place = Place::new();
    let daemon = place.daemon();
    let (session, mut peer) = place.session(&daemon);
    session.step_begin();
    while session.counters().dropped == 0 {
        session.instruction_begin(Instruction::Forward, 0);
    }
    let before = Instant::now();
    drop(session);
    assert!(before.elapsed() < Duration::from_secs(1));
    assert!(!peer.rest().contains(&ClientMessage::Goodbye));
}

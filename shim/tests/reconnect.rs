//! A daemon that comes, goes and comes again: training goes on, and has its lease again when it
//! can.

use std::time::Duration;

use crate::fake::{Place, code, eventually, one_step, until};
use pfo::{ClosingReason, Instruction, ProblemCode, Session};
use pfo_protocol::Mark;

#[test]
fn without_a_daemon_training_runs_and_the_problem_names_the_socket_and_the_remedy() {
    let place = Place::new();
    let session = Session::open(place.description()).unwrap();
    let problem = session.problem().unwrap();
    assert_eq!(problem.code, ProblemCode::NoDaemon);
    let text = problem.to_string();
    assert!(text.contains(place.socket().to_str().unwrap()), "{text}");
    assert!(text.contains("PFO_SOCKET"), "{text}");
    one_step(&session);
    let counters = session.counters();
    assert_eq!((counters.sent, counters.dropped), (0, 4));
    assert!(!counters.connected);
}

#[test]
fn a_daemon_that_appears_later_is_found_and_told_the_next_step() {
    let place = Place::new();
    let session = Session::open(place.description()).unwrap();
    one_step(&session);
    one_step(&session);
    let daemon = place.daemon();
    let mut peer = daemon.welcome();
    assert_eq!(peer.hello().next_step, 2);
    until(|| session.problem().is_none());
    one_step(&session);
    let event = peer.event();
    assert_eq!((event.sequence, event.mark), (0, Mark::StepBegin(2)));
    let counters = session.counters();
    assert_eq!((counters.dropped, counters.reconnects), (8, 0));
}

#[test]
fn a_daemon_that_dies_in_the_middle_of_a_step_is_found_again_and_events_go_on() {
    let place = Place::new();
    let daemon = place.daemon();
    let (session, peer) = place.session(&daemon);
    session.step_begin();
    drop(peer);
    drop(daemon);
    session.instruction_begin(Instruction::Forward, 0);
    until(|| code(&session).is_some());
    let daemon = place.daemon();
    let mut peer = daemon.welcome();
    assert_eq!(peer.hello().next_step, 1);
    until(|| session.counters().connected);
    session.instruction_end();
    let event = peer.event();
    assert_eq!(event.sequence, 0, "a session of the daemon's counts from 0");
    assert!(matches!(event.mark, Mark::InstructionEnd(_)));
    assert_eq!(session.counters().reconnects, 1);
}

#[test]
fn after_an_idle_end_only_the_next_event_asks_for_a_new_lease() {
    let place = Place::new();
    let daemon = place.daemon();
    let (session, peer) = place.session(&daemon);
    peer.close(ClosingReason::Idle, "no event in 1 s");
    let problem = eventually(|| session.problem());
    assert_eq!(problem.code, ProblemCode::Closed(ClosingReason::Idle));
    assert_eq!(problem.message, "no event in 1 s");
    assert!(!session.counters().connected);
    std::thread::sleep(Duration::from_millis(300));
    assert!(daemon.try_accept().is_none());

    session.step_begin();
    let peer = daemon.welcome();
    assert_eq!(peer.hello().next_step, 1);
    until(|| session.problem().is_none());
    assert_eq!(session.counters().reconnects, 1);
}

#[test]
fn an_idle_end_that_the_next_event_runs_into_is_followed_by_a_new_lease() {
    let place = Place::new();
    let daemon = place.daemon();
    let (session, peer) = place.session(&daemon);
    peer.close(ClosingReason::Idle, "no event in 1 s");
    session.step_begin();
    session.step_end();
    let mut peer = daemon.welcome();
    until(|| session.counters().connected);
    session.step_begin();
    assert_eq!(peer.event().mark, Mark::StepBegin(1));
}

#[test]
fn a_daemon_that_goes_down_is_awaited_again() {
    let place = Place::new();
    let daemon = place.daemon();
    let (session, peer) = place.session(&daemon);
    peer.close(ClosingReason::ShuttingDown, "restarting");
    session.step_begin();
    let _peer = daemon.welcome();
    until(|| session.counters().reconnects == 1);
}

#[test]
fn a_session_that_was_revoked_is_told_so_and_does_not_come_back_at_once() {
    let place = Place::new();
    let daemon = place.daemon();
    let (session, peer) = place.session(&daemon);
    peer.close(ClosingReason::Revoked, "by root");
    session.step_begin();
    until(|| code(&session) == Some(ProblemCode::Closed(ClosingReason::Revoked)));
    std::thread::sleep(Duration::from_millis(300));
    assert!(daemon.try_accept().is_none());
}

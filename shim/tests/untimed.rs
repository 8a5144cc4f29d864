//! Calls that could not be timed, as the daemon hears of them.

use crate::fake;
use crate::fake::{Peer, Place};
use pfo::{Session, StreamOrdered};
use pfo_protocol::Mark;

/// A session at a daemon with this name.
fn session(place: &Place, daemon: &str) -> (Session, Peer) {
    let listening = place.daemon();
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| Session::open(place.description()).unwrap());
        let peer = listening.welcome_as(daemon);
        (opened.join().unwrap(), peer)
    })
}

fn marks(peer: &mut Peer, count: u64) -> Vec<Mark> {
    let events = (0..count).map(|sequence| {
        let event = peer.event();
        assert_eq!(event.sequence, sequence, "an event that the daemon must think lost");
        event.mark
    });
    events.collect()
}

#[test]
fn the_daemon_hears_at_a_step_how_many_calls_were_untimed_if_there_are_more() {
    let place = Place::new();
    let (session, mut peer) = session(&place, "pfod 0.2.0");
    session.step_begin();
    session.count_untimed();
    session.count_untimed();
    session.step_end();
    for _ in 1..3 {
        session.step_begin();
        session.step_end();
    }
    session.count_untimed();
    session.step_begin();
    let told = [
        Mark::StepBegin(0),
        Mark::StepEnd(0),
        Mark::StepBegin(1),
        Mark::Untimed(2),
        Mark::StepEnd(1),
        Mark::StepBegin(2),
        Mark::StepEnd(2),
        Mark::StepBegin(3),
        Mark::Untimed(3),
    ];
    assert_eq!(marks(&mut peer, 9), told);
    assert_eq!((session.counters().untimed, session.counters().dropped), (3, 0));
}

#[test]
fn a_daemon_of_release_0_1_hears_nothing_that_it_does_not_know() {
    let place = Place::new();
    let (session, mut peer) = session(&place, "pfod 0.1.0");
    session.count_untimed();
    session.step_begin();
    session.step_end();
    assert_eq!(marks(&mut peer, 2), [Mark::StepBegin(0), Mark::StepEnd(0)]);
    assert_eq!((session.counters().untimed, session.counters().sent), (1, 2));
}

#[test]
fn a_process_without_cuda_has_nothing_to_time() {
    let place = Place::new();
    let (session, mut peer) = session(&place, "pfod 0.2.0");
    let ordered = StreamOrdered::new(session);
    for call in [pfo::Call::StepBegin, pfo::Call::StepEnd, pfo::Call::StepBegin] {
        ordered.tell(call, || unreachable!("there is no CUDA in this process"));
    }
    assert_eq!(marks(&mut peer, 3), [Mark::StepBegin(0), Mark::StepEnd(0), Mark::StepBegin(1)]);
    assert_eq!(ordered.untimed(), 0);
}

#[test]
fn without_a_daemon_untimed_calls_are_no_more_dropped_events() {
    let place = Place::new();
    let session = Session::begin(place.description()).unwrap();
    session.count_untimed();
    session.step_begin();
    assert_eq!((session.counters().untimed, session.counters().dropped), (1, 1));
}

#[test]
fn a_daemon_that_comes_later_hears_of_all_that_were_untimed() {
    let place = Place::new();
    let (session, peer) = session(&place, "pfod 0.2.0");
    session.count_untimed();
    session.step_begin();
    drop(peer);
    let next = place.daemon();
    while session.problem().is_none() {
        session.step_begin();
    }
    let mut peer = next.welcome_as("pfod 0.2.0");
    fake::until(|| session.problem().is_none());
    session.step_begin();
    let told = marks(&mut peer, 2);
    assert!(matches!(told[..], [Mark::StepBegin(_), Mark::Untimed(1)]), "{told:?}");
}

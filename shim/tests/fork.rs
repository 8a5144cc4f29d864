//! What is left of a session in a forked child: nothing.

use crate::fake::Place;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use pfo::{ProblemCode, Session};
use pfo_protocol::{ClientMessage, Mark};

/// Runs this in a forked child and fails where it does.
fn in_child(work: impl FnOnce() -> bool) {
    // SAFETY: of what another thread may have locked, the child needs at most the allocator, which
    // glibc puts in order.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let code = i32::from(!work());
            // SAFETY: ends the process without the test harness's own ending.
            unsafe { libc::_exit(code) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
}

#[test]
fn a_forked_child_is_silent_and_takes_nothing_from_its_parent() {
    let place = Place::new();
    let daemon = place.daemon();
    let (session, mut peer) = place.session(&daemon);
    session.step_begin();
    let mut session = Some(session);
    in_child(|| {
        let Some(session) = session.take() else {
            return false;
        };
        session.step_begin();
        session.instruction_begin(pfo::Instruction::Forward, 0);
        let forked = session.problem().map(|problem| problem.code);
        let counters = session.counters();
        drop(session);
        forked == Some(ProblemCode::Forked) && counters.sent + counters.dropped == 0
    });
    session.as_ref().unwrap().step_end();
    drop(session);
    assert_eq!(peer.marks(2), [Mark::StepBegin(0), Mark::StepEnd(0)], "no event of the child's");
    assert_eq!(peer.rest(), [ClientMessage::Goodbye], "and one goodbye");
}

#[test]
fn a_child_that_outlives_its_parents_session_does_not_keep_the_connection_open() {
    let place = Place::new();
    let daemon = place.daemon();
    let (session, mut peer) = place.session(&daemon);
    let (reader, writer) = nix::unistd::pipe().unwrap();
    // SAFETY: the child only reads and exits.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            drop(writer);
            let _ = nix::unistd::read(&reader, &mut [0]);
            // SAFETY: ends the process without the test harness's own ending.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(session);
            assert_eq!(peer.rest(), [ClientMessage::Goodbye]);
            drop(writer);
            waitpid(child, None).unwrap();
        }
    }
}

#[test]
fn a_child_may_open_a_session_of_its_own() {
    let place = Place::new();
    let daemon = place.daemon();
    let (_session, _peer) = place.session(&daemon);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut peer = daemon.welcome();
            assert_eq!(peer.event().mark, Mark::StepBegin(0));
            assert_eq!(peer.rest(), [ClientMessage::Goodbye]);
        });
        in_child(|| {
            let Ok(own) = Session::open(place.description()) else {
                return false;
            };
            own.step_begin();
            own.problem().is_none() && own.counters().sent == 1
        });
    });
}

//! The clock of the next instruction is asked for while one still runs, so that it is in force when
//! that one ends.

use std::time::Duration;

use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use pfo::Call;
use pfo_tests::{Node, Rank, Setup, TestPlan};

const JOB: &str = "job";

/// The first two clocks of the plan.
const CLOCKS: [u32; 2] = [900, 1200];

/// Steps from which the times of instructions are learned.
const STEPS: u32 = 6;

fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap().into()
}

/// A step whose first instruction takes `took`, as the rank says, and the others no time.
fn step_of(rank: &Rank, took: Duration) {
    let mut at = now();
    rank.session.step_begin();
    for (position, &(instruction, microbatch)) in rank.order().iter().enumerate() {
        let begin = Call::InstructionBegin { instruction, chunk: 0, microbatch: Some(microbatch) };
        rank.session.tell_at(begin, at.as_nanos() as u64);
        at += if position == 0 { took } else { Duration::ZERO };
        rank.session.tell_at(Call::InstructionEnd, at.as_nanos() as u64);
    }
    rank.session.step_end();
}

/// A rank whose instructions took so long in some steps, and the first of which has just begun.
fn in_the_first_instruction(node: &Node, took: Duration) -> Rank {
    let rank = Rank::open(node, JOB, 0, 1, 2);
    node.take_up(JOB, &TestPlan::new(1, 2, |_, position| CLOCKS[position % 2]));
    for _ in 0..STEPS {
        step_of(&rank, took);
        node.until_is("the clock of the next step", &Some(CLOCKS[0]), || locked(node));
    }
    rank.session.step_begin();
    rank.begin(0);
    rank
}

fn locked(node: &Node) -> Option<u32> {
    node.machine.sm_lock(0)
}

#[test]
fn the_next_clock_is_locked_before_an_instruction_ends_and_not_again_when_it_does() {
    let node = Node::start_with(&Setup::without_agent());
    let rank = in_the_first_instruction(&node, Duration::from_millis(300));
    node.until_is("the clock of the second instruction", &Some(CLOCKS[1]), || locked(&node));
    let calls = node.machine.gpu(0).set_call_count();
    rank.session.instruction_end();
    rank.begin(1);
    rank.session.instruction_end();
    // The third instruction has the first clock again, so that its call is seen after the others.
    node.until_is("the clock of the third instruction", &Some(CLOCKS[0]), || locked(&node));
    assert_eq!(node.machine.gpu(0).set_call_count(), calls + 1);
    assert_eq!(node.rank(JOB, 0).mismatched_steps, 0);
}

#[test]
fn a_daemon_that_waits_to_ask_ahead_still_ends_at_once() {
    let mut node = Node::start_with(&Setup::without_agent());
    let _rank = in_the_first_instruction(&node, Duration::from_secs(50));
    node.until_is("the clock of the first instruction", &Some(CLOCKS[0]), || locked(&node));
    node.daemon().process.signal(Signal::SIGTERM);
    node.until_is("the lock is undone", &None, || locked(&node));
}

#[test]
fn an_event_that_comes_while_it_waits_to_ask_ahead_is_taken_at_once() {
    let node = Node::start_with(&Setup::without_agent());
    let rank = in_the_first_instruction(&node, Duration::from_secs(50));
    node.until_is("the clock of the first instruction", &Some(CLOCKS[0]), || locked(&node));
    rank.session.instruction_end();
    node.until_is("the clock of the second instruction", &Some(CLOCKS[1]), || locked(&node));
}

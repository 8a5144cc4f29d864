//! What the calls of the training loop touch: the connection, if there is one, and where in its
//! step the rank is.

use std::sync::Arc;

use nix::time::{ClockId, clock_gettime};
use pfo_protocol::{Chunk, ClosingReason, Event, Instruction, Mark, Microbatch, Unit};

use crate::call::Call;
use crate::lease::Lease;
use crate::link::{Delivery, Link};
use crate::problem::{Problem, ProblemCode};
use crate::unread::Unread;

/// How a session fares, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Events that the kernel took.
    pub sent: u64,
    /// Events that were dropped: there was no connection, or its socket was full.
    pub dropped: u64,
    /// Instructions that began outside a step, or before the one before them had ended. The daemon
    /// cannot tell what they are part of.
    pub misplaced: u64,
    /// Calls that counted when they were made, though they were to be timed: there was no CUDA context on
    /// the session's GPU, or their stream is one of another GPU. A process without CUDA has nothing to time.
    pub untimed: u64,
    /// How often the session held a lease again after it had lost one.
    pub reconnects: u64,
    /// Whether it holds one now and the daemon reads its events, as far as it knows: the end of a connection is
    /// noticed by the next event, a daemon that hangs within seconds.
    pub connected: bool,
}

/// Where the session is between no lease and a lease.
#[derive(Debug)]
pub(crate) enum Phase {
    /// The background thread tries to connect.
    Connecting,
    /// There is a lease.
    Connected(Arc<Link>),
    /// The connection broke. With it comes the link that still has the reason, unless that is
    /// known.
    Lost(Option<Arc<Link>>),
    /// The daemon ended the session because no events came; the next event asks for a new one.
    Dormant,
    /// The session is over.
    Closed,
}

/// Whether the background thread has something to do now.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    Yes,
    No,
}

const KINDS: usize = Instruction::ALL.len();

/// Model chunks of a stage for which microbatches are counted. Interleaved schedules have a
/// handful.
const COUNTED_CHUNKS: usize = 64;

/// All that changes in a session, behind its one lock.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) phase: Phase,
    /// Why there was no lease when that was last found out.
    pub(crate) problem: Option<Problem>,
    /// Why the job does not begin with the plan that was named.
    pub(crate) plan_problem: Option<Problem>,
    /// Whether the first attempt to connect has come to an end.
    pub(crate) settled: bool,
    /// The connection on which the background thread waits for an answer.
    pub(crate) attempt: Option<Arc<Link>>,
    counters: Counters,
    /// How many untimed calls the daemon knows of.
    untimed_told: u64,
    lease: Option<Lease>,
    leases: u64,
    sequence: u64,
    next_step: u64,
    open_step: Option<u64>,
    open_unit: Option<Unit>,
    next_microbatch: [[u32; KINDS]; COUNTED_CHUNKS],
    unread: Unread,
    /// What is wrong while the daemon does not read.
    hung: Problem,
}

impl Line {
    pub(crate) fn new(first_step: u64, problem: Problem, hung: Problem) -> Self {
        Self {
            phase: Phase::Connecting,
            problem: Some(problem),
            plan_problem: None,
            settled: false,
            attempt: None,
            counters: Counters::default(),
            untimed_told: 0,
            lease: None,
            leases: 0,
            sequence: 0,
            next_step: first_step,
            open_step: None,
            open_unit: None,
            next_microbatch: [[0; KINDS]; COUNTED_CHUNKS],
            unread: Unread::default(),
            hung,
        }
    }

    /// Takes in a call of the training loop that counts from this time on, or else from now on.
    pub(crate) fn take(&mut self, call: Call, at_ns: Option<u64>) -> Wake {
        match call {
            Call::StepBegin => self.step_begin(at_ns),
            Call::StepEnd => self.step_end(at_ns),
            Call::InstructionBegin { instruction, chunk, microbatch } => {
                self.instruction_begin(instruction, chunk, microbatch, at_ns)
            }
            Call::InstructionEnd => self.instruction_end(at_ns),
        }
    }

    fn step_begin(&mut self, at_ns: Option<u64>) -> Wake {
        let step = self.next_step;
        self.next_step = step.wrapping_add(1);
        self.open_step = Some(step);
        self.open_unit = None;
        self.next_microbatch = [[0; KINDS]; COUNTED_CHUNKS];
        let begun = self.send(Mark::StepBegin(step), at_ns);
        if self.counters.untimed == self.untimed_told { begun } else { self.tell_untimed(begun) }
    }

    /// Counts a call that was to be timed, and was not.
    pub(crate) fn count_untimed(&mut self) {
        self.counters.untimed += 1;
    }

    /// Tells the daemon how many calls were untimed, if it is there and understands that.
    fn tell_untimed(&mut self, begun: Wake) -> Wake {
        let mark = Mark::Untimed(self.counters.untimed);
        let daemon = self.lease.as_ref().map_or("", |lease| lease.daemon.as_str());
        if !matches!(self.phase, Phase::Connected(_)) || !mark.is_taken_by(daemon) {
            return begun;
        }
        let dropped = self.counters.dropped;
        let told = self.send(mark, None);
        if self.counters.dropped == dropped {
            self.untimed_told = self.counters.untimed;
        }
        told
    }

    fn step_end(&mut self, at_ns: Option<u64>) -> Wake {
        match self.open_step.take() {
            Some(step) => self.send(Mark::StepEnd(step), at_ns),
            None => Wake::No,
        }
    }

    fn instruction_begin(
        &mut self,
        instruction: Instruction,
        chunk: u16,
        microbatch: Option<u32>,
        at_ns: Option<u64>,
    ) -> Wake {
        if self.open_step.is_none() || self.open_unit.is_some() {
            self.counters.misplaced += 1;
        }
        let microbatch = self.count(instruction, chunk, microbatch);
        let unit = Unit { instruction, chunk: Chunk(chunk), microbatch };
        self.open_unit = Some(unit);
        self.send(Mark::InstructionBegin(unit), at_ns)
    }

    fn instruction_end(&mut self, at_ns: Option<u64>) -> Wake {
        match self.open_unit.take() {
            Some(unit) => self.send(Mark::InstructionEnd(unit), at_ns),
            None => Wake::No,
        }
    }

    /// The microbatch given, or else the one after the last of this instruction in this step.
    fn count(
        &mut self,
        instruction: Instruction,
        chunk: u16,
        microbatch: Option<u32>,
    ) -> Microbatch {
        let kinds = self.next_microbatch.get_mut(usize::from(chunk));
        let Some(next) = kinds.and_then(|kinds| kinds.get_mut(instruction as usize)) else {
            return Microbatch(microbatch.unwrap_or(0));
        };
        let microbatch = microbatch.unwrap_or(*next);
        *next = microbatch.wrapping_add(1);
        Microbatch(microbatch)
    }

    fn send(&mut self, mark: Mark, at_ns: Option<u64>) -> Wake {
        let Phase::Connected(link) = &self.phase else {
            self.counters.dropped += 1;
            if let Phase::Dormant = self.phase {
                self.phase = Phase::Connecting;
                return Wake::Yes;
            }
            return Wake::No;
        };
        let client_ns = at_ns.unwrap_or_else(monotonic_ns);
        let event = Event { sequence: self.sequence, client_ns, mark };
        self.sequence += 1;
        match link.send_event(&event) {
            Delivery::Sent => {
                self.counters.sent += 1;
                Wake::No
            }
            Delivery::Dropped => {
                self.counters.dropped += 1;
                Wake::No
            }
            Delivery::Broken => {
                self.counters.dropped += 1;
                self.phase = Phase::Lost(Some(Arc::clone(link)));
                Wake::Yes
            }
        }
    }

    /// The number that the next step will have.
    pub(crate) fn next_step(&self) -> u64 {
        self.next_step
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters {
            reconnects: self.leases.saturating_sub(1),
            connected: matches!(self.phase, Phase::Connected(_)) && !self.unread.hangs(),
            ..self.counters
        }
    }

    /// Takes up a connection that holds a lease.
    pub(crate) fn connected(&mut self, link: Arc<Link>, lease: Lease) {
        self.phase = Phase::Connected(link);
        self.problem = None;
        self.lease = Some(lease);
        self.leases += 1;
        // A new session of the daemon's, which counts from 0.
        self.sequence = 0;
        self.unread = Unread::default();
        self.untimed_told = 0;
    }

    /// The lease, as far as it is known to go on.
    pub(crate) fn lease(&self) -> Option<Lease> {
        self.lease.clone().filter(|_| matches!(self.phase, Phase::Connected(_)))
    }

    /// Why there is no lease, as far as it is known by now.
    pub(crate) fn problem(&self) -> Option<Problem> {
        if let Phase::Connected(_) = self.phase {
            return self.unread.hangs().then(|| self.hung.clone());
        }
        let reason = self.problem.clone();
        Some(reason.unwrap_or_else(|| Problem::lost("an event could not be sent")))
    }

    /// Looks whether the daemon reads the events.
    pub(crate) fn look_for_a_hang(&mut self) {
        if let Phase::Connected(link) = &self.phase {
            let Counters { sent, dropped, .. } = self.counters;
            self.unread.look(link.unread(), sent, dropped);
        }
    }

    /// Looks whether the daemon has ended the session since the last event.
    pub(crate) fn look_for_the_end(&mut self) -> Wake {
        let Phase::Connected(link) = &self.phase else {
            return Wake::No;
        };
        let Some(problem) = link.farewell() else {
            return Wake::No;
        };
        let idle = problem.code == ProblemCode::Closed(ClosingReason::Idle);
        self.problem = Some(problem);
        if idle {
            self.phase = Phase::Dormant;
            return Wake::No;
        }
        self.phase = Phase::Lost(None);
        Wake::Yes
    }
}

/// `CLOCK_MONOTONIC`, so that the daemon can compare it with its own.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn line() -> Line {
        Line::new(5, Problem::no_answer(Path::new("/x")), Problem::unread(Path::new("/x")))
    }

    fn begun(line: &mut Line, instruction: Instruction, chunk: u16, given: Option<u32>) -> u32 {
        let _ = line.instruction_begin(instruction, chunk, given, None);
        line.open_unit.unwrap().microbatch.0
    }

    #[test]
    fn microbatches_are_counted_for_each_instruction_and_chunk_within_a_step() {
        use Instruction::{Backward, Forward};
        let mut line = line();
        let _ = line.step_begin(None);
        assert_eq!(begun(&mut line, Forward, 0, None), 0);
        assert_eq!(begun(&mut line, Forward, 0, None), 1);
        assert_eq!(begun(&mut line, Backward, 0, None), 0);
        assert_eq!(begun(&mut line, Forward, 1, None), 0);
        assert_eq!(begun(&mut line, Forward, 0, Some(7)), 7);
        assert_eq!(begun(&mut line, Forward, 0, None), 8);
        let _ = line.step_begin(None);
        assert_eq!(begun(&mut line, Forward, 0, None), 0);
    }

    #[test]
    fn a_chunk_or_microbatch_beyond_all_reason_is_no_harm() {
        let mut line = line();
        assert_eq!(begun(&mut line, Instruction::Forward, u16::MAX, Some(3)), 3);
        assert_eq!(begun(&mut line, Instruction::Forward, u16::MAX, None), 0);
        assert_eq!(begun(&mut line, Instruction::Forward, 0, Some(u32::MAX)), u32::MAX);
        assert_eq!(begun(&mut line, Instruction::Forward, 0, None), 0);
    }

    #[test]
    fn instructions_outside_a_step_and_inside_another_are_counted() {
        let mut line = line();
        begun(&mut line, Instruction::Forward, 0, None);
        let _ = line.instruction_end(None);
        let _ = line.step_begin(None);
        begun(&mut line, Instruction::Forward, 0, None);
        begun(&mut line, Instruction::Backward, 0, None);
        let _ = line.instruction_end(None);
        begun(&mut line, Instruction::Backward, 0, None);
        assert_eq!(line.counters().misplaced, 2);
    }

    #[test]
    fn an_end_without_a_begin_is_no_event() {
        let mut line = line();
        assert_eq!(line.step_end(None), Wake::No);
        assert_eq!(line.instruction_end(None), Wake::No);
        assert_eq!(line.counters().dropped, 0);
    }

    #[test]
    fn only_the_first_event_after_an_idle_end_wakes_the_background_thread() {
        let mut line = line();
        line.phase = Phase::Dormant;
        assert_eq!(line.step_begin(None), Wake::Yes);
        assert_eq!(line.step_end(None), Wake::No);
        assert_eq!((line.counters().dropped, line.next_step()), (2, 6));
    }
}

//! Where a rank stands in its plan: from each event follows the clock that its GPU should have now.
//!
//! Pure and without allocation: this is the hot path between the socket and the driver.

use pfo_protocol::{Event, Mark, Mhz, PlannedUnit, Unit};

use super::ahead::NextChange;
use crate::job::{StageClocks, StageSequence};

/// The SM clock that a rank should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Not locked.
    Default,
    /// The highest clock that is allowed.
    Highest,
    /// This clock.
    At(Mhz),
}

/// The first difference between a plan and what a rank does in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Mismatch {
    /// Events of the step are missing.
    #[error("{0} events before sequence number {1} did not arrive")]
    Lost(u64, u64),
    /// Another instruction began than the plan has here.
    #[error("instruction {position} was {began}, but the plan has {planned}")]
    Another {
        /// Which instruction of the step, from 0.
        position: usize,
        /// What the plan has.
        planned: Unit,
        /// What began.
        began: Unit,
    },
    /// More instructions than the plan has.
    #[error("{began} began after the last of the plan's {planned} instructions")]
    TooMany {
        /// How many the plan has.
        planned: usize,
        /// What began.
        began: Unit,
    },
    /// Fewer instructions than the plan has.
    #[error("the step ended after {ended} of the plan's {planned} instructions")]
    TooFew {
        /// How many ended.
        ended: usize,
        /// How many the plan has.
        planned: usize,
    },
    /// An instruction began inside another one.
    #[error("{began} began before {open} had ended")]
    Overlap {
        /// What was open.
        open: Unit,
        /// What began.
        began: Unit,
    },
    /// An instruction ended that had not begun.
    #[error("{0} ended, but had not begun")]
    NotBegun(Unit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No step has begun since the session opened or the last one ended.
    Outside,
    /// Every instruction of the step was complete and the plan's.
    Following,
    /// One was not: the rest of the step runs at the highest clock, if there is a plan.
    Astray,
}

/// An instruction that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    /// The instruction.
    pub unit: Unit,
    /// Its place in the step.
    pub position: usize,
    /// The clock that it should have had; `None` at default clocks.
    pub planned: Option<Mhz>,
    /// Whether the step left the plan, or events of it were lost, before the instruction ended.
    pub astray: bool,
    /// When it began, on the client's clock.
    pub began_ns: u64,
    /// When it ended, on the client's clock.
    pub ended_ns: u64,
}

/// The effect of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The step left the plan with this event.
    pub mismatch: Option<Mismatch>,
    /// An instruction has ended.
    pub finished: Option<Finished>,
    /// The step that the event is in or ends did not follow the plan, or events of it are lost.
    pub astray: bool,
}

/// A rank's place in its plan.
#[derive(Debug)]
pub(crate) struct Cursor {
    clocks: Option<StageClocks>,
    phase: Phase,
    position: usize,
    open: Option<(Unit, u64)>,
    /// `None` until the first event of a session that another daemon opened.
    next_event: Option<u64>,
    lost: u64,
    wish: Wish,
}

impl Default for Cursor {
    fn default() -> Self {
        Self {
            clocks: None,
            phase: Phase::Outside,
            position: 0,
            open: None,
            next_event: Some(0),
            lost: 0,
            wish: Wish::Default,
        }
    }
}

impl Cursor {
    /// The cursor of a rank that another daemon has followed until now.
    #[must_use]
    pub(crate) fn in_the_middle() -> Self {
        Self { next_event: None, ..Self::default() }
    }

    /// The clock that the GPU should have now.
    #[must_use]
    pub(crate) fn wish(&self) -> Wish {
        self.wish
    }

    /// Whether the next event, if it is the plan's, asks for another clock: only the end of an
    /// instruction does.
    #[must_use]
    pub(crate) fn is_before_a_change(&self) -> bool {
        let ends_next = self.phase == Phase::Following && self.open.is_some();
        ends_next && self.sequence().is_some() && self.planned_wish(self.next()) != self.wish
    }

    /// The change that follows the instruction that runs, if it asks for another clock.
    #[must_use]
    pub(crate) fn next_change(&self) -> Option<NextChange> {
        let (Phase::Following, Some((_, began_ns))) = (self.phase, self.open) else { return None };
        self.sequence()?;
        match (self.wish, self.planned_wish(self.next())) {
            (Wish::At(now), Wish::At(next)) if now != next => {
                Some(NextChange { position: self.position, began_ns, faster: next > now })
            }
            _ => None,
        }
    }

    /// Wishes for the clock of the next instruction although one runs.
    pub(crate) fn look_ahead(&mut self) {
        self.wish = self.planned_wish(self.next());
    }

    /// The instructions of a step of the plan that are known by their place.
    #[must_use]
    pub(crate) fn planned_instructions(&self) -> usize {
        self.sequence().map_or(0, |sequence| sequence.len())
    }

    /// Events that never arrived, in the whole session.
    #[must_use]
    pub(crate) fn lost_events(&self) -> u64 {
        self.lost
    }

    /// Follows another plan, or default clocks, from the step that begins now.
    pub(crate) fn follow(&mut self, clocks: Option<StageClocks>) {
        self.clocks = clocks;
    }

    /// The instructions that the plan expects.
    fn sequence(&self) -> Option<&StageSequence> {
        match &self.clocks {
            Some(StageClocks::Planned(sequence)) => Some(sequence),
            Some(StageClocks::Uniform(_)) | None => None,
        }
    }

    /// Takes the next event.
    pub(crate) fn event(&mut self, event: &Event) -> Outcome {
        let expected = self.next_event.unwrap_or(event.sequence);
        let missing = event.sequence.saturating_sub(expected);
        self.next_event = Some(event.sequence.saturating_add(1));
        let mut outcome = Outcome::default();
        if missing > 0 {
            // The numbers come from the peer, and may go back and forth.
            self.lost = self.lost.saturating_add(missing);
            outcome.mismatch = self.stray(Mismatch::Lost(missing, event.sequence));
        }
        let astray = self.phase == Phase::Astray;
        match event.mark {
            Mark::StepBegin(_) => {
                let unfinished = self.end_step();
                outcome.mismatch = outcome.mismatch.or(unfinished);
                self.begin_step();
            }
            Mark::StepEnd(_) => {
                let unfinished = self.end_step();
                outcome.mismatch = outcome.mismatch.or(unfinished);
            }
            Mark::InstructionBegin(unit) => {
                let stray = self.begin(unit, event.client_ns);
                outcome.mismatch = outcome.mismatch.or(stray);
            }
            Mark::InstructionEnd(unit) => match self.end(unit, event.client_ns) {
                Ok(finished) => outcome.finished = finished,
                Err(stray) => outcome.mismatch = outcome.mismatch.or(stray),
            },
        }
        outcome.astray = astray || outcome.mismatch.is_some();
        outcome
    }

    fn begin_step(&mut self) {
        self.phase = Phase::Following;
        self.position = 0;
        self.open = None;
        self.wish = self.planned_wish(0);
    }

    fn end_step(&mut self) -> Option<Mismatch> {
        let ended = self.position;
        let planned = self.sequence().map_or(ended, |sequence| sequence.len());
        let was = std::mem::replace(&mut self.phase, Phase::Outside);
        self.open = None;
        let short = was == Phase::Following && ended < planned;
        short.then_some(Mismatch::TooFew { ended, planned })
    }

    fn begin(&mut self, unit: Unit, at_ns: u64) -> Option<Mismatch> {
        if self.phase == Phase::Outside {
            return None;
        }
        let open = self.open.replace((unit, at_ns));
        let position = self.position;
        let planned = self.sequence().map(|sequence| (sequence.get(position), sequence.len()));
        let mismatch = match (open, planned) {
            (Some((open, _)), _) => Mismatch::Overlap { open, began: unit },
            (None, None) => return None,
            (None, Some((None, planned))) => Mismatch::TooMany { planned, began: unit },
            (None, Some((Some(&PlannedUnit { unit: planned, .. }), _))) if planned != unit => {
                Mismatch::Another { position, planned, began: unit }
            }
            (None, Some((Some(&PlannedUnit { mhz, .. }), _))) => {
                if self.phase == Phase::Following {
                    self.wish = Wish::At(mhz);
                }
                return None;
            }
        };
        self.stray(mismatch)
    }

    fn end(&mut self, unit: Unit, at_ns: u64) -> Result<Option<Finished>, Option<Mismatch>> {
        if self.phase == Phase::Outside {
            return Ok(None);
        }
        let began_ns = match self.open.take() {
            Some((open, began_ns)) if open == unit => began_ns,
            _ => return Err(self.stray(Mismatch::NotBegun(unit))),
        };
        let astray = self.phase == Phase::Astray;
        let position = self.position;
        let planned = match self.planned_wish(position) {
            Wish::At(mhz) => Some(mhz),
            Wish::Default | Wish::Highest => None,
        };
        if self.sequence().is_some() && !astray {
            // Requested now, the next clock settles while the rank waits for its neighbour.
            self.wish = self.planned_wish(self.next());
            self.position = self.position.saturating_add(1);
        }
        Ok(Some(Finished { unit, position, planned, astray, began_ns, ended_ns: at_ns }))
    }

    /// What follows the instruction at this place: after the last one, the first of the next step.
    fn next(&self) -> usize {
        let next = self.position.saturating_add(1);
        if self.sequence().is_some_and(|sequence| next < sequence.len()) { next } else { 0 }
    }

    fn planned_wish(&self, position: usize) -> Wish {
        match &self.clocks {
            Some(StageClocks::Planned(sequence)) => {
                sequence.get(position).map_or(Wish::Default, |planned| Wish::At(planned.mhz))
            }
            Some(StageClocks::Uniform(mhz)) => Wish::At(*mhz),
            None => Wish::Default,
        }
    }

    /// Stops comparing the rest of the step with the plan, and leaves the plan for it if there is
    /// one to follow.
    fn stray(&mut self, mismatch: Mismatch) -> Option<Mismatch> {
        if self.phase != Phase::Following {
            return None;
        }
        self.phase = Phase::Astray;
        self.sequence()?;
        self.wish = Wish::Highest;
        Some(mismatch)
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{Chunk, Instruction, Microbatch};

    use super::*;

    const F0: Unit =
        Unit { instruction: Instruction::Forward, chunk: Chunk(0), microbatch: Microbatch(0) };
    const B0: Unit =
        Unit { instruction: Instruction::Backward, chunk: Chunk(0), microbatch: Microbatch(0) };
    const B1: Unit =
        Unit { instruction: Instruction::Backward, chunk: Chunk(0), microbatch: Microbatch(1) };

    struct Driven {
        cursor: Cursor,
        sequence: u64,
    }

    impl Driven {
        fn with_plan() -> Self {
            let mut cursor = Cursor::default();
            let planned = [(F0, 900), (B0, 1200)];
            let planned = planned.map(|(unit, mhz)| PlannedUnit { unit, mhz: Mhz(mhz) });
            cursor.follow(Some(StageClocks::Planned(planned.into_iter().collect())));
            Self { cursor, sequence: 0 }
        }

        fn send(&mut self, mark: Mark) -> (Option<Mismatch>, Wish) {
            let event = Event { sequence: self.sequence, client_ns: self.sequence * 10, mark };
            self.sequence += 1;
            (self.cursor.event(&event).mismatch, self.cursor.wish())
        }
    }

    #[test]
    fn the_next_clock_is_wished_for_as_soon_as_an_instruction_ends() {
        let mut rank = Driven::with_plan();
        assert_eq!(rank.send(Mark::StepBegin(0)), (None, Wish::At(Mhz(900))));
        assert_eq!(rank.send(Mark::InstructionBegin(F0)), (None, Wish::At(Mhz(900))));
        assert_eq!(rank.send(Mark::InstructionEnd(F0)), (None, Wish::At(Mhz(1200))));
        assert_eq!(rank.send(Mark::InstructionBegin(B0)), (None, Wish::At(Mhz(1200))));
        assert_eq!(rank.send(Mark::InstructionEnd(B0)), (None, Wish::At(Mhz(900))));
        assert_eq!(rank.send(Mark::StepEnd(0)), (None, Wish::At(Mhz(900))));
    }

    #[test]
    fn a_change_is_expected_in_an_instruction_that_another_clock_follows() {
        let mut rank = Driven::with_plan();
        let mut expects = |mark| {
            rank.send(mark);
            rank.cursor.is_before_a_change()
        };
        assert!(!expects(Mark::StepBegin(0)));
        assert!(expects(Mark::InstructionBegin(F0)));
        assert!(!expects(Mark::InstructionEnd(F0)));
        assert!(expects(Mark::InstructionBegin(B0)));
        assert!(!expects(Mark::InstructionEnd(B0)));
        assert!(!expects(Mark::StepEnd(0)));
        assert!(!expects(Mark::StepBegin(1)));
        assert!(!expects(Mark::InstructionBegin(B1)), "the rest of the step is astray");
        rank.cursor.follow(Some(StageClocks::Uniform(Mhz(900))));
        rank.send(Mark::StepBegin(2));
        rank.send(Mark::InstructionBegin(F0));
        assert!(!rank.cursor.is_before_a_change(), "one clock for all");
    }

    #[test]
    fn a_finished_instruction_comes_with_its_clock_and_times() {
        let mut rank = Driven::with_plan();
        rank.send(Mark::StepBegin(0));
        rank.send(Mark::InstructionBegin(F0));
        let end = Event { sequence: 2, client_ns: 77, mark: Mark::InstructionEnd(F0) };
        let planned = Some(Mhz(900));
        let finished =
            Finished { unit: F0, position: 0, planned, astray: false, began_ns: 10, ended_ns: 77 };
        assert_eq!(rank.cursor.event(&end).finished, Some(finished));
    }

    #[test]
    fn after_a_mismatch_the_rest_of_the_step_wishes_for_the_highest_clock() {
        let mut rank = Driven::with_plan();
        rank.send(Mark::StepBegin(0));
        let mismatch = Mismatch::Another { position: 0, planned: F0, began: B0 };
        assert_eq!(rank.send(Mark::InstructionBegin(B0)), (Some(mismatch), Wish::Highest));
        assert_eq!(rank.send(Mark::InstructionEnd(B0)), (None, Wish::Highest));
        assert_eq!(rank.send(Mark::InstructionBegin(F0)), (None, Wish::Highest));
        assert_eq!(rank.send(Mark::StepEnd(0)), (None, Wish::Highest));
        assert_eq!(rank.send(Mark::StepBegin(1)), (None, Wish::At(Mhz(900))));
    }

    #[test]
    fn an_event_that_did_not_arrive_is_a_mismatch_of_its_step() {
        let mut rank = Driven::with_plan();
        rank.send(Mark::StepBegin(0));
        rank.sequence += 2;
        let (mismatch, wish) = rank.send(Mark::InstructionEnd(F0));
        assert_eq!((mismatch, wish), (Some(Mismatch::Lost(2, 3)), Wish::Highest));
        assert_eq!(rank.cursor.lost_events(), 2);
    }

    #[test]
    fn nothing_is_lost_before_the_first_event_that_a_new_daemon_sees() {
        let mut rank = Driven::with_plan();
        rank.cursor.next_event = Cursor::in_the_middle().next_event;
        rank.sequence = 1000;
        assert_eq!(rank.send(Mark::StepBegin(70)), (None, Wish::At(Mhz(900))));
        assert_eq!(rank.cursor.lost_events(), 0);
        rank.sequence += 1;
        assert_eq!(rank.send(Mark::InstructionBegin(F0)).0, Some(Mismatch::Lost(1, 1002)));
    }

    #[test]
    fn a_step_that_ends_early_is_a_mismatch_whether_or_not_its_end_arrives() {
        for mark in [Mark::StepEnd(0), Mark::StepBegin(1)] {
            let mut rank = Driven::with_plan();
            rank.send(Mark::StepBegin(0));
            assert_eq!(rank.send(mark).0, Some(Mismatch::TooFew { ended: 0, planned: 2 }));
        }
    }

    #[test]
    fn one_instruction_too_many_is_a_mismatch() {
        let mut rank = Driven::with_plan();
        rank.send(Mark::StepBegin(0));
        for unit in [F0, B0] {
            rank.send(Mark::InstructionBegin(unit));
            rank.send(Mark::InstructionEnd(unit));
        }
        let mismatch = Mismatch::TooMany { planned: 2, began: B1 };
        assert_eq!(rank.send(Mark::InstructionBegin(B1)), (Some(mismatch), Wish::Highest));
    }

    #[test]
    fn ends_and_begins_that_do_not_pair_are_mismatches() {
        let mut rank = Driven::with_plan();
        rank.send(Mark::StepBegin(0));
        assert_eq!(rank.send(Mark::InstructionEnd(F0)).0, Some(Mismatch::NotBegun(F0)));
        rank.send(Mark::StepBegin(1));
        rank.send(Mark::InstructionBegin(F0));
        let overlap = Mismatch::Overlap { open: F0, began: B0 };
        assert_eq!(rank.send(Mark::InstructionBegin(B0)).0, Some(overlap));
    }

    #[test]
    fn a_session_that_opens_inside_a_step_waits_for_the_next_one() {
        let mut rank = Driven::with_plan();
        assert_eq!(rank.send(Mark::InstructionEnd(B1)), (None, Wish::Default));
        assert_eq!(rank.send(Mark::InstructionBegin(F0)), (None, Wish::Default));
        assert_eq!(rank.send(Mark::StepBegin(7)), (None, Wish::At(Mhz(900))));
    }

    #[test]
    fn one_clock_for_everything_is_wished_for_whatever_runs() {
        let mut rank = Driven { cursor: Cursor::default(), sequence: 0 };
        rank.cursor.follow(Some(StageClocks::Uniform(Mhz(900))));
        let marks = [Mark::StepBegin(0), Mark::InstructionBegin(B1), Mark::InstructionEnd(F0)];
        for mark in marks.into_iter().chain([Mark::StepEnd(0)]) {
            assert_eq!(rank.send(mark), (None, Wish::At(Mhz(900))));
        }
    }

    #[test]
    fn what_ends_after_a_mismatch_is_astray() {
        for clocks in [None, Some(StageClocks::Uniform(Mhz(900)))] {
            let mut rank = Driven { cursor: Cursor::default(), sequence: 0 };
            rank.cursor.follow(clocks);
            rank.send(Mark::StepBegin(0));
            let astray = |rank: &mut Driven| {
                rank.send(Mark::InstructionBegin(F0));
                let mark = Mark::InstructionEnd(F0);
                let event = Event { sequence: rank.sequence, client_ns: 0, mark };
                rank.sequence += 1;
                rank.cursor.event(&event).finished.unwrap().astray
            };
            assert!(!astray(&mut rank));
            rank.sequence += 1;
            assert!(astray(&mut rank));
            rank.send(Mark::StepBegin(1));
            assert!(!astray(&mut rank));
        }
    }

    #[test]
    fn without_a_plan_nothing_is_wished_for_and_nothing_mismatches() {
        let mut rank = Driven { cursor: Cursor::default(), sequence: 0 };
        for mark in [Mark::StepBegin(0), Mark::InstructionEnd(F0), Mark::StepEnd(0)] {
            assert_eq!(rank.send(mark), (None, Wish::Default));
        }
    }
    #[test]
    fn sequence_numbers_and_times_at_their_end_do_no_harm() {
        let mut cursor = Driven::with_plan().cursor;
        let numbers = [u64::MAX, 0, u64::MAX, u64::MAX, 1, u64::MAX - 1];
        let marks = [
            Mark::StepBegin(u64::MAX),
            Mark::InstructionBegin(F0),
            Mark::InstructionEnd(F0),
            Mark::StepEnd(u64::MAX),
        ];
        for sequence in numbers {
            for client_ns in [u64::MAX, 0] {
                for mark in marks {
                    cursor.event(&Event { sequence, client_ns, mark });
                }
            }
        }
        assert_eq!(cursor.lost_events(), u64::MAX);
    }

    #[test]
    fn the_largest_unit_of_a_peer_is_a_mismatch_like_any_other() {
        let mut rank = Driven::with_plan();
        rank.send(Mark::StepBegin(0));
        let began = Unit {
            instruction: Instruction::Other,
            chunk: Chunk(u16::MAX),
            microbatch: Microbatch(u32::MAX),
        };
        let mismatch = Mismatch::Another { position: 0, planned: F0, began };
        assert_eq!(rank.send(Mark::InstructionBegin(began)), (Some(mismatch), Wish::Highest));
        assert!(mismatch.to_string().contains("4294967295"));
    }

    #[test]
    fn instructions_whose_times_run_backwards_are_finished_all_the_same() {
        let mut cursor = Driven::with_plan().cursor;
        let send = |cursor: &mut Cursor, sequence, client_ns, mark| {
            cursor.event(&Event { sequence, client_ns, mark }).finished
        };
        send(&mut cursor, 0, u64::MAX, Mark::StepBegin(0));
        send(&mut cursor, 1, u64::MAX, Mark::InstructionBegin(F0));
        let finished = send(&mut cursor, 2, 0, Mark::InstructionEnd(F0)).unwrap();
        assert_eq!((finished.began_ns, finished.ended_ns), (u64::MAX, 0));
    }
}

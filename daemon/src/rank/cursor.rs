//! Where a rank stands in its plan: from each event follows the clock that its GPU should have now.
//!
//! Pure and without allocation: this is the hot path between the socket and the driver.

use pfo_protocol::{Event, Mark, Mhz, PlannedUnit, Unit};

use super::mismatch::Mismatch;
use super::wish::Wish;
use crate::job::{StageClocks, StageSequence};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// No step has begun since the session opened or the last one ended.
    #[default]
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
    /// Its place in the plan's step, if that has one for it.
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
    /// Events before this one never arrived.
    pub lost: bool,
}

/// A rank's place in its plan.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    clocks: Option<StageClocks>,
    pub(super) phase: Phase,
    pub(super) position: usize,
    pub(super) open: Option<(Unit, u64)>,
    /// Until the first event of a session that another daemon opened.
    in_the_middle: bool,
    next_event: u64,
    lost: u64,
    misplaced: u64,
    has_begun_step: bool,
    pub(super) wish: Wish,
}

impl Cursor {
    /// The cursor of a rank that another daemon has followed until now.
    pub(crate) fn in_the_middle() -> Self {
        Self { in_the_middle: true, ..Self::default() }
    }

    /// The clock that the GPU should have now.
    pub(crate) fn wish(&self) -> Wish {
        self.wish
    }

    /// The instructions of a step of the plan that are known by their place.
    pub(crate) fn planned_instructions(&self) -> usize {
        self.sequence().map_or(0, |sequence| sequence.len())
    }

    /// Events that never arrived, in the whole session.
    pub(crate) fn lost_events(&self) -> u64 {
        self.lost
    }

    /// Instructions that began outside a step or inside another one.
    pub(crate) fn misplaced(&self) -> u64 {
        self.misplaced
    }

    /// Follows another plan, or default clocks, from the step that begins now.
    pub(crate) fn follow(&mut self, clocks: Option<StageClocks>) {
        self.clocks = clocks;
    }

    /// The instructions that the plan expects.
    pub(super) fn sequence(&self) -> Option<&StageSequence> {
        match &self.clocks {
            Some(StageClocks::Planned(sequence)) => Some(sequence),
            Some(StageClocks::Uniform(_)) | None => None,
        }
    }

    /// Takes the next event.
    pub(crate) fn event(&mut self, event: &Event) -> Outcome {
        let is_known = !std::mem::take(&mut self.in_the_middle);
        let missing = event.sequence.saturating_sub(self.next_event);
        self.next_event = event.sequence.saturating_add(1);
        let mut outcome = Outcome::default();
        if is_known && missing > 0 {
            // The numbers come from the peer, and may go back and forth.
            self.lost = self.lost.saturating_add(missing);
            outcome.lost = true;
            outcome.mismatch = self.stray(Mismatch::Lost(missing, event.sequence));
        }
        let astray = self.phase == Phase::Astray;
        let mismatch = match event.mark {
            Mark::StepBegin(_) => {
                let unfinished = self.end_step();
                self.begin_step();
                unfinished
            }
            Mark::StepEnd(_) => self.end_step(),
            Mark::InstructionBegin(unit) => self.begin(unit, event.client_ns),
            Mark::InstructionEnd(unit) => self.end(unit, event.client_ns, &mut outcome.finished),
            Mark::Untimed(_) => None,
        };
        outcome.mismatch = outcome.mismatch.or(mismatch);
        outcome.astray = astray || outcome.mismatch.is_some();
        outcome
    }

    fn begin_step(&mut self) {
        if !std::mem::replace(&mut self.has_begun_step, true) {
            // They may belong to a step that began before the session.
            self.misplaced = 0;
        }
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
        let misplaced = self.phase == Phase::Outside || self.open.is_some();
        self.misplaced = self.misplaced.saturating_add(misplaced.into());
        if self.phase == Phase::Outside {
            return None;
        }
        let open = self.open.replace((unit, at_ns));
        let position = self.position;
        if let Some((open, _)) = open {
            return self.stray(Mismatch::Overlap { open, began: unit });
        }
        if self.is_extra(unit) {
            self.look_ahead();
            return None;
        }
        let planned = self.sequence()?;
        match planned.get(position).copied() {
            None => self.stray(Mismatch::TooMany { planned: planned.len(), began: unit }),
            Some(PlannedUnit { unit: planned, .. }) if planned != unit => {
                self.stray(Mismatch::Another { position, planned, began: unit })
            }
            Some(PlannedUnit { mhz, .. }) => {
                if self.phase == Phase::Following {
                    self.wish = Wish::At(mhz);
                }
                None
            }
        }
    }

    fn end(
        &mut self,
        unit: Unit,
        ended_ns: u64,
        finished: &mut Option<Finished>,
    ) -> Option<Mismatch> {
        if self.phase == Phase::Outside {
            return None;
        }
        let Some((_, began_ns)) = self.open.take().filter(|(open, _)| *open == unit) else {
            return self.stray(Mismatch::NotBegun(unit));
        };
        let astray = self.phase == Phase::Astray;
        let extra = self.is_extra(unit);
        let position = if extra { usize::MAX } else { self.position };
        let planned = match self.planned_wish(position) {
            Wish::At(mhz) => Some(mhz),
            Wish::Default | Wish::Highest => None,
        };
        if self.sequence().is_some() && !astray && !extra {
            // Requested now, the next clock settles while the rank waits for its neighbour.
            self.position = position.saturating_add(1);
            self.look_ahead();
        }
        *finished = Some(Finished { unit, position, planned, astray, began_ns, ended_ns });
        None
    }

    /// Whether the plan says nothing of an instruction whose time does not depend on the clock: it runs at
    /// that of the instruction after it.
    pub(super) fn is_extra(&self, unit: Unit) -> bool {
        unit.instruction.is_fixed()
            && self.sequence().is_some_and(|planned| {
                planned.get(self.position).is_none_or(|planned| planned.unit != unit)
            })
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
    use pfo_protocol::{Chunk, Instruction, Mhz, Microbatch};

    use super::super::example::{B0, B1, Driven, F0};
    use super::*;

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
    fn instructions_outside_a_step_or_inside_another_one_are_counted() {
        let mut rank = Driven::with_plan();
        rank.send(Mark::InstructionBegin(B0));
        assert_eq!(rank.cursor.misplaced(), 1);
        rank.send(Mark::StepBegin(0));
        rank.send(Mark::InstructionBegin(F0));
        assert_eq!(
            rank.cursor.misplaced(),
            0,
            "the first may be of a step from before the session"
        );
        rank.send(Mark::InstructionBegin(B0));
        rank.send(Mark::StepEnd(0));
        rank.send(Mark::InstructionBegin(F0));
        assert_eq!(rank.cursor.misplaced(), 2);
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
        rank.cursor.in_the_middle = Cursor::in_the_middle().in_the_middle;
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
    fn what_takes_a_fixed_time_and_is_in_no_plan_runs_at_the_clock_of_what_comes() {
        let fixed = |instruction| Unit { instruction, ..B1 };
        let load = fixed(Instruction::Load);
        let mut rank = Driven::with_plan();
        rank.send(Mark::StepBegin(0));
        rank.cursor.look_at_wait();
        for (unit, extra, mhz) in [
            (F0, load, Mhz(900)),
            (B0, fixed(Instruction::P2p), Mhz(1200)),
            (F0, fixed(Instruction::OptimizerStep), Mhz(900)),
        ] {
            assert_eq!(rank.send(Mark::InstructionBegin(extra)), (None, Wish::At(mhz)));
            assert_eq!(rank.cursor.next_change(), None, "{extra} changes nothing");
            assert_eq!(rank.send(Mark::InstructionEnd(extra)), (None, Wish::At(mhz)));
            if extra.instruction != Instruction::OptimizerStep {
                assert_eq!(rank.send(Mark::InstructionBegin(unit)), (None, Wish::At(mhz)));
                assert_eq!(rank.send(Mark::InstructionEnd(unit)).0, None);
            }
        }
        assert_eq!(rank.send(Mark::StepEnd(0)), (None, Wish::At(Mhz(900))));
    }

    #[test]
    fn an_instruction_of_fixed_time_that_the_plan_has_must_come() {
        let load = Unit { instruction: Instruction::Load, ..F0 };
        let mut rank = Driven { cursor: Cursor::default(), sequence: 0 };
        let planned = [load, F0].map(|unit| PlannedUnit { unit, mhz: Mhz(900), wait_mhz: None });
        rank.cursor.follow(Some(StageClocks::Planned(planned.into_iter().collect())));
        rank.send(Mark::StepBegin(0));
        let mismatch = Mismatch::Another { position: 0, planned: load, began: F0 };
        assert_eq!(rank.send(Mark::InstructionBegin(F0)).0, Some(mismatch));
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

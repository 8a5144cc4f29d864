//! The clock that a rank should have, ahead of its events: that of the instruction after the one
//! that runs, or of a wait.

use pfo_protocol::{Mhz, PlannedUnit};

use super::ahead::NextChange;
use super::cursor::{Cursor, Phase};

/// The SM clock that a rank should have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Not locked.
    #[default]
    Default,
    /// The highest clock that is allowed.
    Highest,
    /// This clock.
    At(Mhz),
}

impl Cursor {
    /// Whether the next event, if it is the plan's, asks for another clock: the end of an
    /// instruction does, and so does a begin in a wait with a clock of its own.
    pub(crate) fn is_before_a_change(&self) -> bool {
        self.coming().is_some_and(|coming| Wish::At(coming.mhz) != self.wish)
    }

    /// The change that follows the instruction that runs, if it asks for another clock.
    pub(crate) fn next_change(&self) -> Option<NextChange> {
        let open = self.open.filter(|(unit, _)| !self.is_extra(*unit));
        let (Some((_, began_ns)), Wish::At(now)) = (open, self.wish) else { return None };
        let next = self.coming()?.mhz;
        let change = NextChange { position: self.position, began_ns, to: next, faster: next > now };
        (next != now).then_some(change)
    }

    /// Wishes for the clock of the next instruction although one runs or the rank waits.
    pub(crate) fn look_ahead(&mut self) {
        self.wish = self.coming().map_or(self.wish, |coming| Wish::At(coming.mhz));
    }

    /// The clock of the wait that the rank is in, if the plan has one for it, and that of the
    /// instruction after it.
    pub(crate) fn wait_clocks(&self) -> Option<[Mhz; 2]> {
        let coming = self.coming().filter(|_| self.open.is_none())?;
        Some([coming.wait_mhz?, coming.mhz])
    }

    /// Wishes for the clock of the wait that the rank is in.
    pub(crate) fn look_at_wait(&mut self) {
        self.wish = self.wait_clocks().map_or(self.wish, |[wait, _]| Wish::At(wait));
    }

    /// The instruction that begins next: after the last one, the first of the next step.
    fn coming(&self) -> Option<&PlannedUnit> {
        let sequence = self.sequence().filter(|_| self.phase != Phase::Astray)?;
        let runs = self.open.is_some_and(|(unit, _)| !self.is_extra(unit));
        let next = self.position.saturating_add(runs.into());
        sequence.get(next).or(sequence.first())
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Mark;

    use super::super::example::{B0, B1, Driven, F0};
    use super::*;
    use crate::job::StageClocks;

    #[test]
    fn a_wait_may_have_its_own_clock_over_the_end_of_a_step_until_the_next_one_is_asked_for() {
        let mut rank = Driven::with_plan();
        let mut waits = |mark| {
            rank.send(mark);
            rank.cursor.look_at_wait();
            (rank.cursor.wait_clocks().map(|[wait, _]| wait), rank.cursor.wish())
        };
        let at = |mhz| (Some(Mhz(mhz)), Wish::At(Mhz(mhz)));
        assert_eq!(waits(Mark::StepBegin(0)), at(300));
        assert_eq!(waits(Mark::InstructionBegin(F0)), (None, Wish::At(Mhz(900))));
        assert_eq!(waits(Mark::InstructionEnd(F0)), at(400));
        assert_eq!(waits(Mark::InstructionBegin(B0)), (None, Wish::At(Mhz(1200))));
        for mark in [Mark::InstructionEnd(B0), Mark::StepEnd(0), Mark::StepBegin(1)] {
            assert_eq!(waits(mark), at(300), "{mark:?}");
        }
        assert!(rank.cursor.is_before_a_change() && rank.cursor.next_change().is_none());
        rank.cursor.look_ahead();
        assert_eq!(rank.cursor.wish(), Wish::At(Mhz(900)));
        assert!(!rank.cursor.is_before_a_change());
        assert_eq!(rank.send(Mark::InstructionBegin(F0)), (None, Wish::At(Mhz(900))));
    }

    #[test]
    fn a_rank_that_is_astray_has_no_clock_for_its_waits() {
        let mut rank = Driven::with_plan();
        rank.send(Mark::StepBegin(0));
        rank.send(Mark::InstructionEnd(F0));
        rank.cursor.look_at_wait();
        assert_eq!((rank.cursor.wait_clocks(), rank.cursor.wish()), (None, Wish::Highest));
        rank.cursor.follow(None);
        rank.send(Mark::StepBegin(1));
        rank.cursor.look_at_wait();
        assert_eq!((rank.cursor.wait_clocks(), rank.cursor.wish()), (None, Wish::Default));
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
}

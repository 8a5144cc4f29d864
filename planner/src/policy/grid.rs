//! The clocks that a policy may give to any instruction.

use std::collections::BTreeSet;

use pfo_vocabulary::Mhz;

use crate::error::PlanError;
use crate::pipeline::Pipeline;

/// Clocks by rising MHz; never empty.
pub(crate) struct Grid {
    clocks: Vec<Mhz>,
}

impl Grid {
    /// The clocks that were measured for every instruction. Instructions that were measured at a
    /// single clock do not count.
    ///
    /// # Errors
    /// [`PlanError::NoCommonClock`] if there is none.
    pub(crate) fn new(pipeline: &Pipeline) -> Result<Self, PlanError> {
        let profile = pipeline.profile();
        let mut common: Option<BTreeSet<Mhz>> = None;
        let mut seen = BTreeSet::new();
        for operation in &pipeline.network().operations {
            let is_free = operation.is_run() && !operation.instruction.is_fixed();
            if !is_free || !seen.insert((operation.stage, operation.instruction, operation.part()))
            {
                continue;
            }
            let table =
                profile.part_table(operation.stage, operation.instruction, operation.part());
            if table.len() > 1 {
                let clocks: BTreeSet<Mhz> = table.iter().map(|row| row.frequency).collect();
                common = Some(match common {
                    Some(common) => common.intersection(&clocks).copied().collect(),
                    None => clocks,
                });
            }
        }
        let highest =
            || profile.rows().map(|(_, _, row)| row.frequency).max().into_iter().collect();
        let clocks: Vec<Mhz> = common.unwrap_or_else(highest).into_iter().collect();
        if clocks.is_empty() {
            return Err(PlanError::NoCommonClock);
        }
        Ok(Self { clocks })
    }

    pub(crate) fn highest(&self) -> Mhz {
        self.clocks[self.clocks.len() - 1]
    }

    /// From the highest down.
    pub(crate) fn falling(&self) -> impl Iterator<Item = Mhz> + '_ {
        self.clocks.iter().rev().copied()
    }

    /// From the highest down, at least `step` apart.
    pub(crate) fn spaced(&self, step: Mhz) -> Vec<Mhz> {
        let mut spaced = vec![self.highest()];
        for clock in self.falling() {
            if clock.0 + step.0 <= spaced[spaced.len() - 1].0 {
                spaced.push(clock);
            }
        }
        spaced
    }

    /// The lowest clock that is at least `step` above this one; the highest, if none is.
    pub(crate) fn raised(&self, clock: Mhz, step: Mhz) -> Mhz {
        let above = self.clocks.partition_point(|other| other.0 < clock.0 + step.0);
        self.clocks.get(above).copied().unwrap_or(self.highest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::name::Schedule;
    use crate::test_profiles::{profile, unequal};

    fn grid() -> Grid {
        let schedule = Schedule::OneForwardOneBackward;
        Grid::new(&Pipeline::new(&unequal(), schedule, 2).unwrap()).unwrap()
    }

    #[test]
    fn spaced_clocks_step_down_from_the_highest() {
        assert_eq!(grid().spaced(Mhz(10)), [Mhz(1400), Mhz(1390), Mhz(1380)]);
        assert_eq!(grid().spaced(Mhz(15)), [Mhz(1400), Mhz(1380)]);
        assert_eq!(grid().spaced(Mhz(500)), [Mhz(1400)]);
    }

    #[test]
    fn a_clock_is_raised_to_what_was_measured_and_no_further() {
        assert_eq!(grid().raised(Mhz(1380), Mhz(10)), Mhz(1390));
        assert_eq!(grid().raised(Mhz(1380), Mhz(15)), Mhz(1400));
        assert_eq!(grid().raised(Mhz(1390), Mhz(30)), Mhz(1400));
        assert_eq!(grid().raised(Mhz(1400), Mhz(30)), Mhz(1400));
    }

    #[test]
    fn only_clocks_that_every_instruction_has_count() {
        let rows = |n: usize| vec![(0.1, 9.0); n];
        let uneven = profile(&[[&rows(5), &rows(3)]]);
        let pipeline = Pipeline::new(&uneven, Schedule::OneForwardOneBackward, 1).unwrap();
        assert_eq!(Grid::new(&pipeline).unwrap().falling().last(), Some(Mhz(1380)));
    }
}

//! What the instructions of a stage should take: their profiled times at each clock. Pure.

use pfo_planner::Profile;
use pfo_protocol::{Instruction, Mhz, Stage};

pub(crate) const KINDS: usize = Instruction::ALL.len();

/// The times of one stage.
#[derive(Debug, Default)]
pub(crate) struct StageTimes {
    /// For each kind, nanoseconds by rising clock.
    kinds: [Box<[(Mhz, u64)]>; KINDS],
}

/// The part of an instruction that ran before its clock was in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late {
    /// How long that was, in nanoseconds.
    pub(crate) ns: u64,
    /// The clock that was locked before, if one was.
    pub(crate) clock: Option<Mhz>,
}

impl StageTimes {
    /// The times of every stage of a profile.
    pub(crate) fn of(profile: &Profile) -> Vec<Self> {
        let times = |stage| {
            let kinds = Instruction::ALL.map(|kind| {
                let rows = profile.table(Stage(stage), kind).iter();
                rows.map(|row| (row.frequency, (row.time_s * 1e9) as u64)).collect()
            });
            Self { kinds }
        };
        (0..profile.num_stages()).map(times).collect()
    }

    /// The clocks at which every kind of instruction of the stage was profiled, rising.
    pub(crate) fn common_clocks(&self) -> Vec<Mhz> {
        let run = || self.kinds.iter().filter(|rows| !rows.is_empty());
        let clocks = run().next().map(|rows| rows.iter().map(|row| row.0)).into_iter().flatten();
        let is_common = |clock: &Mhz| run().all(|rows| rows.iter().any(|row| row.0 == *clock));
        clocks.filter(is_common).collect()
    }

    /// Nanoseconds that an instruction takes at the clock at which it is fastest.
    pub(crate) fn shortest(&self, instruction: Instruction) -> Option<u64> {
        self.kinds[instruction as usize].iter().map(|row| row.1).min()
    }

    /// Nanoseconds that an instruction takes at a clock at which it was profiled.
    pub(crate) fn at(&self, instruction: Instruction, clock: Mhz) -> Option<u64> {
        let rows = &self.kinds[instruction as usize];
        rows.binary_search_by_key(&clock, |row| row.0).ok().map(|index| rows[index].1)
    }

    /// Nanoseconds that an instruction should have taken, if both of its clocks were profiled. Each
    /// part of its time does as much of the work as the clock of that part allows.
    pub(crate) fn should_take(
        &self,
        instruction: Instruction,
        clock: Mhz,
        late: Late,
    ) -> Option<u64> {
        let whole = self.at(instruction, clock)?;
        if late.ns == 0 {
            return Some(whole);
        }
        let before = self.at(instruction, late.clock?)?;
        let done = late.ns as f64 / before.max(1) as f64;
        if done >= 1.0 {
            return Some(before);
        }
        Some(late.ns.saturating_add(((1.0 - done) * whole as f64) as u64))
    }
}

#[cfg(test)]
mod tests {
    use pfo_planner::Measurement;

    use super::*;

    const MS: u64 = 1_000_000;
    const AT_ONCE: Late = Late { ns: 0, clock: None };

    fn times() -> StageTimes {
        let row = |mhz, time_s| Measurement { frequency: Mhz(mhz), time_s, energy_j: 1.0 };
        let rows = [row(700, 0.2), row(1400, 0.1)];
        let rows = rows.map(|row| (Stage(0), Instruction::Forward, row));
        StageTimes::of(&Profile::from_measurements(rows).unwrap()).swap_remove(0)
    }

    fn should_ms(clock: u32, late: Late) -> Option<u64> {
        times().should_take(Instruction::Forward, Mhz(clock), late).map(|ns| ns / MS)
    }

    #[test]
    fn an_instruction_at_one_clock_takes_what_was_profiled() {
        assert_eq!(should_ms(1400, AT_ONCE), Some(100));
        assert_eq!(should_ms(700, AT_ONCE), Some(200));
    }

    #[test]
    fn a_clock_that_comes_late_counts_from_then_on() {
        let late = |ms, clock| Late { ns: ms * MS, clock: Some(Mhz(clock)) };
        assert_eq!(should_ms(700, late(50, 1400)), Some(150));
        assert_eq!(should_ms(1400, late(50, 700)), Some(125));
        // It was over before.
        assert_eq!(should_ms(700, late(100, 1400)), Some(100));
        assert_eq!(should_ms(700, late(160, 1400)), Some(100));
    }

    #[test]
    fn what_was_not_profiled_is_not_known() {
        assert_eq!(should_ms(1000, AT_ONCE), None);
        assert_eq!(should_ms(1400, Late { ns: 1, clock: None }), None);
        assert_eq!(should_ms(1400, Late { ns: 1, clock: Some(Mhz(1000)) }), None);
        assert_eq!(times().should_take(Instruction::Backward, Mhz(700), AT_ONCE), None);
    }
}

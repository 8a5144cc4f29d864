//! A plan as `pfod` takes it: for each stage, the clock of each unit of a step. Numbers only,
//! checked where they are decoded.

use serde::{Deserialize, Serialize};

use pfo_vocabulary::{Mhz, Unit};

/// The most stages of a clock table.
pub(crate) const MOST_STAGES: usize = 4096;

/// The longest step that a plan may predict, in seconds.
const LONGEST_S: f64 = 1e6;

/// The largest energy of a step that a plan may predict, in joules.
const LARGEST_J: f64 = 1e12;

/// One unit of a stage's step and its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedUnit {
    /// The unit.
    pub unit: Unit,
    /// The SM clock that it runs at.
    pub mhz: Mhz,
    /// The SM clock of the wait before it, if that has one of its own.
    pub wait_mhz: Option<Mhz>,
}

impl PlannedUnit {
    /// Its clock, and that of the wait before it if there is one.
    pub fn clocks(&self) -> impl Iterator<Item = Mhz> {
        [Some(self.mhz), self.wait_mhz].into_iter().flatten()
    }
}

/// What a plan predicts of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// The time of a step, in seconds.
    pub time_s: f64,
    /// The energy of a step, one rank of each stage together, in joules.
    pub energy_j: f64,
}

/// The clocks of every unit of a step, stage by stage. A stage without units is none of the node's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct ClockTable {
    num_microbatches: u32,
    predicted: Option<Predicted>,
    stages: Vec<Vec<PlannedUnit>>,
}

#[derive(Deserialize)]
struct Unchecked {
    num_microbatches: u32,
    predicted: Option<Predicted>,
    stages: Vec<Vec<PlannedUnit>>,
}

/// Why numbers are no clock table.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ClockTableError {
    /// No stage, or more than any pipeline has.
    #[error("a clock table has 1 to {MOST_STAGES} stages, this one has {0}")]
    Stages(usize),
    /// Stages that run nothing, all of them.
    #[error("no stage has an instruction in the plan")]
    Empty,
    /// A clock that no GPU has.
    #[error(
        "stage {stage}, instruction {position}: no GPU has a clock of {mhz}; it must be 1 MHz to {max}",
        max = Mhz::MAX
    )]
    Clock {
        /// The stage.
        stage: usize,
        /// Which instruction of it, from 0.
        position: usize,
        /// The clock.
        mhz: Mhz,
    },
    /// A prediction that no step can meet.
    #[error(
        "a step of {time_s} s and {energy_j} J is impossible; a plan predicts at most {LONGEST_S} s and \
         {LARGEST_J} J, or nothing"
    )]
    Predicted {
        /// The predicted time, in seconds.
        time_s: f64,
        /// The predicted energy, in joules.
        energy_j: f64,
    },
}

impl ClockTable {
    /// Checks the numbers of a clock table.
    ///
    /// # Errors
    /// The first number that cannot be one of a clock table.
    pub fn new(
        num_microbatches: u32,
        predicted: Option<Predicted>,
        stages: Vec<Vec<PlannedUnit>>,
    ) -> Result<Self, ClockTableError> {
        if !(1..=MOST_STAGES).contains(&stages.len()) {
            return Err(ClockTableError::Stages(stages.len()));
        }
        if stages.iter().all(Vec::is_empty) {
            return Err(ClockTableError::Empty);
        }
        for (stage, units) in stages.iter().enumerate() {
            for (position, unit) in units.iter().enumerate() {
                if let Some(mhz) = unit.clocks().find(|mhz| !mhz.is_plausible()) {
                    return Err(ClockTableError::Clock { stage, position, mhz });
                }
            }
        }
        if let Some(Predicted { time_s, energy_j }) = predicted {
            let possible = time_s > 0.0 && time_s <= LONGEST_S && energy_j.abs() <= LARGEST_J;
            if !possible {
                return Err(ClockTableError::Predicted { time_s, energy_j });
            }
        }
        Ok(Self { num_microbatches, predicted, stages })
    }

    /// The microbatches of a step.
    #[must_use]
    pub fn num_microbatches(&self) -> u32 {
        self.num_microbatches
    }

    /// What the plan predicts of a step, if it predicts anything.
    #[must_use]
    pub fn predicted(&self) -> Option<Predicted> {
        self.predicted
    }

    /// The units of every stage, in the order in which it runs them; none of a stage that is left
    /// out.
    #[must_use]
    pub fn stages(&self) -> &[Vec<PlannedUnit>] {
        &self.stages
    }

    /// The units of all stages.
    #[must_use]
    pub fn num_units(&self) -> usize {
        self.stages.iter().map(Vec::len).sum()
    }

    /// Takes the units of every stage out.
    #[must_use]
    pub fn into_stages(self) -> Vec<Vec<PlannedUnit>> {
        self.stages
    }
}

impl TryFrom<Unchecked> for ClockTable {
    type Error = ClockTableError;

    fn try_from(unchecked: Unchecked) -> Result<Self, ClockTableError> {
        let Unchecked { num_microbatches, predicted, stages } = unchecked;
        Self::new(num_microbatches, predicted, stages)
    }
}

#[cfg(test)]
mod tests {
    use pfo_vocabulary::Instruction;

    use super::*;
    use crate::codec;

    fn unit(mhz: u32) -> PlannedUnit {
        PlannedUnit { unit: Unit::new(Instruction::Forward, 0), mhz: Mhz(mhz), wait_mhz: None }
    }

    fn waiting(mhz: u32) -> PlannedUnit {
        PlannedUnit { wait_mhz: Some(Mhz(mhz)), ..unit(900) }
    }

    fn decoded(
        predicted: Option<(f64, f64)>,
        stages: Vec<Vec<PlannedUnit>>,
    ) -> Result<ClockTable, String> {
        let predicted = predicted.map(|(time_s, energy_j)| Predicted { time_s, energy_j });
        let mut bytes = Vec::new();
        codec::append(&(1u32, predicted, stages), &mut bytes).unwrap();
        codec::decode(&bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn a_table_that_was_encoded_is_decoded_as_the_same() {
        let table = decoded(Some((1.0, 2.0)), vec![vec![unit(900), waiting(210)]]).unwrap();
        let mut bytes = Vec::new();
        codec::append(&table, &mut bytes).unwrap();
        assert_eq!(codec::decode::<ClockTable>(&bytes).unwrap(), table);
    }

    #[test]
    fn a_table_may_leave_out_the_stages_of_other_nodes() {
        let table = decoded(None, vec![Vec::new(), vec![unit(900)], Vec::new()]).unwrap();
        assert_eq!((table.stages().len(), table.num_units()), (3, 1));
    }

    #[test]
    fn the_largest_numbers_are_still_a_clock_table() {
        let stages =
            vec![vec![PlannedUnit { wait_mhz: Some(Mhz::MAX), ..unit(Mhz::MAX.0) }]; MOST_STAGES];
        let table = decoded(Some((LONGEST_S, -LARGEST_J)), stages).unwrap();
        assert_eq!(table.num_units(), MOST_STAGES);
    }

    #[test]
    fn the_bytes_of_a_clock_table_are_the_documented_ones() {
        let predicted = Predicted { time_s: 1.5, energy_j: 2.0 };
        let units = vec![
            unit(900),
            PlannedUnit { unit: Unit::new(Instruction::Backward, 0), ..waiting(210) },
        ];
        let table = ClockTable::new(1, Some(predicted), vec![units]).unwrap();
        let mut bytes = Vec::new();
        codec::append(&table, &mut bytes).unwrap();
        #[rustfmt::skip]
        assert_eq!(bytes, [
            1, 0, 0, 0,                                     // microbatches
            1,                                              // some: predicted
            0, 0, 0, 0, 0, 0, 0xf8, 0x3f,                   // 1.5 s
            0, 0, 0, 0, 0, 0, 0, 0x40,                      // 2 J
            1, 0, 0, 0, 0, 0, 0, 0,                         // one stage
            2, 0, 0, 0, 0, 0, 0, 0,                         // two units
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x84, 3, 0, 0,    // forward, chunk, microbatch, 900 MHz
            0,                                              // none: the wait before it
            1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x84, 3, 0, 0,    // backward, chunk, microbatch, 900 MHz
            1, 0xd2, 0, 0, 0,                               // some: waits at 210 MHz
        ]);
    }

    #[test]
    fn numbers_that_cannot_be_are_refused_where_they_are_decoded() {
        let cases = [
            (None, vec![], "has 0"),
            (None, vec![vec![unit(900)]; MOST_STAGES + 1], "has 4097"),
            (None, vec![Vec::new(), Vec::new()], "no stage has an instruction"),
            (None, vec![vec![unit(900)], vec![unit(900), unit(0)]], "stage 1, instruction 1"),
            (None, vec![vec![unit(10_001)]], "10001 MHz; it must be 1 MHz to 10000 MHz"),
            (None, vec![vec![unit(u32::MAX)]], "4294967295 MHz"),
            (None, vec![vec![unit(900), waiting(0)]], "instruction 1: no GPU has a clock of 0 MHz"),
            (None, vec![vec![waiting(10_001)]], "10001 MHz"),
            (Some((0.0, 1.0)), vec![vec![unit(900)]], "a step of 0 s"),
            (Some((-1.0, 1.0)), vec![vec![unit(900)]], "a step of -1 s"),
            (Some((1.0, f64::NAN)), vec![vec![unit(900)]], "NaN J"),
            (Some((f64::NAN, 1.0)), vec![vec![unit(900)]], "NaN s"),
            (Some((1e300, 1.0)), vec![vec![unit(900)]], "impossible"),
            (Some((1.0, f64::INFINITY)), vec![vec![unit(900)]], "inf J"),
        ];
        for (predicted, stages, part) in cases {
            let error = decoded(predicted, stages).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}

//! Random small profiles that can run any schedule: tables of any shape, noise included, so that
//! time need not rise nor energy fall as clocks fall.

use std::ops::RangeInclusive;

use pfo_planner::{Instruction, Measurement, Mhz, Profile, Stage};
use proptest::prelude::*;

const INSTRUCTIONS: [Instruction; 8] = [
    Instruction::Forward,
    Instruction::Backward,
    Instruction::ForwardBackward,
    Instruction::Recomputation,
    Instruction::BackwardInput,
    Instruction::BackwardWeight,
    Instruction::Load,
    Instruction::OptimizerStep,
];

/// Profiles of this number of stages, with up to this number of clocks of each instruction.
pub(crate) fn profiles(
    stages: RangeInclusive<usize>,
    clocks: usize,
) -> impl Strategy<Value = Profile> {
    // Seconds not closer to each other than a measurement could tell.
    let seconds = (100_u32..2000).prop_map(|tenths_of_ms| f64::from(tenths_of_ms) * 1e-4);
    let table = prop::collection::vec((seconds, 1.0_f64..60.0), 1..=clocks);
    let stage = prop::collection::vec(table, INSTRUCTIONS.len());
    prop::collection::vec(stage, stages).prop_map(|stages| {
        let mut rows = Vec::new();
        for (stage, tables) in (0..).map(Stage).zip(&stages) {
            for (instruction, table) in INSTRUCTIONS.into_iter().zip(tables) {
                for (index, &(time_s, energy_j)) in (0..).zip(table) {
                    let frequency = Mhz(1400 - 15 * index);
                    rows.push((stage, instruction, Measurement { frequency, time_s, energy_j }));
                }
            }
        }
        Profile::from_measurements(rows).unwrap()
    })
}

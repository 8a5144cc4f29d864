//! What was measured of one stage and instruction.

use crate::profile::{Measurement, Profile};
use crate::quantity::Quantity;
use crate::repeats::Repeats;
use pfo_vocabulary::Instruction;
use pfo_vocabulary::Stage;

/// The rows of one stage and instruction, by rising clock.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a> {
    pub(crate) stage: Stage,
    pub(crate) instruction: Instruction,
    pub(crate) rows: &'a [Measurement],
    pub(crate) profile: &'a Profile,
}

impl<'a> Table<'a> {
    pub(crate) fn values(&self, quantity: Quantity) -> Vec<f64> {
        self.rows.iter().map(|row| quantity.of(row)).collect()
    }

    /// How often each row was measured, and how much that scattered.
    pub(crate) fn repeats(self) -> impl Iterator<Item = Repeats> + 'a {
        let Self { stage, instruction, rows, profile } = self;
        rows.iter().map(move |row| profile.repeats(stage, instruction, row.frequency))
    }

    /// How often each row was measured.
    pub(crate) fn counts(self) -> Vec<f64> {
        self.repeats().map(|repeats| repeats.count.into()).collect()
    }
}

//! What recording a rank comes to.

use pfo_protocol::{InstructionSample, TrialRow, WaitPower};

/// A step, as one rank began it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StepMark {
    /// Its number.
    pub(crate) step: u64,
    /// When it began.
    pub(crate) at_ns: u64,
    /// What the counter showed then.
    pub(crate) energy_j: Option<f64>,
}

/// What was recorded of one rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorded {
    /// Every step of the range and the one after it.
    pub(crate) steps: Vec<StepMark>,
    /// Readings of the counter that powers were found from.
    pub(crate) readings: u64,
    /// Readings that fitted no powers.
    pub(crate) stray_readings: u64,
    /// The instructions.
    pub(crate) rows: Vec<TrialRow>,
    /// The waits.
    pub(crate) waits: Vec<WaitPower>,
    /// Each instruction by itself, if these were to be kept.
    pub(crate) samples: Vec<InstructionSample>,
    /// How many more of these there were.
    pub(crate) dropped_samples: u64,
}

//! What recording a rank comes to.

use pfo_protocol::{InstructionSample, TrialRow, WaitPower};

/// A step, as one rank began it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepMark {
    /// Its number.
    pub step: u64,
    /// When it began.
    pub at_ns: u64,
    /// What the counter showed then.
    pub energy_j: Option<f64>,
}

/// What was recorded of one rank.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// Every step of the range and the one after it.
    pub steps: Vec<StepMark>,
    /// Steps of the range that went astray.
    pub mismatched_steps: u64,
    /// Readings of the counter that powers were found from.
    pub readings: u64,
    /// Readings that fitted no powers.
    pub stray_readings: u64,
    /// The instructions.
    pub rows: Vec<TrialRow>,
    /// The waits.
    pub waits: Vec<WaitPower>,
    /// Each instruction by itself, if these were to be kept.
    pub samples: Vec<InstructionSample>,
    /// How many more of these there were.
    pub dropped_samples: u64,
}

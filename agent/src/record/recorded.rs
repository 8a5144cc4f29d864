//! What recording a rank leads to.

use pfo_protocol::{InstructionSample, TrialRow, WaitPower};

/// A step, as one rank began it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StepMark {
    pub(crate) step: u64,
    pub(crate) at_ns: u64,
    /// What the energy counter showed then, in joules.
    pub(crate) energy_j: Option<f64>,
}

/// What was recorded of one rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorded {
    /// Every step of the range and the one after it.
    pub(crate) steps: Vec<StepMark>,
    /// Steps of the range in which its instructions did not follow the plan, or events were lost.
    pub(crate) mismatched_steps: u64,
    /// Readings of the counter that powers were found from.
    pub(crate) readings: u64,
    /// Readings that fitted no powers.
    pub(crate) stray_readings: u64,
    pub(crate) rows: Vec<TrialRow>,
    pub(crate) waits: Vec<WaitPower>,
    /// The instructions one by one, if they were to be kept.
    pub(crate) samples: Vec<InstructionSample>,
    /// How many more instructions found no room.
    pub(crate) dropped_samples: u64,
}

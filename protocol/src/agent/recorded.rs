//! What the agent makes of a trial: the time and energy of each kind of instruction, and the power
//! of waits.
//!
//! A GPU without an energy counter, and a trial with too few steps, have no figure instead of a
//! wrong one.

use serde::{Deserialize, Serialize};

use pfo_vocabulary::{Chunk, Instruction, Mhz, Rank};

use crate::trial::TrialResult;

/// The largest error of a wait's power, as a share of it, at which the power is known.
const LARGEST_ERROR: f64 = 0.1;

/// A trial with what its instructions took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedTrial {
    /// The windows that `pfod` measured.
    pub trial: TrialResult,
    /// What the instructions of every rank took, in the order of `trial.ranks`.
    pub ranks: Vec<RecordedRank>,
}

/// What the instructions of a rank took in a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedRank {
    /// The rank.
    pub rank: Rank,
    /// Refreshes of the energy counter that the energies below are from.
    pub readings: u64,
    /// Refreshes that were left out because they were far off what all others show.
    pub stray_readings: u64,
    /// Every kind of instruction at every clock.
    pub rows: Vec<TrialRow>,
    /// The power of its waits at every clock.
    pub waits: Vec<WaitPower>,
}

/// The instructions of one kind, chunk and clock that a rank ran in a trial.
///
/// Times are those of the events. The energy counter is refreshed too seldom to show the energy of
/// one instruction. The energy here is the time multiplied by the power that fits best, by least
/// squares, the changes of the counter between refreshes. On simulated GPUs, whose counter is
/// refreshed every 20 ms, it is within 2 % for instructions of at least 4 ms in a trial of ten
/// seconds. For some instructions shorter than 1 ms it was far off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRow {
    /// The kind.
    pub instruction: Instruction,
    /// The model chunk.
    pub chunk: Chunk,
    /// The clock that was asked for, in MHz; none at default clocks.
    pub mhz: Option<Mhz>,
    /// The clock that the driver reported while they ran, in MHz: the mean of the middle half of its
    /// readings. If none were measured, that of those that were left out for it.
    pub observed_mhz: Option<f64>,
    /// How many were measured.
    pub count: u64,
    /// Mean time, in seconds.
    pub time_mean_s: f64,
    /// Standard deviation of the time of one, in seconds.
    pub time_sd_s: f64,
    /// Median time, in seconds: what one takes that nothing from outside has held up.
    pub time_median_s: f64,
    /// Mean energy, in joules.
    pub energy_mean_j: Option<f64>,
    /// Energy of one that takes the median time, in joules.
    pub energy_median_j: Option<f64>,
    /// Standard deviation of the energy of one, in joules, such that the mean's standard error is
    /// this divided by the root of `count`.
    pub energy_sd_j: Option<f64>,
    /// The share of their time, 0 to 1, for which their GPU's power limit or the slowest GPU of its
    /// group kept its clock down. It is found as their power is, from the driver's counters
    /// or, where it has none, from its reasons at each refresh of the energy counter.
    pub throttled: Option<f64>,
    /// How many were left out.
    pub left_out: LeftOut,
}

/// Instructions that were not measured, each counted once, for the first reason that holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// They were not the plan's, or events of their step were lost.
    pub mismatched: u64,
    /// They began before their clock had settled.
    pub settling: u64,
    /// Heat, the hardware or a power brake slowed the GPU down meanwhile.
    pub throttled: u64,
    /// The driver reported another clock than was asked for, not beside it and without a reason.
    pub other_clock: u64,
}

/// The power of a rank's waits: what is inside a step, before its last instruction, and in none.
/// The first half of a millisecond of each is left out, for the GPU has yet to come to rest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitPower {
    /// The clock that was asked for meanwhile, in MHz; none at default clocks.
    pub mhz: Option<Mhz>,
    /// How many waits.
    pub count: u64,
    /// How long they took together, in seconds.
    pub time_s: f64,
    /// Power, in watts.
    pub power_w: f64,
    /// Standard error of the power, in watts.
    pub power_error_w: f64,
}

impl WaitPower {
    /// Whether the error is small beside the power. The waits of a stage that never waits say
    /// nothing.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.power_w > 0.0 && self.power_error_w < LARGEST_ERROR * self.power_w
    }
}

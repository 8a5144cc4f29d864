//! The single instructions that a recording kept, each by itself.

use serde::{Deserialize, Serialize};

use pfo_vocabulary::{Mhz, Rank, Unit};

/// Why an instruction is left out of what was measured: the first of these that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doubt {
    /// It was not the plan's, or events of its step were lost.
    Mismatched,
    /// It began before its clock had settled.
    Settling,
    /// Heat, the hardware or a power brake slowed the GPU down meanwhile.
    Throttled,
    /// The driver reported another clock than was asked for, not beside it and without a reason.
    OtherClock,
}

/// One instruction that a rank ran in a measured step. The rank gives the times, `CLOCK_MONOTONIC`
/// in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstructionSample {
    /// The step.
    pub step: u64,
    /// The instruction, its chunk and its microbatch.
    pub unit: Unit,
    /// When it began.
    pub began_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
    /// The clock that was asked for, in MHz; none at default clocks.
    pub mhz: Option<Mhz>,
    /// The SM clock that the driver reported last while it ran, or else first thereafter, and when:
    /// MHz and nanoseconds.
    pub observed: Option<(Mhz, u64)>,
    /// Why the driver kept the clock down, as NVML's bits: the reasons whose counters moved between
    /// the last reading before it and the first one after or, where the driver lacks a counter, those
    /// of the readings themselves.
    pub throttle_reasons: u64,
    /// What the energy counter moved by, in joules, where what it showed between two refreshes is
    /// on the line between them. Where few refreshes lie within the instruction, that is as much
    /// what the GPU drew before and after.
    pub counter_j: Option<f64>,
    /// Refreshes of the counter within the instruction that were seen.
    pub counter_refreshes: u32,
    /// Why it is left out of the trial's rows.
    pub left_out: Option<Doubt>,
}

/// Some of the instructions that a trial saw, all of one rank and in their order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplePage {
    /// The rank.
    pub rank: Rank,
    /// Its next instructions.
    pub samples: Vec<InstructionSample>,
    /// How many later ones of the rank there was no room for in the daemon.
    pub dropped: u64,
}

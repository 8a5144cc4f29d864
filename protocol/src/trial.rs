//! Trials: a job runs something for some steps, and what its GPUs did meanwhile is measured.
//!
//! What has no energy counter, or too few steps to tell, has no figure instead of a wrong one.

use serde::{Deserialize, Serialize};

use crate::instruction::Instruction;
use crate::name::GpuUuid;
use crate::status::PlanStatus;

/// A wait whose power is known no better than to this share of it says nothing.
const LARGEST_ERROR: f64 = 0.1;

/// What a job runs in a trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TrialRun {
    /// Clocks as they are without pfo.
    DefaultClocks,
    /// A plan.
    Plan {
        /// What to call it in status.
        label: String,
        /// The plan, `pfo-plan/1` JSON.
        plan: Vec<u8>,
    },
    /// This clock, in MHz, for every instruction of every rank.
    Uniform(u32),
    /// Clocks as they are without pfo, under these power limits.
    PowerLimits {
        /// What to call it in status.
        label: String,
        /// Each stage's, in watts.
        limits_w: Vec<u32>,
    },
}

/// How long a trial is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialLength {
    /// Steps that are left out at the beginning, for the clocks and the job to settle; at least 1.
    pub settling_steps: u32,
    /// Whole steps that are measured; at least 1.
    pub steps: u32,
}

/// What a trial measured, as far as the job's ranks are on this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialResult {
    /// The plan that ran; none at default clocks.
    pub plan: Option<PlanStatus>,
    /// The first step that was measured.
    pub first_step: u64,
    /// Every measured step.
    pub steps: Vec<TrialStep>,
    /// Every rank, in the order of their numbers.
    pub ranks: Vec<TrialRank>,
}

/// One step of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialStep {
    /// From the last rank's begin of the step to the last rank's begin of the next one, in seconds.
    pub time_s: f64,
    /// Energy of all ranks, each from its begin of the step to its begin of the next one, in joules.
    pub energy_j: Option<f64>,
}

/// One rank in a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRank {
    /// The rank.
    pub rank: u32,
    /// Its stage.
    pub stage: u32,
    /// Its data-parallel rank.
    pub dp_rank: u32,
    /// Its tensor-parallel rank.
    pub tp_rank: u32,
    /// Its GPU.
    pub gpu_uuid: GpuUuid,
    /// The model of its GPU.
    pub gpu_model: String,
    /// Mean time of its steps, begin to begin, in seconds.
    pub time_s: f64,
    /// Mean energy of its steps, in joules.
    pub energy_j: Option<f64>,
    /// Measured steps in which its instructions did not follow the plan, or events were lost.
    pub mismatched_steps: u64,
    /// Refreshes of the energy counter that the energies below are from.
    pub readings: u64,
    /// Refreshes that were left out because they were far off what all others show.
    pub stray_readings: u64,
    /// Every kind of instruction at every clock.
    pub rows: Vec<TrialRow>,
    /// The power of its waits at every clock.
    pub waits: Vec<WaitPower>,
}

impl TrialRank {
    /// The only rank of its stage, of the same number, of which nothing was measured.
    #[must_use]
    pub fn unmeasured(rank: u32, gpu_uuid: GpuUuid, gpu_model: String) -> Self {
        Self {
            rank,
            stage: rank,
            dp_rank: 0,
            tp_rank: 0,
            gpu_uuid,
            gpu_model,
            time_s: 0.0,
            energy_j: None,
            mismatched_steps: 0,
            readings: 0,
            stray_readings: 0,
            rows: Vec::new(),
            waits: Vec::new(),
        }
    }
}

/// The instructions of one kind, chunk and clock that a rank ran in a trial.
///
/// Times are those of the events. The energy counter is refreshed too seldom to tell the energy of one
/// instruction; it is the power that explains best, by least squares, what the counter moved by between
/// each two refreshes, times the time. On simulated GPUs, whose counter is refreshed every 20 ms, that is
/// within 2 % for instructions of 4 ms and more in a trial of ten seconds; of some that are shorter than
/// 1 ms it was far off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRow {
    /// The kind.
    pub instruction: Instruction,
    /// The model chunk.
    pub chunk: u16,
    /// The clock that was asked for, in MHz; none at default clocks.
    pub mhz: Option<u32>,
    /// The clock that the driver reported while they ran, in MHz, on average.
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
    /// Standard deviation of the energy of one, in joules, such that the mean's standard error is this
    /// divided by the root of `count`.
    pub energy_sd_j: Option<f64>,
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
    /// The driver throttled the GPU meanwhile.
    pub throttled: u64,
    /// The driver reported another clock than was asked for.
    pub other_clock: u64,
}

/// The power of a rank's waits: what is inside a step, before its last instruction, and in none. The first
/// half of a millisecond of each is left out, for the GPU has yet to come to rest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitPower {
    /// The clock that was asked for meanwhile, in MHz; none at default clocks.
    pub mhz: Option<u32>,
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
    /// Whether the error is small beside the power. The waits of a stage that never waits say nothing.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.power_w > 0.0 && self.power_error_w < LARGEST_ERROR * self.power_w
    }
}

//! Trials: a job runs something for some steps, and the time and energy of each step are measured.
//!
//! A GPU without an energy counter has no figure instead of a wrong one.

use serde::{Deserialize, Serialize};

use pfo_vocabulary::{DpRank, GpuUuid, Mhz, Rank, Stage, TpRank};

use crate::clock_table::ClockTable;
use crate::status::PlanStatus;

/// What a job runs in a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TrialRun {
    /// Clocks as they are without pfo.
    DefaultClocks,
    /// A plan.
    Plan {
        /// What to call it in status.
        label: String,
        /// The plan.
        table: ClockTable,
    },
    /// This clock, in MHz, for every instruction of every rank.
    Uniform(Mhz),
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
    pub rank: Rank,
    /// Its stage.
    pub stage: Stage,
    /// Its data-parallel rank.
    pub dp_rank: DpRank,
    /// Its tensor-parallel rank.
    pub tp_rank: TpRank,
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
}

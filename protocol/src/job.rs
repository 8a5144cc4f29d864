//! Jobs: how a request names one, what it shall run, and what `pfod` knows of it.

use serde::{Deserialize, Serialize};

use pfo_vocabulary::{GpuUuid, JobName, Mhz, SessionId, Uid};

use crate::clock_table::ClockTable;
use crate::session::RankPosition;
use crate::status::{MeasuredBy, MeterStatus, PlanStatus};
use crate::trial::{clock, clocks, limits_w};

/// Which job is meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobSelector {
    /// The job's name.
    pub job: JobName,
    /// Whose job; none means the peer's own or, for an administrator, the only one of that name.
    pub uid: Option<Uid>,
}

/// What a job shall run from the swap on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SwapTarget {
    /// The plan that was loaded before.
    Loaded,
    /// What ran before the current plan.
    Previous,
    /// No plan: default clocks.
    DefaultClocks,
    /// This plan, whatever is loaded.
    Table {
        /// What to call the plan in status.
        label: String,
        /// The plan.
        table: ClockTable,
    },
    /// This clock for every instruction of every rank, until the next swap or a restart of `pfod`.
    Uniform(#[serde(deserialize_with = "clock")] Mhz),
    /// The same of each data-parallel replica, as [`TrialRun::Replicas`](crate::TrialRun::Replicas).
    Replicas(#[serde(deserialize_with = "clocks")] Vec<Mhz>),
    /// Clocks as they are without pfo, under these power limits.
    PowerLimits {
        /// What to call it in status.
        label: String,
        /// Each stage's, in watts.
        #[serde(deserialize_with = "limits_w")]
        limits_w: Vec<u32>,
    },
}

/// A swap that was decided or, with `wait`, done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Swapped {
    /// The plan; none at default clocks.
    pub plan: Option<PlanStatus>,
    /// The step at which every rank changes.
    pub step: u64,
    /// The ranks on this node that take part.
    pub ranks: u32,
    /// How many of them have changed already.
    pub changed: u32,
}

/// A job as the agent sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    /// Its name.
    pub job: JobName,
    /// Whose it is.
    pub uid: Uid,
    /// The number of pipeline stages, on all nodes.
    pub pp_degree: u32,
    /// The plan that the job runs; none at default clocks.
    pub plan: Option<PlanStatus>,
    /// The number of the newest swap, 0 before the first one.
    pub swap: u64,
    /// Who holds the job for measuring.
    pub measured_by: Option<MeasuredBy>,
    /// The ranks on this node, in the order of their numbers.
    pub ranks: Vec<RankView>,
}

/// A rank as the agent sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankView {
    /// Where it stands in the job.
    pub position: RankPosition,
    /// Its session.
    pub session: SessionId,
    /// Which run of the job it belongs to, if it says so.
    pub run: Option<String>,
    /// Its GPU.
    pub gpu_uuid: GpuUuid,
    /// The model of its GPU.
    pub gpu_model: String,
    /// The SM clocks that it may have, rising.
    pub sm_clocks: Vec<Mhz>,
    /// Whether its GPU has an energy counter that is to be believed.
    pub counts_energy: bool,
    /// The microbatches of a step, as the rank said or as its last whole step had.
    pub num_microbatches: Option<u32>,
    /// The swap that it has taken up.
    pub swap: u64,
    /// The step that it began last.
    pub step: Option<u64>,
    /// What was measured since it took up that swap, over whole steps.
    pub window: Option<RankWindow>,
    /// What is wrong with its GPU's energy counter, if anything.
    pub meter: Option<MeterStatus>,
    /// Why its GPU does not run at the clocks that it should, if the driver refuses them.
    pub problem: Option<String>,
}

/// Whole steps of one rank under one swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankWindow {
    /// How many.
    pub steps: u64,
    /// The time that they took, in seconds.
    pub time_s: f64,
    /// The energy that they took, in joules, if its GPU has an energy counter.
    pub energy_j: Option<f64>,
}

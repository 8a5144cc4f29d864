//! The tap: what `pfod` saw of a job's ranks and read from their GPUs, as the agent reads it.
//!
//! A connection that asked for a [`Request::Tap`](crate::Request::Tap) gets [`TapBatch`] frames
//! until it ends. The tap never waits for its reader: records that do not fit are dropped and
//! counted.

use pfo_vocabulary::{GpuUuid, Mhz, Rank, SessionId, ThrottledNs, Unit};
use serde::{Deserialize, Serialize};

use crate::settle::SettleTimes;

/// A rank whose records come over a tap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TappedRank {
    /// The rank.
    pub rank: Rank,
    /// Its session.
    pub session: SessionId,
    /// Its GPU.
    pub gpu_uuid: GpuUuid,
    /// The SM clocks that its GPU supports, rising.
    pub sm_clocks: Vec<Mhz>,
    /// When a clock that it was asked for is in force.
    pub settle: SettleTimes,
}

/// What a rank reported, or what was read from its GPU. The rank gives the times of its events.
/// All times are `CLOCK_MONOTONIC` in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum TapRecord {
    /// A step began.
    StepBegan {
        /// Its number.
        step: u64,
        /// When.
        at_ns: u64,
        /// The step before it went astray and did not end.
        astray: bool,
    },
    /// A step ended.
    StepEnded {
        /// When.
        at_ns: u64,
        /// It did not follow the plan, or events of it are lost.
        astray: bool,
    },
    /// An instruction ended.
    Ran {
        /// The instruction.
        unit: Unit,
        /// When it began.
        began_ns: u64,
        /// When it ended.
        ended_ns: u64,
        /// The clock that it should have had; none at default clocks.
        asked: Option<Mhz>,
        /// The clock that was locked when its end was read, and when the driver was asked for it.
        locked: Option<(Mhz, u64)>,
        /// Its step did not follow the plan, or events of it are lost.
        astray: bool,
    },
    /// The GPU was read.
    Counter(CounterReading),
    /// A trial began; these steps are measured.
    TrialBegan {
        /// The first measured step.
        first_step: u64,
        /// How many steps are measured.
        steps: u32,
    },
    /// The session of the rank is over.
    Ended,
}

/// What the driver reported of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CounterReading {
    /// When the energy counter changed to this value; `read_ns` if that is not known.
    pub at_ns: u64,
    /// The energy counter in joules, if it is known to have changed to this value then.
    pub energy_j: Option<f64>,
    /// When the GPU was read, and with it everything below.
    pub read_ns: u64,
    /// The SM clock.
    pub sm_clock: Option<Mhz>,
    /// For how long each reason has kept the clock down so far.
    pub throttled_ns: ThrottledNs,
    /// NVML's clock throttle reasons at the time, read only if the driver lacks one of the counters.
    pub throttle_reasons: u64,
}

/// Records of one rank, in their order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TapBatch {
    /// The rank.
    pub rank: Rank,
    /// Records of this rank that were dropped since the last batch.
    pub lost: u64,
    /// The records.
    pub records: Vec<TapRecord>,
}

/// What `pfod` sends on a connection after [`Request::WatchJobs`](crate::Request::WatchJobs).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Notice {
    /// A job, its ranks, its plan or who holds it changed; [`Request::Jobs`](crate::Request::Jobs)
    /// says how.
    JobsChanged,
}

//! What is known about how GPUs change their clocks.

use serde::{Deserialize, Serialize};

use pfo_vocabulary::{Mhz, Uid};

/// How the GPUs of a model change their clocks under a version of the driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The model.
    pub gpu_model: String,
    /// The version of the driver.
    pub driver: String,
    /// Whose jobs have shown it, and for whose it is used; none for what an administrator measured,
    /// which is used for all others.
    pub uid: Option<Uid>,
    /// When clocks are in force, by rising clock.
    pub clocks: Vec<CalibratedClock>,
    /// How long a set call blocks, in microseconds, if that is known.
    pub set_call_us: Option<f64>,
    /// Whether transfers wait for a set call; none if no job has shown it.
    pub transfers_wait: Option<bool>,
    /// How often the energy counter is refreshed, in milliseconds, if it has a rhythm.
    pub refresh_ms: Option<f64>,
    /// When it was measured last, in seconds since 1970.
    pub measured_unix_s: u64,
    /// What the energy counter counts, if that was measured.
    pub counter: Option<CounterCheck>,
    /// What a lock of the memory clock does, if that was measured.
    pub memory_lock: Option<MemoryLock>,
}

/// What steps of a job take with the memory clock locked, beside what they take without.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryLock {
    /// The time of a step.
    pub time: ShareMore,
    /// The energy of a step; none without an energy counter.
    pub energy: Option<ShareMore>,
}

/// How much more it is, as a share: less if below zero.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShareMore {
    /// The estimate.
    pub share: f64,
    /// Its standard error.
    pub error: f64,
}

impl ShareMore {
    /// Whether more was measured than twice the error, so that it is hardly by chance.
    #[must_use]
    pub fn is_sure(&self) -> bool {
        self.share.abs() > 2.0 * self.error
    }
}

/// What an energy counter counted over the steps of a job, beside two other ways to know it: the
/// power reading, and what the GPU did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CounterCheck {
    /// The mean power that it counted, in watts.
    pub counted_w: f64,
    /// The mean of the power readings meanwhile, in watts; none without readings.
    pub read_w: Option<f64>,
    /// The standard error of that mean, in watts.
    pub read_error_w: f64,
    /// The values of the counter that were compared with what the GPU did.
    pub values: u32,
    /// What is left unexplained of the power between two values, in watts (standard deviation), by
    /// what the GPU did in all of the time between them; none if they were too few.
    pub unexplained_w: Option<f64>,
    /// The same by what it did in a part of that time only: the part that explains it best.
    pub unexplained_by_part_w: Option<f64>,
    /// That part, as a share.
    pub part: f64,
}

/// When one clock is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibratedClock {
    /// The clock.
    pub mhz: Mhz,
    /// The median time from the beginning of the set call, in microseconds.
    pub settle_us: u32,
    /// Half of the changes were no further from the median, in microseconds.
    pub spread_us: u32,
    /// The changes that were seen.
    pub changes: u32,
}

//! What the owner of a GPU's clocks publishes, without a lock between it and the readers.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// What is set on a GPU, and how long the driver took. The owner of its clocks is the only writer;
/// readers see each value as it was a moment ago.
#[derive(Debug, Default)]
pub struct Published {
    /// The locked SM clock in MHz; 0 if it is not locked.
    pub locked_mhz: AtomicU32,
    /// The locked memory clock in MHz; 0 if it is not locked.
    pub memory_locked_mhz: AtomicU32,
    /// The power limit of pfo in watts; 0 if pfo has set none.
    pub power_limit_w: AtomicU32,
    /// Set calls made to the driver.
    pub set_calls: AtomicU64,
    /// Nanoseconds that these calls took.
    pub set_call_ns: AtomicU64,
    /// The longest call, in nanoseconds.
    pub set_call_max_ns: AtomicU64,
    /// When the set call in progress began (`CLOCK_MONOTONIC`, ns); 0 if none is.
    pub in_driver_since_ns: AtomicU64,
}

impl Published {
    pub(crate) fn count_set_call(&self, took_ns: u64) {
        self.set_calls.fetch_add(1, Relaxed);
        self.set_call_ns.fetch_add(took_ns, Relaxed);
        self.set_call_max_ns.fetch_max(took_ns, Relaxed);
    }
}

/// `CLOCK_MONOTONIC` of the node, in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    // The clock exists on every Linux, and is never negative.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| Duration::from(now).as_nanos() as u64)
}

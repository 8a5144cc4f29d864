//! The clock that the shim's time stamps and the daemons' share, and a thread's processor time.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC` of the node, in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Processor time of the calling thread, in nanoseconds.
#[must_use]
pub fn computed_ns() -> u64 {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

fn read(clock: ClockId) -> u64 {
    // Both exist on every Linux, and are never negative.
    clock_gettime(clock).map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

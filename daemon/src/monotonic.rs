//! The clock that the shim's time stamps and the daemon's share.

/// `CLOCK_MONOTONIC` of the node, in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    // The clock exists on every Linux, and its time since boot is never negative.
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

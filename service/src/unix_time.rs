//! Points in time as they are sent and stored.

use std::time::{SystemTime, UNIX_EPOCH};

/// Whole seconds since 1970; 0 before.
#[must_use]
pub fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

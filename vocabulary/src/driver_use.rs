//! What pfod asks of a GPU's driver.

use serde::{Deserialize, Serialize};

/// What pfod asks of a GPU's driver, over the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DriverUse {
    /// Calls that read, per second.
    pub reads_per_s: f64,
    /// The share of the time that they took.
    pub reading_share: f64,
    /// Calls that set a clock, per second.
    pub changes_per_s: f64,
    /// The share of the time that they took.
    pub changing_share: f64,
}

//! One row of a profile: what was measured at one clock.

use pfo_vocabulary::Mhz;

/// Time and energy of one instruction at one clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// The clock it was measured at.
    pub frequency: Mhz,
    /// Seconds it took.
    pub time_s: f64,
    /// Joules it took.
    pub energy_j: f64,
}

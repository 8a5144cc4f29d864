//! Units of measurement.
//!
//! Times are `f64` seconds (`_s`) and energies `f64` joules (`_j`) everywhere: they are only ever
//! added to and compared with their own kind.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A clock in MHz.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Mhz(pub u32);

impl Mhz {
    /// No GPU has a higher clock; a higher number is a typing error or another unit.
    pub const MAX: Self = Self(10_000);

    /// Whether a GPU could have this clock at all.
    #[must_use]
    pub fn is_plausible(self) -> bool {
        self.0 > 0 && self <= Self::MAX
    }
}

impl fmt::Display for Mhz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MHz", self.0)
    }
}

/// Electrical power in watts.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Watts(pub f64);

impl fmt::Display for Watts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} W", self.0)
    }
}

/// A power limit in milliwatts, NVML's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Milliwatts(pub u32);

impl Milliwatts {
    /// Converts from whole watts; saturates.
    #[must_use]
    pub const fn of_watts(watts: u32) -> Self {
        Self(watts.saturating_mul(1000))
    }

    /// Whole watts, rounded down.
    #[must_use]
    pub const fn watts(self) -> u32 {
        self.0 / 1000
    }
}

impl fmt::Display for Milliwatts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} W", f64::from(self.0) / 1e3)
    }
}

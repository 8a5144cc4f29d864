//! Numbers that must not be mistaken for each other.
//!
//! Times are `f64` seconds (`_s`) and energies `f64` joules (`_j`) everywhere: they are only ever
//! added and compared with their own kind. What crosses a function boundary beside its like, a
//! stage beside a microbatch beside a clock, gets a type.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A GPU core clock in MHz.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Mhz(pub u32);

impl Mhz {
    /// No GPU has a clock beyond this; what does is a typing error or another unit.
    pub const MAX: Self = Self(10_000);

    /// Whether a GPU could have this clock at all.
    pub fn is_plausible(self) -> bool {
        self.0 > 0 && self <= Self::MAX
    }
}

impl fmt::Display for Mhz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MHz", self.0)
    }
}

/// A pipeline stage, counted from 0 at the input of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stage(pub u16);

impl Stage {
    /// The index of this stage in a list of all stages.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A microbatch of a step, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Microbatch(pub u32);

impl fmt::Display for Microbatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
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

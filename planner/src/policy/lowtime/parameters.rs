//! The parameters of lowtime.

use crate::policy::unit_time::UnitTime;

/// The parameters of lowtime.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lowtime {
    /// Times are whole multiples of this, rounded down.
    pub unit_time: UnitTime,
    /// The filter of candidates.
    pub filter: Filter,
}

/// The energy by which one clock beats another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// Measured energy: Perseus' artifact.
    #[default]
    Raw,
    /// Effective energy, without what the GPU draws while it waits: the script that Zeus ships
    /// today.
    Effective,
}

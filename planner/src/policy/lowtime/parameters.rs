//! What can be set about lowtime.

use crate::policy::unit_time::UnitTime;

/// How lowtime is run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lowtime {
    /// Times are whole multiples of this, rounded down.
    pub unit_time: UnitTime,
    /// Which clocks are candidates.
    pub filter: Filter,
}

/// The energy by which a faster clock beats a slower one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// As it was measured: Perseus' artifact.
    #[default]
    Raw,
    /// Without what the GPU draws while it only waits: the script that Zeus ships today.
    Effective,
}

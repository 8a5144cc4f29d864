//! Time or power: the two quantities that rise or fall with the clock.

use std::fmt;

use serde::Serialize;

use crate::profile::measurement::Measurement;
use crate::profile::repeats::Repeats;

/// A quantity of an instruction that depends on the clock. Energy is the product of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// In seconds.
    Time,
    /// Energy over time, in watts.
    Power,
}

impl Quantity {
    pub(crate) const BOTH: [Self; 2] = [Self::Time, Self::Power];

    pub(crate) fn of(self, row: &Measurement) -> f64 {
        match self {
            Self::Time => row.time_s,
            Self::Power => row.energy_j / row.time_s,
        }
    }

    /// The standard deviation of a single measurement of a row, as a share of it.
    pub(crate) fn scatter(self, row: &Measurement, repeats: &Repeats) -> Option<f64> {
        let time = repeats.time_sd_s.filter(|_| repeats.count > 1)? / row.time_s;
        match self {
            Self::Time => Some(time),
            // Time and energy may err together; then this is too much.
            // (Not `hypot`, whose symbol in glibc is younger than the systems that pfo runs on.)
            Self::Power => {
                let energy = repeats.energy_sd_j? / row.energy_j;
                Some((time * time + energy * energy).sqrt())
            }
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Time => "time",
            Self::Power => "power",
        })
    }
}

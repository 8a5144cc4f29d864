//! The kinds of findings, and their words.

use std::fmt;

use pfo_vocabulary::{Instruction, Mhz, Stage};
use serde::Serialize;

use crate::profile::quantity::Quantity;

/// Something odd about the table of one stage and instruction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Warning {
    /// Of the table.
    pub stage: Stage,
    /// Of the table.
    pub instruction: Instruction,
    /// What is odd.
    #[serde(flatten)]
    pub finding: Finding,
}

/// What is odd about a table. Shares are of what was measured: 0.01 is a hundredth.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub enum Finding {
    /// A line that takes no part in its row.
    LeftOut {
        /// Where it is in the profile, counted from 1, the header.
        line: u64,
        /// Of its row.
        frequency_mhz: Mhz,
        /// What was measured.
        time_s: f64,
        /// What was measured.
        energy_j: f64,
        /// The median of its repeats.
        median_time_s: f64,
        /// The median of its repeats.
        median_energy_j: f64,
        /// How many these are.
        repeats: usize,
    },
    /// Few rows to choose from.
    FewFrequencies {
        /// How many there are.
        found: usize,
    },
    /// Nothing measured over a part of the range.
    Gap {
        /// The last one measured.
        from_mhz: Mhz,
        /// The next one.
        to_mhz: Mhz,
    },
    /// A range within which others were measured further.
    NarrowRange {
        /// What was measured here.
        from_mhz: Mhz,
        /// What was measured here.
        to_mhz: Mhz,
        /// What was measured of others.
        others_from_mhz: Mhz,
        /// What was measured of others.
        others_to_mhz: Mhz,
    },
    /// A row far from what its neighbours say.
    Outlier {
        /// Of the row.
        frequency_mhz: Mhz,
        /// What of it is far off.
        quantity: Quantity,
        /// What was measured.
        measured: f64,
        /// What its neighbours say.
        expected: f64,
    },
    /// Rows that do not lie on a curve as hardware has it, and noise does not explain it.
    NotMonotone {
        /// What of them.
        quantity: Quantity,
        /// Of the rows.
        frequencies_mhz: Vec<Mhz>,
        /// The share that the worst of them is off the closest such curve.
        most: f64,
    },
    /// Rows that scatter.
    Noisy {
        /// What of them.
        quantity: Quantity,
        /// The standard deviation of a row, as a share of it.
        scatter: f64,
    },
    /// Rows that were changed, because they are noisy or because it was asked for.
    Smoothed {
        /// What of them.
        quantity: Quantity,
        /// The share by which the most changed one was.
        most: f64,
        /// The standard deviation of a row, as a share of it, if it is known.
        scatter: Option<f64>,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stage {}, {}: {}", self.stage, self.instruction, self.finding)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeftOut {
                line,
                frequency_mhz,
                time_s,
                energy_j,
                median_time_s,
                median_energy_j,
                repeats,
            } => write!(
                f,
                "line {line} ({time_s} s, {energy_j} J at {frequency_mhz}) is left out: the median \
                 of its {repeats} repeats is {median_time_s} s, {median_energy_j} J"
            ),
            Self::FewFrequencies { found } => {
                write!(f, "{found} frequencies leave little to choose from; measure more")
            }
            Self::Gap { from_mhz, to_mhz } => {
                write!(f, "nothing was measured between {from_mhz} and {to_mhz}")
            }
            Self::NarrowRange { from_mhz, to_mhz, others_from_mhz, others_to_mhz } => write!(
                f,
                "measured from {from_mhz} to {to_mhz} only, others from {others_from_mhz} to \
                 {others_to_mhz}"
            ),
            Self::Outlier { frequency_mhz, quantity, measured, expected } => write!(
                f,
                "{quantity} at {frequency_mhz} is {}, {} off what its neighbours say; measure it \
                 again",
                Amount(*quantity, *measured),
                Percent(measured / expected - 1.0)
            ),
            Self::NotMonotone { quantity, frequencies_mhz, most } => write!(
                f,
                "{quantity} does not {} with frequency: {} {} up to {} off the closest curve that \
                 does, more than noise explains",
                match quantity {
                    Quantity::Time => "fall",
                    Quantity::Power => "rise",
                },
                Frequencies(frequencies_mhz),
                if frequencies_mhz.len() == 1 { "is" } else { "are" },
                Percent(*most)
            ),
            Self::Noisy { quantity, scatter } => {
                write!(f, "{quantity} scatters by {}", Percent(*scatter))
            }
            Self::Smoothed { quantity, most, scatter } => {
                write!(f, "{quantity} was smoothed, by up to {}", Percent(*most))?;
                scatter.map_or(Ok(()), |scatter| write!(f, "; it scatters by {}", Percent(scatter)))
            }
        }
    }
}

struct Percent(f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} %", 100.0 * self.0.abs())
    }
}

struct Amount(Quantity, f64);

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.0 {
            Quantity::Time => "s",
            Quantity::Power => "W",
        };
        write!(f, "{:.4} {unit}", self.1)
    }
}

/// The first of them, and how many more.
struct Frequencies<'a>(&'a [Mhz]);

impl fmt::Display for Frequencies<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 4;
        let shown: Vec<String> =
            self.0.iter().take(SHOWN).map(|frequency| frequency.0.to_string()).collect();
        write!(f, "{}", shown.join(", "))?;
        match self.0.len().saturating_sub(SHOWN) {
            0 => f.write_str(" MHz"),
            more => write!(f, " MHz and {more} more"),
        }
    }
}

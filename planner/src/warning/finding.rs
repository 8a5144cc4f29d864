//! The kinds of findings, and their texts.

use std::fmt;

use pfo_vocabulary::{Instruction, Mhz, Stage};
use serde::Serialize;

use crate::profile::quantity::Quantity;

/// A finding about the table of one stage and instruction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Warning {
    /// The stage of the table.
    pub stage: Stage,
    /// The instruction of the table.
    pub instruction: Instruction,
    /// The finding.
    #[serde(flatten)]
    pub finding: Finding,
}

/// What looks wrong in a table. Shares are fractions of the measured value: 0.01 is 1 %.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub enum Finding {
    /// A line that is left out of its row.
    LeftOut {
        /// Its number in the profile, counted from 1 at the header.
        line: u64,
        /// The clock of its row.
        frequency_mhz: Mhz,
        /// The measured time.
        time_s: f64,
        /// The measured energy.
        energy_j: f64,
        /// The median time of its repeats.
        median_time_s: f64,
        /// The median energy of its repeats.
        median_energy_j: f64,
        /// The number of repeats, this line included.
        repeats: usize,
    },
    /// Clocks that the GPUs did not hold, and so are left out.
    Unheld {
        /// The highest clock that is of use.
        useful_mhz: Mhz,
        /// The highest clock that was asked for.
        highest_mhz: Mhz,
    },
    /// Only few rows to choose from.
    FewFrequencies {
        /// The number of rows.
        found: usize,
    },
    /// More rows than a frontier holds.
    ManyFrequencies {
        /// The number of rows.
        found: usize,
        /// The number of them that are planned with.
        planned: usize,
    },
    /// More power than a GPU draws.
    Powerful {
        /// The power of a row, in watts.
        power_w: f64,
        /// Its energy as it was read, in joules.
        energy_j: f64,
    },
    /// A part of the range without measurements.
    Gap {
        /// The last clock before the gap.
        from_mhz: Mhz,
        /// The first clock after the gap.
        to_mhz: Mhz,
    },
    /// A narrower range of clocks than most other tables have.
    NarrowRange {
        /// The lowest clock of this table.
        from_mhz: Mhz,
        /// The highest clock of this table.
        to_mhz: Mhz,
        /// The median of the lowest clocks of the others.
        others_from_mhz: Mhz,
        /// The median of the highest clocks of the others.
        others_to_mhz: Mhz,
    },
    /// A row that is far from the prediction of its neighbours.
    Outlier {
        /// The clock of the row.
        frequency_mhz: Mhz,
        /// The quantity that is far off.
        quantity: Quantity,
        /// The measured value.
        measured: f64,
        /// The prediction of its neighbours.
        expected: f64,
    },
    /// Rows off every curve of the shape that hardware has, by more than noise explains.
    NotMonotone {
        /// The quantity.
        quantity: Quantity,
        /// The clocks of the rows.
        frequencies_mhz: Vec<Mhz>,
        /// The largest distance from the closest such curve, as a share.
        most: f64,
    },
    /// Times so long that they may be in another unit, and energies with them.
    Long {
        /// The shortest time of the table.
        shortest_s: f64,
    },
    /// Rows that scatter.
    Noisy {
        /// The quantity.
        quantity: Quantity,
        /// The standard deviation of a row, as a share.
        scatter: f64,
    },
    /// Rows that were changed because they are noisy or on request.
    Smoothed {
        /// The quantity.
        quantity: Quantity,
        /// The largest change of a row, as a share.
        most: f64,
        /// The standard deviation of a row, as a share, if it is known.
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
            Self::Unheld { useful_mhz, highest_mhz } => write!(
                f,
                "clocks above {useful_mhz}, up to {highest_mhz}, were not held and are not planned"
            ),
            Self::FewFrequencies { .. } | Self::ManyFrequencies { .. } | Self::Powerful { .. } => {
                self.of_the_whole_table(f)
            }
            Self::Gap { from_mhz, to_mhz } => {
                write!(f, "nothing was measured between {from_mhz} and {to_mhz}")
            }
            Self::NarrowRange { from_mhz, to_mhz, others_from_mhz, others_to_mhz } => write!(
                f,
                "measured only from {from_mhz} to {to_mhz}, others from {others_from_mhz} to \
                 {others_to_mhz}"
            ),
            Self::Outlier { frequency_mhz, quantity, measured, expected } => write!(
                f,
                "{quantity} at {frequency_mhz} is {}, {} off what its neighbours say; measure it \
                 again, unless a power limit or heat held this clock down",
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
            Self::Long { shortest_s } => write!(
                f,
                "takes {shortest_s} s and more; if these are ms, and energies mJ, divide both by 1000"
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

impl Finding {
    /// What is wrong with no row in particular.
    fn of_the_whole_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FewFrequencies { found: 1 } => {
                f.write_str("only one frequency, so nothing to choose from; measure more")
            }
            Self::FewFrequencies { found } => {
                write!(f, "only {found} frequencies to choose from; measure more")
            }
            Self::ManyFrequencies { found, planned } => {
                write!(f, "{planned} of its {found} frequencies are planned with, evenly spread")
            }
            Self::Powerful { power_w, energy_j } => write!(
                f,
                "draws {power_w:.0} W, more than a GPU does; if {energy_j} are watts, name the column \
                 power instead of energy"
            ),
            _ => Ok(()),
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

/// The first frequencies, and the number of the others.
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

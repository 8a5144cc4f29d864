//! The treatment of tables that are less smooth than the hardware is.
//!
//! A plan is made of the best rows of a table. Where rows scatter, the best ones are those that
//! look best by chance, and a plan of them keeps neither its time nor its energy. The shape of the
//! curve is known, however: with the clock, time never rises and power never falls, because
//! switching takes power with the clock and with the square of the voltage that it needs (Mei, Wang
//! and Chu, A survey and measurement study of GPU DVFS on energy conservation, 2017). Energy, their
//! product, first falls and then rises, which constrains less. Published tables agree: power is
//! within 0.9 % of a rising curve even where an A40 runs into its power limit. [`Noise::Isotonic`]
//! replaces time and power by the closest falling and rising ones, by least squares, weighted by
//! the number of measurements. A row that is far from its neighbours is first replaced by their
//! prediction.
//!
//! Hardware can deviate from the shape: at its power limit an A40 gets slower at some higher
//! clocks. So the default, [`Noise::Auto`], begins with what all stages say that run the same
//! layers: their mean is more certain, and has the same steps. It then changes a table only if it
//! is noisy still, and only what noise explains: runs of rows no part of which is further than four
//! standard deviations from the rest. What repeats or other stages establish stays, in any shape.
//!
//! Predictions of a plan are then replays over the smoothed profile, which [`Profile::to_csv`]
//! writes.

mod factor;
mod isotonic;
mod level;
mod neighbours;
mod pool;
mod shape;

use std::fmt;
use std::str::FromStr;

use pfo_vocabulary::{Instruction, Stage};

use crate::error::PlanError;
use crate::excerpt::excerpt;
use crate::profile::Profile;
use crate::profile::Table;
use crate::profile::measurement::Measurement;
use crate::profile::quantity::Quantity;
pub(crate) use level::level;
pub(crate) use neighbours::{Outlier, outliers, predictions};
pub(crate) use shape::{EXPLAINED, NOISY, curve};
use shape::{ROUNDING, explained};

/// The treatment of noise in a profile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Noise {
    /// Nothing.
    Off,
    /// Pools the tables of stages that run the same layers: a common shape, each stage at its own
    /// level. Then [`Noise::Isotonic`], but only for tables that are noisy still and only where noise
    /// explains the difference.
    #[default]
    Auto,
    /// Makes time fall and power rise with the clock.
    Isotonic,
    /// Perseus' noise factor: where no more than three rows of a table are unbeaten, rows that are
    /// beaten by at most this share count, too. Perseus uses 0.05.
    Factor(f64),
}

/// A profile after its noise was treated.
#[derive(Clone, Debug)]
pub struct Treated {
    /// The profile that plans are made from.
    pub profile: Profile,
    /// Its differences from the measured profile.
    pub smoothed: Vec<Smoothed>,
}

/// A change to a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Smoothed {
    /// The stage of the table.
    pub stage: Stage,
    /// The instruction of the table.
    pub instruction: Instruction,
    /// The quantity that was changed.
    pub quantity: Quantity,
    /// The largest change of a row, as a share of its value.
    pub most: f64,
}

impl Noise {
    const FACTOR: f64 = 0.05;

    /// Treats a profile. Instructions of fixed time stay unchanged.
    pub fn treat(self, measured: &Profile) -> Treated {
        let mut pooled = measured.clone();
        if self == Self::Auto {
            pool::pool(&mut pooled);
        }
        let mut treated = Treated { profile: pooled.clone(), smoothed: Vec::new() };
        for table @ Table { stage, instruction, .. } in pooled.tables() {
            let rows = measured.table(stage, instruction);
            let smooth = self.rows(table);
            for quantity in Quantity::BOTH {
                let change = |(new, old)| (quantity.of(new) / quantity.of(old) - 1.0).abs();
                let most = smooth.iter().zip(rows).map(change).fold(0.0, f64::max);
                if most > ROUNDING {
                    treated.smoothed.push(Smoothed { stage, instruction, quantity, most });
                }
            }
            treated.profile.table_mut(stage, instruction).copy_from_slice(&smooth);
        }
        let parts = measured.each_part(|own| self.treat(own).profile);
        Treated { profile: treated.profile.with_parts(parts), ..treated }
    }

    /// The treated rows of a table.
    fn rows(self, table: Table) -> Vec<Measurement> {
        let mut rows = table.rows.to_vec();
        let smooth = match self {
            Self::Off => return rows,
            Self::Factor(slack) => {
                let energies = factor::energies(&rows, &table.counts(), slack);
                for (row, energy_j) in rows.iter_mut().zip(energies) {
                    row.energy_j = energy_j;
                }
                return rows;
            }
            Self::Isotonic => curve,
            Self::Auto => explained,
        };
        let (times, powers) = (smooth(table, Quantity::Time), smooth(table, Quantity::Power));
        for ((row, time_s), power_w) in rows.iter_mut().zip(times).zip(powers) {
            // Unchanged rows stay as they are: the product could differ in the last bit.
            if (time_s, power_w) != (row.time_s, Quantity::Power.of(row)) {
                *row = Measurement { time_s, energy_j: power_w * time_s, ..*row };
            }
        }
        rows
    }
}

impl fmt::Display for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::Isotonic => f.write_str("isotonic"),
            Self::Factor(slack) => write!(f, "factor={}%", slack * 100.0),
        }
    }
}

impl FromStr for Noise {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        match text {
            "off" => return Ok(Self::Off),
            "auto" => return Ok(Self::Auto),
            "isotonic" => return Ok(Self::Isotonic),
            "factor" => return Ok(Self::Factor(Self::FACTOR)),
            _ => {}
        }
        text.strip_prefix("factor=")
            .and_then(|percent| percent.strip_suffix('%').unwrap_or(percent).parse().ok())
            .filter(|percent: &f64| (0.0..=50.0).contains(percent))
            .map(|percent| Self::Factor(percent / 100.0))
            .ok_or_else(|| PlanError::BadArgument {
                name: "the treatment of noise",
                value: format!("\"{}\"", excerpt(text)),
                expected: "off, auto, isotonic, factor, or factor=5% with any percentage up to 50",
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back_and_others_are_refused_with_what_there_is() {
        for noise in [Noise::Off, Noise::Auto, Noise::Isotonic, Noise::Factor(0.05)] {
            assert_eq!(noise.to_string().parse::<Noise>().unwrap(), noise);
        }
        assert_eq!("factor".parse::<Noise>().unwrap(), Noise::Factor(0.05));
        assert_eq!("factor=2.5".parse::<Noise>().unwrap(), Noise::Factor(0.025));
        for text in ["on", "factor=-1%", "factor=99%", "factor=much", ""] {
            let message = text.parse::<Noise>().unwrap_err().to_string();
            assert!(message.contains(&format!("\"{text}\"")) && message.contains("isotonic"));
        }
    }
}

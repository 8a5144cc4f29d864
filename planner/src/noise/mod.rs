//! What is done about tables that are less smooth than the hardware is.
//!
//! A plan is made of the best rows of a table. Where rows scatter, the best ones are those that
//! luck made look best, and a plan of them keeps neither its time nor its energy. What helps is to
//! know the shape of the curve: with the clock, time never rises and power never falls, because
//! switching takes power with the clock and with the square of the voltage that it needs (Mei, Wang
//! and Chu, A survey and measurement study of GPU DVFS on energy conservation, 2017). Energy is
//! their product: it falls first and then rises, which says less. The published tables agree: power
//! is within 0.9 % of a rising curve even where an A40 runs into its power limit.
//! [`Noise::Isotonic`] replaces time and power by the closest falling and rising ones, by least
//! squares, weighted by how often a row was measured; a row far from its neighbours is replaced by
//! what these say before.
//!
//! Hardware can do otherwise: at its power limit an A40 gets slower at some higher clocks. So by
//! default, [`Noise::Auto`], a table is only touched if it is noisy, and of it only what noise
//! explains: runs of rows whose distance from the curve is within four standard deviations of
//! theirs. What repeats establish stays, however odd it looks.
//!
//! Predictions of a plan are then replays over the smoothed profile, which [`Profile::to_csv`]
//! writes.

mod factor;
mod isotonic;
mod level;
mod neighbours;
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
pub(crate) use neighbours::{Outlier, outliers};
pub(crate) use shape::{EXPLAINED, NOISY, curve};
use shape::{ROUNDING, explained};

/// What is done about noise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Noise {
    /// Nothing.
    Off,
    /// What [`Noise::Isotonic`] does, but only to noisy tables, and to what noise explains there.
    #[default]
    Auto,
    /// Makes time fall with the clock and power rise.
    Isotonic,
    /// Perseus' noise factor: a table with three or fewer rows that no other beats may also choose
    /// those that are beaten by no more than this share. Perseus' own is 0.05.
    Factor(f64),
}

/// A profile after something was done about its noise.
#[derive(Clone, Debug)]
pub struct Treated {
    /// What plans are made from.
    pub profile: Profile,
    /// Where it differs from what was measured.
    pub smoothed: Vec<Smoothed>,
}

/// What was changed in a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Smoothed {
    /// Of the table.
    pub stage: Stage,
    /// Of the table.
    pub instruction: Instruction,
    /// Which of both was changed.
    pub quantity: Quantity,
    /// The largest change to a row, as a share of it.
    pub most: f64,
}

impl Noise {
    const FACTOR: f64 = 0.05;

    /// Does it. Instructions of fixed time stay as they are.
    pub fn treat(self, measured: &Profile) -> Treated {
        let mut treated = Treated { profile: measured.clone(), smoothed: Vec::new() };
        for table @ Table { stage, instruction, rows, .. } in measured.tables() {
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
        treated
    }

    /// What the rows of a table become.
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
            // A product of what stayed could differ in the last bit from what was measured.
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
                name: "what is done about noise",
                value: format!("\"{}\"", excerpt(text)),
                expected: "off, auto, isotonic, factor or, in percent up to 50, factor=5%",
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

//! What several data- or tensor-parallel ranks of a stage make of one instruction.
//!
//! A plan has one clock for all ranks of a stage. By default their rows are averaged, which plans
//! for one typical GPU of each stage. [`Combine::Slowest`] plans for all of them, as the wrapper
//! for 3D parallelism of Zeus' controllers does: the stage takes as long as its slowest rank, and
//! the energy of all. What the faster ones draw until the slowest is done is not counted.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::error::{PlanError, excerpt};
use crate::instruction::Instruction;
use crate::profile::{Measurement, Sum};
use crate::units::{Mhz, Stage};

/// How rows of several ranks become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Combine {
    /// The mean of time and of energy, over ranks as over everything else.
    #[default]
    Mean,
    /// The time of the slowest rank (`dp_rank`, `tp_rank`) and the energy of all.
    Slowest,
}

/// The columns that tell ranks of a stage apart.
const RANKS: [&str; 2] = ["dp_rank", "tp_rank"];

/// Rows of one profile that measure the same, by rank.
pub(crate) type Ranks = BTreeMap<Vec<String>, Sum>;

impl Combine {
    /// The columns by which rows are kept apart until they are combined.
    pub(crate) fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Mean => &[],
            Self::Slowest => &RANKS,
        }
    }
}

/// One measurement of what each rank measured: the slowest time and all energy. Where ranks were
/// not kept apart there is one, the mean of them all.
///
/// # Errors
/// [`PlanError::RankMissing`] if ranks of a stage do not all have rows of the same: energies of
/// a different number of them do not compare.
pub(crate) fn combined(
    rows: BTreeMap<(Stage, Instruction, Mhz), Ranks>,
) -> Result<Vec<(Stage, Instruction, Measurement)>, PlanError> {
    let mut most: BTreeMap<Stage, usize> = BTreeMap::new();
    for ((stage, ..), ranks) in &rows {
        let most = most.entry(*stage).or_default();
        *most = ranks.len().max(*most);
    }
    let mut combined = Vec::with_capacity(rows.len());
    for ((stage, instruction, frequency), ranks) in rows {
        let (found, expected) = (ranks.len(), most[&stage]);
        if found != expected {
            return Err(PlanError::RankMissing { stage, instruction, frequency, found, expected });
        }
        let means = ranks.values().map(|sum| sum.mean(frequency));
        let all = Measurement { frequency, time_s: 0.0, energy_j: 0.0 };
        let measured = means.fold(all, |all, rank| Measurement {
            frequency,
            time_s: all.time_s.max(rank.time_s),
            energy_j: all.energy_j + rank.energy_j,
        });
        combined.push((stage, instruction, measured));
    }
    Ok(combined)
}

impl fmt::Display for Combine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mean => "mean",
            Self::Slowest => "slowest",
        })
    }
}

impl FromStr for Combine {
    type Err = PlanError;

    fn from_str(name: &str) -> Result<Self, PlanError> {
        match name {
            "mean" => Ok(Self::Mean),
            "slowest" => Ok(Self::Slowest),
            _ => Err(PlanError::BadArgument {
                name: "how ranks are combined",
                value: format!("\"{}\"", excerpt(name)),
                expected: "mean or slowest",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    const FOUR_RANKS: &str = "rank,dp_rank,tp_rank,stage,instruction,frequency,time,energy\n\
                              0,0,0,0,forward,1410,0.4,10\n\
                              1,0,1,0,forward,1410,0.6,30\n\
                              2,1,0,0,forward,1410,0.5,20\n\
                              3,1,1,0,forward,1410,0.5,25\n";

    fn read(csv: &str, combine: Combine) -> Result<Measurement, PlanError> {
        let profile = Profile::from_csv_combined(csv.as_bytes(), combine)?;
        Ok(profile.at(Stage(0), Instruction::Forward, Mhz(1410)).unwrap())
    }

    #[test]
    fn ranks_are_averaged_unless_the_slowest_is_asked_for() {
        let mean = read(FOUR_RANKS, Combine::Mean).unwrap();
        assert!((mean.time_s - 0.5).abs() < 1e-12 && (mean.energy_j - 21.25).abs() < 1e-12);
        let slowest = read(FOUR_RANKS, Combine::Slowest).unwrap();
        assert_eq!((slowest.time_s, slowest.energy_j), (0.6, 85.0));
    }

    #[test]
    fn what_a_rank_measured_more_than_once_is_averaged_before_it_is_combined() {
        let csv = "window,dp_rank,stage,instruction,frequency,time,energy\n\
                   0,0,0,forward,1410,0.4,10\n\
                   1,0,0,forward,1410,0.6,30\n\
                   0,1,0,forward,1410,0.3,20\n";
        let slowest = read(csv, Combine::Slowest).unwrap();
        assert!((slowest.time_s - 0.5).abs() < 1e-12 && (slowest.energy_j - 40.0).abs() < 1e-12);
    }

    #[test]
    fn a_clock_that_not_every_rank_measured_is_refused_with_its_place() {
        let csv = format!("{FOUR_RANKS}0,0,0,0,forward,1395,0.5,9\n");
        let message = read(&csv, Combine::Slowest).unwrap_err().to_string();
        for words in ["stage 0", "forward at 1395 MHz", "1 ranks of 4"] {
            assert!(message.contains(words), "no {words:?} in {message:?}");
        }
        assert!(read(&csv, Combine::Mean).is_ok());
    }

    #[test]
    fn the_slowest_of_a_profile_without_ranks_is_refused() {
        let csv = "stage,instruction,frequency,time,energy\n0,forward,1410,0.4,10\n";
        let message = read(csv, Combine::Slowest).unwrap_err().to_string();
        assert!(message.contains("\"dp_rank\""), "{message}");
    }

    #[test]
    fn every_name_is_read_back_and_others_are_refused() {
        for combine in [Combine::Mean, Combine::Slowest] {
            assert_eq!(combine.to_string().parse::<Combine>().unwrap(), combine);
        }
        assert!("median".parse::<Combine>().unwrap_err().to_string().contains("median"));
    }
}

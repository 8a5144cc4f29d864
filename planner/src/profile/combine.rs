//! How the measurements of data- and tensor-parallel ranks of a stage become one row.
//!
//! A plan has one clock for all ranks of a stage. By default their rows are averaged, which plans
//! for one typical GPU of each stage. [`Combine::Slowest`] plans for all of them, as the wrapper
//! for 3D parallelism of Zeus' controllers does: the stage takes the time of its slowest rank and
//! the energy of all. What the faster ranks draw while they wait for the slowest is not counted.
//! In both cases the repeats of one rank are averaged first.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use pfo_vocabulary::{Chunk, Instruction, Mhz, Microbatch, Stage};

use crate::error::PlanError;
use crate::excerpt::excerpt;
use crate::profile::error::ProfileError;
use crate::profile::measurement::Measurement;
use crate::profile::missing::{self, Scale};
use crate::profile::parts::Part;
use crate::profile::repeats::{Line, Repeated, Repeats};

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

/// Who measured a line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Measurer {
    /// The fields by which ranks are combined; empty if all ranks are averaged.
    pub(crate) rank: Vec<String>,
    /// The other fields that tell ranks and chunks apart.
    pub(crate) within: Vec<String>,
    /// The chunk that was measured, if the line says it.
    pub(crate) chunk: Option<Chunk>,
    /// The microbatch that was measured, if the line says it and microbatches differ.
    pub(crate) microbatch: Option<Microbatch>,
}

impl Measurer {
    /// The part of the step that was measured.
    pub(crate) fn part(&self) -> Part {
        Part { chunk: self.chunk, microbatch: self.microbatch }
    }
}

/// The lines of one stage and instruction, by clock and by measurer.
pub(crate) type Lines = BTreeMap<Mhz, BTreeMap<Measurer, Vec<Line>>>;

impl Combine {
    /// The columns that keep rows apart until they are combined.
    pub(crate) fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Mean => &[],
            Self::Slowest => &RANKS,
        }
    }
}

/// One row for each table and clock: the time of the slowest rank and the energy of all. Ranks that
/// are not kept apart count as one, with their mean.
///
/// # Errors
/// [`ProfileError::RankMissing`] if some ranks of a stage lack a row that others have: energies of
/// different numbers of ranks are not comparable.
pub(crate) fn combined(
    tables: &BTreeMap<(Stage, Instruction), Lines>,
) -> Result<Vec<(Stage, Instruction, Measurement, Repeats)>, ProfileError> {
    let mut most: BTreeMap<Stage, usize> = BTreeMap::new();
    let mut rows = Vec::new();
    for (&(stage, instruction), table) in tables {
        let scales = missing::scales(table);
        for (&frequency, measurers) in table {
            let ranks = ranks(measurers);
            let most = most.entry(stage).or_default();
            *most = ranks.len().max(*most);
            rows.push((stage, instruction, frequency, (ranks, scales.get(&frequency).copied())));
        }
    }
    let mut combined = Vec::with_capacity(rows.len());
    for (stage, instruction, frequency, (ranks, scale)) in rows {
        let (found, expected) = (ranks.len(), most[&stage]);
        if found != expected {
            return Err(ProfileError::RankMissing {
                stage,
                instruction,
                frequency,
                found,
                expected,
            });
        }
        let (mut measured, mut repeats) = slowest(frequency, &ranks);
        if let Some(Scale { time, energy }) = scale {
            (measured.time_s, measured.energy_j) =
                (measured.time_s * time, measured.energy_j * energy);
            repeats.time_sd_s = repeats.time_sd_s.map(|sd| sd * time);
            repeats.energy_sd_j = repeats.energy_sd_j.map(|sd| sd * energy);
        }
        combined.push((stage, instruction, measured, repeats));
    }
    Ok(combined)
}

/// What each rank measured at one clock.
fn ranks(measurers: &BTreeMap<Measurer, Vec<Line>>) -> Vec<Repeated> {
    let measurers: Vec<(&Measurer, Repeated)> =
        measurers.iter().map(|(who, lines)| (who, Repeated::of(lines))).collect();
    let ranks = measurers.chunk_by(|(a, _), (b, _)| a.rank == b.rank);
    ranks
        .map(|rank| Repeated::mean(&rank.iter().map(|&(_, repeated)| repeated).collect::<Vec<_>>()))
        .collect()
}

/// The slowest rank's time, and the energy of all.
fn slowest(frequency: Mhz, ranks: &[Repeated]) -> (Measurement, Repeats) {
    let mut measured = Measurement { frequency, time_s: 0.0, energy_j: 0.0 };
    let mut repeats = Repeats { count: u32::MAX, time_sd_s: None, energy_sd_j: None };
    let mut energy_variance = Some(0.0);
    for rank in ranks {
        let Repeats { count, time_sd_s, energy_sd_j } = rank.repeats();
        repeats.count = repeats.count.min(count);
        if rank.time.mean > measured.time_s {
            measured.time_s = rank.time.mean;
            repeats.time_sd_s = time_sd_s;
        }
        measured.energy_j += rank.energy.mean;
        energy_variance = energy_variance.zip(energy_sd_j).map(|(sum, sd)| sum + sd * sd);
    }
    repeats.energy_sd_j = energy_variance.map(f64::sqrt);
    (measured, repeats)
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
    fn the_slowest_has_the_scatter_of_its_time_and_of_all_energy() {
        let csv = "dp_rank,stage,instruction,frequency,time,energy,count,time_sd,energy_sd\n\
                   0,0,forward,1410,0.4,10,7,0.03,3\n\
                   1,0,forward,1410,0.6,30,5,0.02,4\n";
        let profile = Profile::from_csv_combined(csv.as_bytes(), Combine::Slowest).unwrap();
        let repeats = profile.repeats(Stage(0), Instruction::Forward, Mhz(1410));
        assert_eq!((repeats.count, repeats.time_sd_s), (5, Some(0.02)));
        assert!((repeats.energy_sd_j.unwrap() - 5.0).abs() < 1e-12);
    }

    #[test]
    fn a_clock_that_not_every_rank_measured_is_refused_with_its_place() {
        let csv = format!("{FOUR_RANKS}0,0,0,0,forward,1395,0.5,9\n");
        let message = read(&csv, Combine::Slowest).unwrap_err().to_string();
        for words in ["stage 0", "forward at 1395 MHz", "1 of 4 ranks"] {
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

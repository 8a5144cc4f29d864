//! What a sweep keeps of the trial at one clock, and the profile CSV that it makes from that.

use std::collections::{BTreeMap, BTreeSet};

use pfo_experiment::{energy_j, mean_w, median};
use pfo_protocol::{
    Chunk, DpRank, Instruction, Mhz, Rank, RecordedRank, RecordedTrial, Stage, TpRank, TrialRank,
    TrialRow, TrialStep,
};
use serde::{Deserialize, Deserializer, Serialize};

/// Shorter than this, in seconds, an instruction ends long before an energy counter has shown it.
const SHORT_S: f64 = 0.05;

/// The columns of a profile: Perseus' and Zeus' first, then how often and how well it was measured,
/// by whom, and what became of the requested clock.
const HEADER: &str = "stage,instruction,frequency,time,energy,count,time_sd,energy_sd,rank,dp_rank,\
                      tp_rank,chunk,observed_mhz,throttled\n";

/// A GPU whose clock is kept down for more than this share of the time is held back.
const HELD_BACK: f64 = 0.5;

/// What was measured at one clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SweptClock {
    pub(crate) mhz: Mhz,
    /// The median time of a step, in seconds.
    pub(crate) step_s: f64,
    /// Everything of which time and energy could be measured.
    pub(crate) rows: Vec<SweptRow>,
}

/// One line of a profile, without its clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SweptRow {
    pub(super) stage: Stage,
    pub(super) rank: Rank,
    pub(super) dp_rank: DpRank,
    pub(super) tp_rank: TpRank,
    #[serde(deserialize_with = "instruction")]
    pub(super) instruction: Instruction,
    pub(super) chunk: Chunk,
    pub(super) count: u64,
    pub(super) time_s: f64,
    pub(super) time_sd_s: f64,
    pub(super) energy_j: f64,
    pub(super) energy_sd_j: Option<f64>,
    /// The clock that it really had, in MHz.
    #[serde(default)]
    pub(super) observed_mhz: Option<f64>,
    /// The share of its time for which a power limit kept the clock down.
    #[serde(default)]
    pub(super) throttled: Option<f64>,
}

/// An instruction by name. Release 0.1 wrote `ForwardBackward` for `forward_backward`.
fn instruction<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Instruction, D::Error> {
    let written = String::deserialize(deserializer)?;
    let is_meant = |known: &Instruction| {
        written == known.name() || written.eq_ignore_ascii_case(&known.name().replace('_', ""))
    };
    let named = Instruction::ALL.into_iter().find(is_meant);
    named.ok_or_else(|| serde::de::Error::custom(format!("unknown instruction {written:?}")))
}

/// Which instructions of which rank.
pub(crate) type Instructions = BTreeSet<(Rank, Instruction, Chunk)>;

/// Everything that ran in a trial.
pub(crate) fn instructions(trial: &RecordedTrial) -> Instructions {
    let of_rank = |recorded: &RecordedRank| {
        let rank = recorded.rank;
        let rows = recorded.rows.iter();
        rows.map(move |row| (rank, row.instruction, row.chunk)).collect::<Vec<_>>()
    };
    trial.ranks.iter().flat_map(of_rank).collect()
}

impl SweptClock {
    /// What is kept of a trial at this clock.
    pub(crate) fn of(mhz: Mhz, trial: &RecordedTrial) -> Self {
        let rows = trial.trial.ranks.iter().zip(&trial.ranks).flat_map(|(rank, recorded)| {
            let mean_w = mean_w(&recorded.rows);
            recorded.rows.iter().filter_map(move |row| SweptRow::of(rank, row, mean_w))
        });
        Self { mhz, step_s: median_step_s(&trial.trial.steps), rows: rows.collect() }
    }

    /// Everything that has a row.
    pub(crate) fn instructions(&self) -> Instructions {
        self.rows.iter().map(|row| (row.rank, row.instruction, row.chunk)).collect()
    }

    /// The highest clock, in MHz, that any instruction really had whose time depends on it; none if
    /// one of them was not seen.
    pub(crate) fn held_mhz(&self) -> Option<f64> {
        let free = self.rows.iter().filter(|row| !row.instruction.is_fixed());
        let observed: Option<Vec<f64>> = free.map(|row| row.observed_mhz).collect();
        observed?.into_iter().reduce(f64::max)
    }

    /// What holds the GPUs back at this clock, in words.
    pub(crate) fn held_back(&self) -> Option<String> {
        let is_held_back = |row: &&SweptRow| row.throttled.is_some_and(|share| share > HELD_BACK);
        let observed = self.rows.iter().filter(is_held_back).filter_map(|row| row.observed_mhz);
        let (lowest, highest) =
            observed.fold((f64::INFINITY, 0.0), |(low, high), mhz| (mhz.min(low), mhz.max(high)));
        let Self { mhz, .. } = self;
        (highest > 0.0).then(|| match (lowest.round(), highest.round()) {
            (low, high) if low < high => {
                format!(
                    "power limits hold the GPUs at {low} to {high} MHz where {mhz} was asked for"
                )
            }
            (low, _) => {
                format!("power limits hold the GPUs at {low} MHz where {mhz} was asked for")
            }
        })
    }

    /// The largest standard error of an energy, as a share of it, of what depends on the clock.
    pub(crate) fn worst_error(&self) -> f64 {
        let error = |row: &SweptRow| {
            row.energy_sd_j.unwrap_or(0.0) / (row.count as f64).sqrt() / row.energy_j
        };
        let free = self.rows.iter().filter(|row| !row.instruction.is_fixed());
        free.map(error).fold(0.0, f64::max)
    }

    /// The mean energy of each (stage, instruction) whose time depends on the clock, in joules.
    pub(crate) fn energies(&self) -> BTreeMap<(Stage, Instruction), f64> {
        let mut each: BTreeMap<_, Vec<f64>> = BTreeMap::new();
        for row in self.rows.iter().filter(|row| !row.instruction.is_fixed()) {
            each.entry((row.stage, row.instruction)).or_default().push(row.energy_j);
        }
        let mean = |energies: Vec<f64>| energies.iter().sum::<f64>() / energies.len() as f64;
        each.into_iter().map(|(instruction, energies)| (instruction, mean(energies))).collect()
    }
}

impl SweptRow {
    /// The medians, which an instruction that was held up does not change. None if time or energy
    /// was not measured; the estimate for a very short instruction may be no energy at all.
    fn of(rank: &TrialRank, row: &TrialRow, mean_w: Option<f64>) -> Option<Self> {
        // A longer one is measured again until its energy is known.
        let mean_w = mean_w.filter(|_| row.time_median_s < SHORT_S);
        Some(Self {
            energy_j: energy_j(row, mean_w)?,
            stage: rank.stage,
            rank: rank.rank,
            dp_rank: rank.dp_rank,
            tp_rank: rank.tp_rank,
            instruction: row.instruction,
            chunk: row.chunk,
            count: row.count,
            time_s: row.time_median_s,
            time_sd_s: row.time_sd_s,
            energy_sd_j: row.energy_sd_j,
            observed_mhz: row.observed_mhz,
            throttled: row.throttled,
        })
    }
}

/// The median time of a step in seconds: a single step that was held up says nothing about a clock.
pub(crate) fn median_step_s(steps: &[TrialStep]) -> f64 {
    median(steps.iter().map(|step| step.time_s))
}

/// The profile of all clocks, as CSV that the planner reads.
pub(crate) fn profile_csv(clocks: &[SweptClock]) -> String {
    let mut csv = HEADER.to_owned();
    for clock in clocks {
        for row in &clock.rows {
            let SweptRow { stage, rank, dp_rank, tp_rank, chunk, count, .. } = row;
            let SweptRow { time_s, energy_j, .. } = row;
            let figure = |figure: Option<f64>| {
                let finite = figure.filter(|figure| figure.is_finite());
                finite.map_or_else(String::new, |figure| figure.to_string())
            };
            // A profile has no larger ones. The median of instructions of which some were held up, and an
            // energy that is hardly known, are less than their error.
            let most = |mean: f64| mean * (*count as f64).sqrt();
            let sd = |sd: Option<f64>, mean: f64| {
                figure(sd.filter(|_| *count > 1).map(|sd| sd.min(most(mean))))
            };
            csv += &format!(
                "{stage},{},{},{time_s},{energy_j},{count},{},{},{rank},{dp_rank},{tp_rank},\
                 {chunk},{},{}\n",
                row.instruction,
                clock.mhz.0,
                sd(Some(row.time_sd_s), *time_s),
                sd(row.energy_sd_j, *energy_j),
                figure(row.observed_mhz),
                figure(row.throttled),
            );
        }
    }
    csv
}

#[cfg(test)]
pub(crate) mod tests {
    use pfo_planner::Profile;
    use pfo_protocol::{LeftOut, TrialResult};

    use super::*;

    /// A trial of one step in which every rank, a stage each, ran these.
    pub(crate) fn trial(
        step_s: f64,
        ranks: &[&[(Instruction, f64, Option<f64>)]],
    ) -> RecordedTrial {
        let row = |&(instruction, time_s, energy_j): &(Instruction, f64, Option<f64>)| TrialRow {
            instruction,
            chunk: Chunk(0),
            mhz: None,
            observed_mhz: None,
            count: 4,
            time_mean_s: 2.0 * time_s,
            time_median_s: time_s,
            time_sd_s: 0.01,
            energy_mean_j: None,
            energy_median_j: energy_j,
            energy_sd_j: Some(0.005),
            throttled: None,
            left_out: LeftOut::default(),
        };
        let window = |stage: u16| TrialRank {
            rank: Rank(stage.into()),
            stage: Stage(stage),
            dp_rank: DpRank(0),
            tp_rank: TpRank(0),
            gpu_uuid: "GPU-1".parse().unwrap(),
            gpu_model: "A100".into(),
            time_s: step_s,
            energy_j: None,
            mismatched_steps: 0,
        };
        let recorded = |(rank, rows): (u32, &&[_])| RecordedRank {
            rank: Rank(rank),
            readings: 9,
            stray_readings: 0,
            rows: rows.iter().map(row).collect(),
            waits: Vec::new(),
        };
        RecordedTrial {
            trial: TrialResult {
                plan: None,
                first_step: 3,
                steps: vec![TrialStep { time_s: step_s, energy_j: None }],
                ranks: (0..ranks.len() as u16).map(window).collect(),
            },
            ranks: (0..).zip(ranks).map(recorded).collect(),
        }
    }

    #[test]
    fn instructions_are_read_as_this_release_and_release_0_1_write_them() {
        for (written, meant) in [
            ("forward_backward", Instruction::ForwardBackward),
            ("ForwardBackward", Instruction::ForwardBackward),
            ("P2p", Instruction::P2p),
            ("OptimizerStep", Instruction::OptimizerStep),
        ] {
            let json = format!("\"{written}\"");
            let read = instruction(&mut serde_json::Deserializer::from_str(&json)).unwrap();
            assert_eq!(read, meant);
        }
        let mut nameless = serde_json::Deserializer::from_str("\"nap\"");
        let error = instruction(&mut nameless).unwrap_err().to_string();
        assert!(error.contains("unknown instruction \"nap\""), "{error}");
    }

    #[test]
    fn the_planner_reads_what_is_written_with_counts_and_spreads() {
        let ranks: [&[_]; 2] = [
            &[(Instruction::Forward, 0.1, Some(20.0)), (Instruction::Load, 0.01, Some(1.0))],
            &[(Instruction::Forward, 0.2, Some(30.0))],
        ];
        let clocks = [1410, 1395].map(|mhz| SweptClock::of(Mhz(mhz), &trial(1.0, &ranks)));
        let profile = Profile::from_csv(profile_csv(&clocks).as_bytes()).unwrap();
        assert_eq!(profile.rows().count(), 6);
        let forward = Instruction::Forward;
        let measured = profile.at(Stage(1), forward, Mhz(1395)).unwrap();
        assert_eq!((measured.time_s, measured.energy_j), (0.2, 30.0));
        let repeats = profile.repeats(Stage(0), forward, Mhz(1410));
        assert_eq!(
            (repeats.count, repeats.time_sd_s, repeats.energy_sd_j),
            (4, Some(0.01), Some(0.005))
        );
    }

    #[test]
    fn the_planner_reads_rows_of_instructions_that_were_held_up_and_of_energies_hardly_known() {
        let mut trial = trial(1.0, &[&[(Instruction::Forward, 0.1, Some(20.0))]]);
        let row = &mut trial.ranks[0].rows[0];
        (row.time_sd_s, row.energy_sd_j) = (5.0, Some(900.0));
        let csv = profile_csv(&[SweptClock::of(Mhz(1410), &trial)]);
        let profile = Profile::from_csv(csv.as_bytes()).unwrap();
        let repeats = profile.repeats(Stage(0), Instruction::Forward, Mhz(1410));
        assert_eq!((repeats.time_sd_s, repeats.energy_sd_j), (Some(0.2), Some(40.0)));
    }

    #[test]
    fn an_optimizer_step_too_short_for_an_energy_draws_what_its_rank_does_and_decides_nothing() {
        let step = |energy_j| -> SweptClock {
            let rows = [
                (Instruction::Forward, 0.1, Some(30.0)),
                (Instruction::OptimizerStep, 0.001, energy_j),
            ];
            SweptClock::of(Mhz(900), &trial(1.0, &[&rows]))
        };
        for energy_j in [None, Some(-0.2), Some(0.0001)] {
            let clock = step(energy_j);
            assert!((clock.rows[1].energy_j - 0.3).abs() < 1e-9, "{energy_j:?}");
            assert!(clock.worst_error() < 1e-3, "{energy_j:?}");
            Profile::from_csv(profile_csv(&[clock]).as_bytes()).unwrap();
        }
        assert_eq!(step(Some(0.2)).rows[1].energy_j, 0.2);
    }

    #[test]
    fn what_has_no_energy_is_no_row() {
        let none = [None, Some(-0.1), Some(0.0), Some(f64::NAN), Some(f64::INFINITY)];
        for energy_j in none {
            let ranks: [&[_]; 1] = [&[(Instruction::Forward, 0.1, energy_j)]];
            assert_eq!(SweptClock::of(Mhz(900), &trial(1.0, &ranks)).rows, [], "{energy_j:?}");
        }
    }

    #[test]
    fn instructions_whose_time_no_clock_changes_have_no_say_in_where_a_sweep_ends() {
        let ranks: [&[_]; 1] = [&[
            (Instruction::Forward, 0.1, Some(20.0)),
            (Instruction::OptimizerStep, 0.1, Some(9.0)),
        ]];
        let energies = SweptClock::of(Mhz(900), &trial(1.0, &ranks)).energies();
        assert_eq!(energies, BTreeMap::from([((Stage(0), Instruction::Forward), 20.0)]));
    }

    #[test]
    fn one_step_that_was_held_up_does_not_count() {
        let steps = [1.0, 9.0, 1.1].map(|time_s| TrialStep { time_s, energy_j: None });
        assert_eq!(median_step_s(&steps), 1.1);
    }
}

//! What was seen of a job, added up over trials. Pure.

use std::collections::{BTreeMap, BTreeSet};

use pfo_planner::{Instruction, Order, Stage};
use pfo_protocol::{Mhz, Rank, RecordedTrial, Status, TrialRow};
use serde::Serialize;

/// The largest standard error of an instruction's energy, as a share of it, with which it is shown.
const LARGEST_ERROR: f64 = 0.1;

/// The smallest, as a share, that one trial is believed to have.
const LEAST_ERROR: f64 = 0.001;

/// Instructions whose energy is not known draw what the others draw, if they take this share of the
/// work at most.
const FEW: f64 = 0.05;

/// Everything that was seen.
#[derive(Default)]
pub(super) struct Seen {
    /// The clocks that the GPUs support.
    pub(super) clocks: Vec<Mhz>,
    pub(super) order: Option<Order>,
    pub(super) steps: Steps,
    pub(super) work: BTreeMap<(Stage, Instruction), Work>,
    pub(super) waits: BTreeMap<Stage, Waits>,
    pub(super) gpus: BTreeMap<u32, GpuSeen>,
    /// The ranks of the job, and their stages.
    pub(super) ranks: usize,
    pub(super) stages: BTreeMap<Stage, usize>,
    /// The ranks a step of which had no energy.
    pub(super) unmetered: BTreeSet<Rank>,
    /// Why the last look has shown nothing.
    pub(super) trouble: Option<String>,
}

/// The steps that were measured.
#[derive(Default)]
pub(super) struct Steps {
    pub(super) count: u64,
    time_s: f64,
    /// Those whose energy is known.
    metered: u64,
    energy_j: f64,
}

/// The instructions of one kind of a stage.
#[derive(Default)]
pub(super) struct Work {
    pub(super) count: u64,
    time_s: f64,
    /// Those of which it is known for which share of their time their clock was kept down, and the
    /// sum of these shares.
    looked_at: u64,
    throttled: f64,
    /// The energies that trials found, each divided by the square of its standard error, and the sum
    /// of the inverse squares.
    weighed_j: f64,
    weight: f64,
}

/// The waits of a stage.
#[derive(Default)]
pub(super) struct Waits {
    time_s: f64,
    metered_s: f64,
    energy_j: f64,
}

/// A GPU, as it was at the moments at which it was looked at.
#[derive(Default, Serialize)]
pub(super) struct GpuSeen {
    pub(super) model: String,
    /// The highest SM clock that it had, and the middle one while something computed.
    pub(super) highest_mhz: Option<u32>,
    pub(super) usual_mhz: Option<u32>,
    pub(super) hottest_c: Option<u32>,
    pub(super) throttle_reasons: u64,
    #[serde(skip)]
    clocks: Vec<u32>,
}

impl Steps {
    /// Of one step.
    pub(super) fn time_s(&self) -> Option<f64> {
        (self.count > 0).then(|| self.time_s / self.count as f64)
    }

    /// Of all ranks in one step.
    pub(super) fn energy_j(&self) -> Option<f64> {
        (self.metered > 0).then(|| self.energy_j / self.metered as f64)
    }
}

impl Work {
    /// Of one.
    pub(super) fn time_s(&self) -> f64 {
        self.time_s / self.count.max(1) as f64
    }

    /// Of one, and its standard error; none if that is too large.
    pub(super) fn energy_j(&self) -> Option<(f64, f64)> {
        let (energy_j, error_j) = (self.weighed_j / self.weight, self.weight.sqrt().recip());
        (error_j < LARGEST_ERROR * energy_j).then_some((energy_j, error_j))
    }

    fn add(&mut self, row: &TrialRow) {
        let count = row.count as f64;
        self.count += row.count;
        self.time_s += count * row.time_mean_s;
        if let Some(throttled) = row.throttled {
            self.looked_at += row.count;
            self.throttled += count * throttled;
        }
        if let (Some(energy_j), Some(sd_j)) = (row.energy_mean_j, row.energy_sd_j) {
            let error_j = (sd_j / count.sqrt()).max(LEAST_ERROR * energy_j.abs());
            if error_j > 0.0 {
                self.weight += error_j.powi(-2);
                self.weighed_j += energy_j * error_j.powi(-2);
            }
        }
    }

    /// The share of their time in which their clock was kept down; none if no trial knows it.
    pub(super) fn throttled(&self) -> Option<f64> {
        (self.looked_at > 0).then(|| self.throttled / self.looked_at as f64)
    }
}

impl Waits {
    /// Of a waiting GPU.
    pub(super) fn power_w(&self) -> Option<f64> {
        (self.metered_s > 0.0).then(|| self.energy_j / self.metered_s)
    }
}

impl Seen {
    /// Takes what GPUs that are leased do at this moment.
    pub(super) fn glance(&mut self, status: &Status) {
        for gpu in status.gpus.iter().filter(|gpu| gpu.leased) {
            let seen = self.gpus.entry(gpu.index).or_default();
            seen.model.clone_from(&gpu.model);
            if let Some(mhz) = gpu.observed_mhz {
                seen.clocks.push(mhz.0);
                seen.clocks.sort_unstable();
                seen.highest_mhz = seen.clocks.last().copied();
                seen.usual_mhz = seen.clocks.get(seen.clocks.len() / 2).copied();
            }
            seen.hottest_c = seen.hottest_c.max(gpu.temperature_c);
            seen.throttle_reasons |= gpu.throttle_reasons;
        }
    }

    /// Takes what a trial has shown.
    pub(super) fn add(&mut self, trial: &RecordedTrial) {
        for step in &trial.trial.steps {
            self.steps.count += 1;
            self.steps.time_s += step.time_s;
            if let Some(energy_j) = step.energy_j {
                self.steps.metered += 1;
                self.steps.energy_j += energy_j;
            }
        }
        self.ranks = trial.ranks.len();
        self.stages.clear();
        for (measured, rank) in trial.trial.ranks.iter().zip(&trial.ranks) {
            *self.stages.entry(measured.stage).or_default() += 1;
            if measured.energy_j.is_none() {
                self.unmetered.insert(measured.rank);
            }
            for row in &rank.rows {
                self.work.entry((measured.stage, row.instruction)).or_default().add(row);
            }
            let waits = self.waits.entry(measured.stage).or_default();
            for wait in &rank.waits {
                waits.time_s += wait.time_s;
                if wait.is_known() {
                    waits.metered_s += wait.time_s;
                    waits.energy_j += wait.time_s * wait.power_w;
                }
            }
        }
    }

    /// How many of a kind a rank of the stage runs in a step.
    pub(super) fn per_step(&self, stage: Stage, work: &Work) -> f64 {
        let ranks = self.stages.get(&stage).copied().unwrap_or(1);
        work.count as f64 / (self.steps.count.max(1) as f64 * ranks as f64)
    }

    /// How long a rank of a stage waits in a step.
    pub(super) fn waits_s(&self, stage: Stage) -> Option<f64> {
        let ranks = self.stages.get(&stage).copied().unwrap_or(1) as f64;
        Some(self.waits.get(&stage)?.time_s / (self.steps.count.max(1) as f64 * ranks))
    }

    /// The mean power of all work; none as long as the energy of more than few is not known.
    pub(super) fn work_w(&self) -> Option<f64> {
        let known = self.work.values().filter_map(|work| Some((work, work.energy_j()?.0)));
        let sum = |(s, j): (f64, f64), (work, energy_j): (&Work, f64)| {
            (s + work.time_s, j + energy_j * work.count as f64)
        };
        let (known_s, known_j) = known.fold((0.0, 0.0), sum);
        let all_s: f64 = self.work.values().map(|work| work.time_s).sum();
        (known_s > 0.0 && known_s >= (1.0 - FEW) * all_s).then(|| known_j / known_s)
    }

    /// What a step's energy goes into: work, waiting, and what is in neither.
    pub(super) fn split(&self) -> Option<[f64; 3]> {
        let step_j = self.steps.energy_j()?;
        let work_w = self.work_w()?;
        let ranks = |stage| self.stages.get(&stage).copied().unwrap_or(1) as f64;
        let work = |(&(stage, _), work): (&(Stage, Instruction), &Work)| {
            let energy_j = work.energy_j().map_or(work_w * work.time_s(), |(energy_j, _)| energy_j);
            self.per_step(stage, work) * ranks(stage) * energy_j
        };
        let work_j: f64 = self.work.iter().map(work).sum();
        let wait = |(&stage, waits): (&Stage, &Waits)| {
            Some(self.waits_s(stage)? * ranks(stage) * waits.power_w()?)
        };
        let waits_j = self.waits.iter().filter_map(wait).fold(0.0, |sum, wait_j| sum + wait_j);
        Some([work_j, waits_j, (step_j - work_j - waits_j).max(0.0)])
    }

    /// The model of the GPUs, if they are of one.
    pub(super) fn model(&self) -> Option<&str> {
        let mut models = self.gpus.values().map(|gpu| gpu.model.as_str());
        let first = models.next()?;
        models.all(|model| model == first).then_some(first)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Ten steps of a job of two stages on A100s, the second of which waits for a third of its time.
    pub(in crate::observe) fn example() -> Seen {
        let steps = Steps { count: 10, time_s: 20.0, metered: 10, energy_j: 9000.0 };
        let work = |count: u64, time_s: f64, power_w: f64| Work {
            count,
            time_s: count as f64 * time_s,
            looked_at: count,
            throttled: 0.25 * count as f64,
            weighed_j: 100.0 * time_s * power_w,
            weight: 100.0,
        };
        let (forward, backward) = (Instruction::Forward, Instruction::Backward);
        let gpu = |hottest_c| GpuSeen {
            model: "NVIDIA A100-SXM4-40GB".to_owned(),
            highest_mhz: Some(1410),
            usual_mhz: Some(1380),
            hottest_c: Some(hottest_c),
            throttle_reasons: 4,
            clocks: Vec::new(),
        };
        Seen {
            clocks: (900..=1410).step_by(15).map(Mhz).collect(),
            order: None,
            steps,
            work: [
                ((Stage(0), forward), work(80, 0.075, 300.0)),
                ((Stage(0), backward), work(80, 0.15, 320.0)),
                ((Stage(1), forward), work(80, 0.05, 290.0)),
                ((Stage(1), backward), work(80, 0.1, 310.0)),
            ]
            .into(),
            waits: [(Stage(1), Waits { time_s: 6.0, metered_s: 6.0, energy_j: 540.0 })].into(),
            gpus: [(0, gpu(61)), (1, gpu(58))].into(),
            ranks: 2,
            stages: [(Stage(0), 1), (Stage(1), 1)].into(),
            unmetered: BTreeSet::new(),
            trouble: None,
        }
    }

    #[test]
    fn a_steps_energy_is_work_waiting_and_the_rest_and_nothing_is_lost() {
        let seen = example();
        let [work_j, waits_j, rest_j] = seen.split().unwrap();
        assert!((work_j - 8.0 * (22.5 + 48.0 + 14.5 + 31.0)).abs() < 1e-6, "{work_j}");
        assert!((waits_j - 54.0).abs() < 1e-9, "{waits_j}");
        assert!((rest_j - 0.0).abs() < 100.0, "{rest_j}");
    }

    #[test]
    fn without_a_counter_there_is_no_split_and_no_figure() {
        let mut seen = example();
        seen.steps.metered = 0;
        assert!(seen.split().is_none() && seen.steps.energy_j().is_none());
    }

    fn row(count: u64, energy_j: f64, error_j: f64) -> TrialRow {
        TrialRow {
            instruction: Instruction::OptimizerStep,
            chunk: pfo_protocol::Chunk(0),
            mhz: None,
            observed_mhz: None,
            count,
            time_mean_s: 0.002,
            time_sd_s: 0.0,
            time_median_s: 0.002,
            energy_mean_j: Some(energy_j),
            energy_median_j: None,
            energy_sd_j: Some(error_j * (count as f64).sqrt()),
            throttled: None,
            left_out: pfo_protocol::LeftOut::default(),
        }
    }

    #[test]
    fn a_trial_that_does_not_know_whether_clocks_were_kept_down_does_not_say_that_they_were_not() {
        let mut work = Work::default();
        work.add(&row(6, 0.7, 0.1));
        assert_eq!(work.throttled(), None);
        work.add(&TrialRow { throttled: Some(0.98), ..row(24, 0.7, 0.1) });
        assert_eq!(work.throttled(), Some(0.98));
    }

    #[test]
    fn trials_weigh_as_much_as_they_are_certain_of() {
        let mut work = Work::default();
        // The first trial of two steps finds nonsense, and says that it may be.
        for (count, energy_j, error_j) in [(2, -4.97, 5.0), (16, 0.9, 0.1), (32, 0.7, 0.05)] {
            work.add(&row(count, energy_j, error_j));
        }
        let (energy_j, error_j) = work.energy_j().unwrap();
        assert!((energy_j - 0.74).abs() < 0.005 && (error_j - 0.0447).abs() < 1e-3, "{energy_j}");
    }

    #[test]
    fn an_energy_that_is_below_nothing_or_may_be_anything_is_not_shown() {
        for (energy_j, error_j) in [(-4.97, 0.1), (0.7, 0.2), (0.0, 0.0), (0.0, 0.1)] {
            let mut work = Work::default();
            work.add(&row(8, energy_j, error_j));
            assert_eq!(work.energy_j(), None, "{energy_j}");
        }
    }

    #[test]
    fn short_work_of_unknown_energy_draws_what_the_rest_draws_and_long_work_ends_the_split() {
        let mut seen = example();
        let [before_j, ..] = seen.split().unwrap();
        let mean_w = seen.work_w().unwrap();
        seen.work
            .entry((Stage(0), Instruction::OptimizerStep))
            .or_default()
            .add(&row(10, -5.0, 9.0));
        let [work_j, ..] = seen.split().unwrap();
        assert!((work_j - before_j - 0.002 * mean_w).abs() < 1e-6, "{work_j} {before_j}");
        for _ in 0..2000 {
            let work = seen.work.entry((Stage(0), Instruction::OptimizerStep)).or_default();
            work.add(&row(10, -5.0, 9.0));
        }
        assert_eq!(seen.split(), None);
    }
}

//! What was seen of a job, added up over trials. Pure.

use std::collections::{BTreeMap, BTreeSet};

use pfo_planner::{Instruction, Order, Stage};
use pfo_protocol::{Mhz, Rank, RecordedTrial, Status};
use serde::Serialize;

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
    metered: u64,
    energy_j: f64,
    throttled: f64,
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

    /// Of one.
    pub(super) fn energy_j(&self) -> Option<f64> {
        (self.metered > 0).then(|| self.energy_j / self.metered as f64)
    }

    /// The share of their time in which their clock was kept down.
    pub(super) fn throttled(&self) -> f64 {
        self.throttled / self.count.max(1) as f64
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
                let work = self.work.entry((measured.stage, row.instruction)).or_default();
                let count = row.count as f64;
                work.count += row.count;
                work.time_s += count * row.time_mean_s;
                work.throttled += count * row.throttled.unwrap_or(0.0);
                if let Some(energy_j) = row.energy_mean_j {
                    work.metered += row.count;
                    work.energy_j += count * energy_j;
                }
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

    /// What a step's energy goes into: work, waiting, and what is in neither.
    pub(super) fn split(&self) -> Option<[f64; 3]> {
        if self.work.is_empty() {
            return None;
        }
        let step_j = self.steps.energy_j()?;
        let ranks = |stage| self.stages.get(&stage).copied().unwrap_or(1) as f64;
        let work = |(&(stage, _), work): (&(Stage, Instruction), &Work)| {
            Some(self.per_step(stage, work) * ranks(stage) * work.energy_j()?)
        };
        let work_j = self.work.iter().map(work).sum::<Option<f64>>()?;
        let wait = |(&stage, waits): (&Stage, &Waits)| {
            Some(self.waits_s(stage)? * ranks(stage) * waits.power_w()?)
        };
        let waits_j: f64 = self.waits.iter().filter_map(wait).sum();
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
            metered: count,
            energy_j: count as f64 * time_s * power_w,
            throttled: 0.25 * count as f64,
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
}

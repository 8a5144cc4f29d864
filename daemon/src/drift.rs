//! How far what a job measures has moved from what its plan predicts.

use std::collections::BTreeMap;

use pfo_protocol::{DriftStatus, DriftedInstruction, DriftedRank, Instruction};

use crate::deviation::{Deviation, Limit};
use crate::own_times::Taken;
use crate::rank_reading::RankReading;

/// So many seconds are compared at least: energy counters are some tenths of a second old.
const LEAST_S: f64 = 5.0;

/// What a plan predicts of a step on this node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicted {
    /// Seconds.
    pub time_s: f64,
    /// Joules, if only whole pipelines are on this node.
    pub energy_j: Option<f64>,
}

/// The drift of one job.
#[derive(Debug, Default)]
pub struct Drift {
    since: BTreeMap<u32, RankReading>,
    /// What a step of each rank took when it was first compared, in joules.
    first_j: BTreeMap<u32, f64>,
    time: Deviation,
    energy: Deviation,
}

impl Drift {
    /// Compares the steps since the last comparison, if they are enough. Returns the drift then, none if what
    /// was measured is near enough.
    pub fn look(
        &mut self,
        readings: &[RankReading],
        predicted: Predicted,
        limit: Limit,
    ) -> Option<Option<DriftStatus>> {
        let went_on = |now: &RankReading| {
            let before = self.since.get(&now.rank);
            before.is_some_and(|before| {
                (before.session, before.swap) == (now.session, now.swap) && before.window.is_some()
            })
        };
        if readings.len() != self.since.len() || !readings.iter().all(went_on) {
            let is_other =
                |now: &RankReading| self.since.get(&now.rank).is_none_or(|b| b.swap != now.swap);
            if readings.iter().any(is_other) {
                *self = Self::default();
            }
            self.begin(readings);
            return None;
        }
        let mut steps = u64::MAX;
        let mut time_s = 0.0_f64;
        let mut energies_j = BTreeMap::new();
        let mut longest_s = 0.0_f64;
        for of in readings {
            let (before, now) = (self.since.get(&of.rank)?.window?, of.window?);
            let own_steps = now.steps.checked_sub(before.steps)?;
            let per_step = 1.0 / own_steps.max(1) as f64;
            steps = steps.min(own_steps);
            longest_s = longest_s.max(now.time_s - before.time_s);
            time_s = time_s.max((now.time_s - before.time_s) * per_step);
            energies_j.insert(of.rank, (now.energy_j - before.energy_j) * per_step);
        }
        if steps < u64::from(limit.steps) || longest_s < LEAST_S {
            return None;
        }
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        let time = time_s / predicted.time_s - 1.0;
        let energy_j: f64 = energies_j.values().sum();
        let energy = predicted.energy_j.map(|predicted_j| energy_j / predicted_j - 1.0);
        self.time.observe(steps, time.abs(), limit);
        self.energy.observe(steps, energy.unwrap_or(0.0).abs(), limit);
        let is_far = self.time.share().or(self.energy.share()).is_some();
        let drift = is_far.then(|| DriftStatus {
            time,
            energy,
            instructions: self.instructions(readings, limit),
            ranks: self.ranks(&energies_j, limit),
        });
        energies_j.append(&mut self.first_j);
        self.first_j = energies_j;
        self.begin(readings);
        Some(drift)
    }

    fn ranks(&self, energies_j: &BTreeMap<u32, f64>, limit: Limit) -> Vec<DriftedRank> {
        let drifted = energies_j.iter().filter_map(|(&rank, energy_j)| {
            let first_j = self.first_j.get(&rank).filter(|first_j| **first_j > 0.0)?;
            let energy = energy_j / first_j - 1.0;
            (energy.abs() > limit.share).then_some(DriftedRank { rank, energy })
        });
        drifted.collect()
    }

    fn begin(&mut self, readings: &[RankReading]) {
        self.since = readings.iter().map(|reading| (reading.rank, *reading)).collect();
    }

    fn instructions(&self, readings: &[RankReading], limit: Limit) -> Vec<DriftedInstruction> {
        let mut sums: BTreeMap<(u32, u32), (Instruction, Taken)> = BTreeMap::new();
        for now in readings {
            let Some(before) = self.since.get(&now.rank) else { continue };
            for (instruction, taken) in now.own_times.since(&before.own_times).kinds() {
                let key = (now.stage, instruction as u32);
                let sum = &mut sums.entry(key).or_insert((instruction, Taken::default())).1;
                sum.took_ns = sum.took_ns.saturating_add(taken.took_ns);
                sum.should_ns = sum.should_ns.saturating_add(taken.should_ns);
            }
        }
        let drifted = sums.into_iter().filter_map(|((stage, _), (instruction, taken))| {
            let time = taken.excess().filter(|time| time.abs() > limit.share)?;
            Some(DriftedInstruction { stage, instruction, time })
        });
        drifted.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::RankWindow;
    use crate::own_times::OwnTimes;

    const LIMIT: Limit = Limit { share: 0.05, steps: 5 };
    const PREDICTED: Predicted = Predicted { time_s: 1.0, energy_j: Some(200.0) };

    /// Two ranks of two stages, told in steps of so many seconds and joules, of which the first takes a half.
    struct Told([RankReading; 2]);

    impl Told {
        fn new() -> Self {
            let reading = |rank| RankReading {
                rank,
                stage: rank,
                session: u64::from(rank),
                swap: 1,
                step: 0,
                own_times: OwnTimes::default(),
                window: Some(RankWindow { swap: 1, steps: 1, time_s: 0.0, energy_j: 0.0 }),
            };
            Self([reading(0), reading(1)])
        }

        fn steps(&mut self, steps: u64, time_s: f64, energy_j: f64) -> &[RankReading] {
            for rank in &mut self.0 {
                rank.step += steps;
                let window = rank.window.as_mut().unwrap();
                window.steps += steps;
                window.time_s += steps as f64 * time_s;
                window.energy_j += steps as f64 * energy_j / 2.0;
                let percent = if rank.rank == 1 { (100.0 * time_s) as u64 } else { 100 };
                rank.own_times.add(Instruction::Backward, steps * percent, steps * 100);
            }
            &self.0
        }
    }

    #[test]
    fn what_is_near_enough_is_no_drift() {
        let (mut drift, mut told) = (Drift::default(), Told::new());
        assert_eq!(drift.look(told.steps(0, 1.0, 200.0), PREDICTED, LIMIT), None);
        assert_eq!(drift.look(told.steps(4, 1.0, 200.0), PREDICTED, LIMIT), None, "too few");
        assert_eq!(drift.look(told.steps(4, 1.04, 193.0), PREDICTED, LIMIT), Some(None));
    }

    #[test]
    fn slow_steps_are_a_drift_with_the_instructions_that_are_slow() {
        let (mut drift, mut told) = (Drift::default(), Told::new());
        drift.look(told.steps(0, 1.0, 200.0), PREDICTED, LIMIT);
        assert_eq!(drift.look(told.steps(10, 1.5, 200.0), PREDICTED, LIMIT), Some(None));
        let found = drift.look(told.steps(10, 1.5, 200.0), PREDICTED, LIMIT).flatten().unwrap();
        assert!((found.time - 0.5).abs() < 1e-9 && found.energy.unwrap().abs() < 1e-9, "{found:?}");
        let slow = DriftedInstruction { stage: 1, instruction: Instruction::Backward, time: 0.5 };
        assert_eq!(found.instructions, [slow]);
        assert!(drift.look(told.steps(10, 1.01, 200.0), PREDICTED, LIMIT).flatten().is_some());
        assert_eq!(drift.look(told.steps(10, 1.01, 200.0), PREDICTED, LIMIT), Some(None));
    }

    #[test]
    fn less_energy_than_predicted_is_a_drift_too_where_the_whole_pipeline_is_here() {
        for (energy_j, drifts) in [(Some(200.0), true), (None, false)] {
            let predicted = Predicted { energy_j, ..PREDICTED };
            let (mut drift, mut told) = (Drift::default(), Told::new());
            drift.look(told.steps(0, 1.0, 200.0), predicted, LIMIT);
            drift.look(told.steps(10, 1.0, 160.0), predicted, LIMIT);
            let found = drift.look(told.steps(10, 1.0, 160.0), predicted, LIMIT);
            assert_eq!(found.unwrap().is_some(), drifts);
        }
    }

    #[test]
    fn ranks_whose_energy_has_changed_since_the_plan_began_are_told() {
        let (mut drift, mut told) = (Drift::default(), Told::new());
        drift.look(told.steps(0, 1.0, 200.0), PREDICTED, LIMIT);
        // The prediction is off for both alike from the beginning.
        drift.look(told.steps(10, 1.0, 260.0), PREDICTED, LIMIT);
        let found = drift.look(told.steps(10, 1.0, 262.0), PREDICTED, LIMIT).flatten().unwrap();
        assert_eq!(found.ranks, []);
        told.0[1].window.as_mut().unwrap().energy_j += 10.0 * 26.0;
        let found = drift.look(told.steps(10, 1.0, 260.0), PREDICTED, LIMIT).flatten().unwrap();
        let [DriftedRank { rank: 1, energy }] = found.ranks[..] else { panic!("{found:?}") };
        assert!((energy - 0.2).abs() < 1e-9, "{energy}");
        told.0.iter_mut().for_each(|rank| rank.swap = 2);
        drift.look(told.steps(10, 1.0, 260.0), PREDICTED, LIMIT);
        assert!(drift.first_j.is_empty(), "another plan has a first time of its own");
    }

    #[test]
    fn another_plan_is_compared_from_its_own_beginning() {
        let (mut drift, mut told) = (Drift::default(), Told::new());
        drift.look(told.steps(0, 1.0, 200.0), PREDICTED, LIMIT);
        drift.look(told.steps(10, 2.0, 200.0), PREDICTED, LIMIT);
        assert!(drift.look(told.steps(10, 2.0, 200.0), PREDICTED, LIMIT).flatten().is_some());
        for rank in &mut told.0 {
            rank.swap = 2;
            rank.window = None;
        }
        assert_eq!(drift.look(&told.0, PREDICTED, LIMIT), None);
        assert_eq!(drift.time.share(), None);
    }
}

//! How far the measured time and energy of a job have moved from the prediction of its plan. Pure.
//!
//! A plan predicts instructions. What a step takes beside them (transfers, loads, the optimizer) hardly
//! depends on clocks: it is what steps took first under the plan while instructions took what they should.

use std::collections::BTreeMap;

use pfo_planner::Rest;
use pfo_protocol::{DriftStatus, DriftedInstruction, DriftedRank, Instruction, Rank, Stage};

use crate::watch::deviation::{Deviation, Limit};
use crate::watch::own_times::Taken;
use crate::watch::rank_reading::RankReading;

/// The shortest time that is compared, in seconds: readings of energy counters are some tenths of a
/// second old.
const LEAST_S: f64 = 5.0;

/// What a plan predicts of a step on this node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Predicted {
    /// The number of the plan.
    pub(crate) plan: u32,
    pub(crate) time_s: f64,
    /// None if there are not only whole pipelines on this node.
    pub(crate) energy_j: Option<f64>,
}

/// What a comparison shows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Look {
    /// There are too few steps to compare.
    TooSoon,
    /// What was measured is near the prediction.
    Near,
    /// What was measured is too far from the prediction.
    Far(DriftStatus),
}

/// The steps of all ranks since the last comparison.
#[derive(Default)]
struct Measured {
    steps: u64,
    longest_s: f64,
    /// A step of the slowest rank.
    time_s: f64,
    /// A step of each rank.
    energies_j: BTreeMap<Rank, f64>,
}

/// The drift of one job.
#[derive(Debug, Default)]
pub(crate) struct Drift {
    since: BTreeMap<Rank, RankReading>,
    /// What a step of each rank took when it was first compared, in joules.
    first_j: BTreeMap<Rank, f64>,
    /// What a step takes beside its instructions, in seconds, once that is known.
    rest_s: Option<f64>,
    time: Deviation,
    energy: Deviation,
}

impl Drift {
    /// Compares the steps since the last comparison, if there are enough of them.
    pub(crate) fn look(
        &mut self,
        readings: &[RankReading],
        predicted: Predicted,
        limit: Limit,
    ) -> Look {
        if !self.continues(readings) {
            let runs_another_plan = |now: &RankReading| {
                self.since.get(&now.rank).is_none_or(|before| before.swap != now.swap)
            };
            if readings.iter().any(runs_another_plan) {
                *self = Self::default();
            }
            self.begin(readings);
            return Look::TooSoon;
        }
        let Some(measured) = self.measured_since(readings) else { return Look::TooSoon };
        if measured.steps < u64::from(limit.steps) || measured.longest_s < LEAST_S {
            return Look::TooSoon;
        }
        let steps = u32::try_from(measured.steps).unwrap_or(u32::MAX);
        if self.rest_s.is_none() {
            self.rest_s = self.rest_s(readings, measured.time_s, predicted.time_s, limit);
        }
        let time = measured.time_s / (predicted.time_s + self.rest_s.unwrap_or(0.0)) - 1.0;
        let energy_j: f64 = measured.energies_j.values().sum();
        let counts_all = measured.energies_j.len() == readings.len();
        let predicted_j = predicted.energy_j.filter(|_| counts_all);
        let energy = predicted_j.map(|predicted_j| energy_j / predicted_j - 1.0);
        self.time.observe(steps, time.abs(), limit);
        self.energy.observe(steps, energy.unwrap_or(0.0).abs(), limit);
        let is_far = self.time.share().or(self.energy.share()).is_some();
        let look = if is_far {
            Look::Far(DriftStatus {
                plan: predicted.plan,
                time,
                energy,
                instructions: self.instructions(readings, limit),
                ranks: self.ranks(&measured.energies_j, limit),
            })
        } else {
            Look::Near
        };
        let mut first_j = measured.energies_j;
        first_j.append(&mut self.first_j);
        self.first_j = first_j;
        self.begin(readings);
        look
    }

    /// Whether every rank still runs what it ran at the last comparison.
    fn continues(&self, readings: &[RankReading]) -> bool {
        let continues = |now: &RankReading| {
            self.since.get(&now.rank).is_some_and(|before| {
                (before.session, before.swap) == (now.session, now.swap) && before.window.is_some()
            })
        };
        readings.len() == self.since.len() && readings.iter().all(continues)
    }

    fn measured_since(&self, readings: &[RankReading]) -> Option<Measured> {
        let mut measured = Measured { steps: u64::MAX, ..Measured::default() };
        for reading in readings {
            let (before, now) = (self.since.get(&reading.rank)?.window?, reading.window?);
            let steps = now.steps.checked_sub(before.steps)?;
            let per_step = 1.0 / steps.max(1) as f64;
            let time_s = now.time_s - before.time_s;
            measured.steps = measured.steps.min(steps);
            measured.longest_s = measured.longest_s.max(time_s);
            measured.time_s = measured.time_s.max(time_s * per_step);
            if let Some((now_j, before_j)) = now.energy_j.zip(before.energy_j) {
                measured.energies_j.insert(reading.rank, (now_j - before_j) * per_step);
            }
        }
        Some(measured)
    }

    fn ranks(&self, energies_j: &BTreeMap<Rank, f64>, limit: Limit) -> Vec<DriftedRank> {
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

    /// What a step takes that its instructions do not explain, if they take what they should.
    fn rest_s(
        &self,
        readings: &[RankReading],
        step_s: f64,
        predicted_s: f64,
        limit: Limit,
    ) -> Option<f64> {
        let excesses = self.taken(readings).into_values().map(Taken::excess);
        let longest = excesses.map(Option::unwrap_or_default).reduce(f64::max)?;
        let rest_s = step_s - predicted_s * (1.0 + longest.max(0.0));
        let is_rest = longest <= limit.share && rest_s <= Rest::MOST * step_s;
        is_rest.then_some(rest_s.max(0.0))
    }

    fn instructions(&self, readings: &[RankReading], limit: Limit) -> Vec<DriftedInstruction> {
        let drifted =
            self.taken(readings).into_iter().filter_map(|((stage, instruction), taken)| {
                let time = taken.excess().filter(|time| time.abs() > limit.share)?;
                Some(DriftedInstruction { stage, instruction, time })
            });
        drifted.collect()
    }

    /// What each kind of instruction of a stage took since the last comparison.
    fn taken(&self, readings: &[RankReading]) -> BTreeMap<(Stage, Instruction), Taken> {
        let mut sums: BTreeMap<(Stage, Instruction), Taken> = BTreeMap::new();
        for now in readings {
            let Some(before) = self.since.get(&now.rank) else { continue };
            for (instruction, taken) in now.own_times.since(&before.own_times).kinds() {
                let sum = sums.entry((now.stage, instruction)).or_default();
                sum.took_ns = sum.took_ns.saturating_add(taken.took_ns);
                sum.should_ns = sum.should_ns.saturating_add(taken.should_ns);
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pfo_protocol::{RankWindow, SessionId};

    use crate::watch::own_times::OwnTimes;

    const LIMIT: Limit = Limit { share: 0.05, steps: 5 };
    const PREDICTED: Predicted = Predicted { plan: 1, time_s: 1.0, energy_j: Some(200.0) };

    /// Two ranks of two stages, played in steps of some seconds and joules; each takes half of the
    /// energy.
    struct Played([RankReading; 2]);

    impl Played {
        fn new() -> Self {
            let reading = |number: u16| RankReading {
                rank: Rank(number.into()),
                stage: Stage(number),
                session: SessionId(number.into()),
                swap: 1,
                step: 0,
                own_times: OwnTimes::default(),
                window: Some(RankWindow { steps: 1, time_s: 0.0, energy_j: Some(0.0) }),
            };
            Self([reading(0), reading(1)])
        }

        fn steps(&mut self, steps: u64, time_s: f64, energy_j: f64) -> &[RankReading] {
            self.steps_with(steps, (time_s, 0.0), energy_j)
        }

        /// Plays steps of this length, of which the rest is in no instruction.
        fn steps_with(
            &mut self,
            steps: u64,
            (time_s, rest_s): (f64, f64),
            energy_j: f64,
        ) -> &[RankReading] {
            for rank in &mut self.0 {
                rank.step += steps;
                let window = rank.window.as_mut().unwrap();
                window.steps += steps;
                window.time_s += steps as f64 * time_s;
                *window.energy_j.as_mut().unwrap() += steps as f64 * energy_j / 2.0;
                let own_s = time_s - rest_s;
                let percent =
                    if rank.rank == Rank(1) { (100.0 * own_s).round() as u64 } else { 100 };
                rank.own_times.add(Instruction::Backward, steps * percent, steps * 100);
            }
            &self.0
        }
    }

    fn far(look: Look) -> DriftStatus {
        let Look::Far(drift) = look else { panic!("{look:?}") };
        drift
    }

    #[test]
    fn what_is_near_enough_is_no_drift() {
        let (mut drift, mut played) = (Drift::default(), Played::new());
        assert_eq!(drift.look(played.steps(0, 1.0, 200.0), PREDICTED, LIMIT), Look::TooSoon);
        assert_eq!(
            drift.look(played.steps(4, 1.0, 200.0), PREDICTED, LIMIT),
            Look::TooSoon,
            "too few"
        );
        assert_eq!(drift.look(played.steps(4, 1.04, 193.0), PREDICTED, LIMIT), Look::Near);
    }

    #[test]
    fn slow_steps_are_a_drift_with_the_instructions_that_are_slow() {
        let (mut drift, mut played) = (Drift::default(), Played::new());
        drift.look(played.steps(0, 1.0, 200.0), PREDICTED, LIMIT);
        assert_eq!(drift.look(played.steps(10, 1.5, 200.0), PREDICTED, LIMIT), Look::Near);
        let found = far(drift.look(played.steps(10, 1.5, 200.0), PREDICTED, LIMIT));
        assert!((found.time - 0.5).abs() < 1e-9 && found.energy.unwrap().abs() < 1e-9, "{found:?}");
        let slow =
            DriftedInstruction { stage: Stage(1), instruction: Instruction::Backward, time: 0.5 };
        assert_eq!(found.instructions, [slow]);
        far(drift.look(played.steps(10, 1.01, 200.0), PREDICTED, LIMIT));
        assert_eq!(drift.look(played.steps(10, 1.01, 200.0), PREDICTED, LIMIT), Look::Near);
    }

    #[test]
    fn what_is_in_no_instruction_from_the_beginning_is_no_drift_and_more_of_it_later_is() {
        let (mut drift, mut played) = (Drift::default(), Played::new());
        drift.look(played.steps(0, 1.0, 200.0), PREDICTED, LIMIT);
        for _ in 0..3 {
            let look = drift.look(played.steps_with(10, (1.1, 0.1), 200.0), PREDICTED, LIMIT);
            assert_eq!(look, Look::Near);
        }
        drift.look(played.steps_with(10, (1.21, 0.21), 200.0), PREDICTED, LIMIT);
        let found = far(drift.look(played.steps_with(10, (1.21, 0.21), 200.0), PREDICTED, LIMIT));
        assert!((found.time - 0.1).abs() < 1e-9, "{found:?}");
        assert_eq!(found.instructions, []);
    }

    #[test]
    fn slow_instructions_and_a_third_of_a_step_are_not_taken_for_what_is_in_no_instruction() {
        for (time_s, rest_s, off) in [(1.2, 0.1, 0.2), (1.5, 0.5, 0.5)] {
            let (mut drift, mut played) = (Drift::default(), Played::new());
            drift.look(played.steps(0, 1.0, 200.0), PREDICTED, LIMIT);
            drift.look(played.steps_with(10, (time_s, rest_s), 200.0), PREDICTED, LIMIT);
            let look = drift.look(played.steps_with(10, (time_s, rest_s), 200.0), PREDICTED, LIMIT);
            assert!((far(look).time - off).abs() < 1e-9);
            // Once instructions take what they should, the rest is known.
            drift.look(played.steps_with(10, (1.1, 0.1), 200.0), PREDICTED, LIMIT);
            let look = drift.look(played.steps_with(10, (1.1, 0.1), 200.0), PREDICTED, LIMIT);
            assert_eq!(look, Look::Near);
        }
    }

    #[test]
    fn where_no_instruction_was_timed_a_long_step_is_a_drift() {
        let (mut drift, mut played) = (Drift::default(), Played::new());
        let untimed = |readings: &[RankReading]| -> Vec<RankReading> {
            let own_times = OwnTimes::default();
            readings.iter().map(|reading| RankReading { own_times, ..*reading }).collect()
        };
        drift.look(&untimed(played.steps(0, 1.0, 200.0)), PREDICTED, LIMIT);
        drift.look(&untimed(played.steps(10, 1.1, 200.0)), PREDICTED, LIMIT);
        let found = far(drift.look(&untimed(played.steps(10, 1.1, 200.0)), PREDICTED, LIMIT));
        assert!((found.time - 0.1).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn less_energy_than_predicted_is_a_drift_too_where_the_whole_pipeline_is_here() {
        for (energy_j, drifts) in [(Some(200.0), true), (None, false)] {
            let predicted = Predicted { energy_j, ..PREDICTED };
            let (mut drift, mut played) = (Drift::default(), Played::new());
            drift.look(played.steps(0, 1.0, 200.0), predicted, LIMIT);
            drift.look(played.steps(10, 1.0, 160.0), predicted, LIMIT);
            let found = drift.look(played.steps(10, 1.0, 160.0), predicted, LIMIT);
            assert_eq!(matches!(found, Look::Far(_)), drifts);
            assert_ne!(found, Look::TooSoon);
        }
    }

    #[test]
    fn ranks_whose_energy_has_changed_since_the_plan_began_are_told() {
        let (mut drift, mut played) = (Drift::default(), Played::new());
        drift.look(played.steps(0, 1.0, 200.0), PREDICTED, LIMIT);
        // The prediction is off for both alike from the beginning.
        drift.look(played.steps(10, 1.0, 260.0), PREDICTED, LIMIT);
        let found = far(drift.look(played.steps(10, 1.0, 262.0), PREDICTED, LIMIT));
        assert_eq!(found.ranks, []);
        let window = played.0[1].window.as_mut().unwrap();
        *window.energy_j.as_mut().unwrap() += 10.0 * 26.0;
        let found = far(drift.look(played.steps(10, 1.0, 260.0), PREDICTED, LIMIT));
        let [DriftedRank { rank: Rank(1), energy }] = found.ranks[..] else { panic!("{found:?}") };
        assert!((energy - 0.2).abs() < 1e-9, "{energy}");
        played.0.iter_mut().for_each(|rank| rank.swap = 2);
        drift.look(played.steps(10, 1.0, 260.0), PREDICTED, LIMIT);
        assert!(drift.first_j.is_empty(), "another plan has a first time of its own");
    }

    #[test]
    fn another_plan_is_compared_from_its_own_beginning() {
        let (mut drift, mut played) = (Drift::default(), Played::new());
        drift.look(played.steps(0, 1.0, 200.0), PREDICTED, LIMIT);
        drift.look(played.steps(10, 2.0, 200.0), PREDICTED, LIMIT);
        far(drift.look(played.steps(10, 2.0, 200.0), PREDICTED, LIMIT));
        for rank in &mut played.0 {
            rank.swap = 2;
            rank.window = None;
        }
        assert_eq!(drift.look(&played.0, PREDICTED, LIMIT), Look::TooSoon);
        assert_eq!(drift.time.share(), None);
    }
}

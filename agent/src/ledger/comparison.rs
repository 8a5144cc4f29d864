//! A comparison of a plan with default clocks.

use pfo_experiment::Usual;
use pfo_protocol::{PlanStatus, TrialResult, TrialStep};

/// Steps that were measured under one of the two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Turn {
    pub(super) steps: u64,
    pub(super) time_s: f64,
    pub(super) energy_j: f64,
}

impl Turn {
    /// Steps of a trial; none if a GPU has no energy counter, or a figure is none of a job.
    fn of<'a>(steps: impl Iterator<Item = &'a TrialStep>) -> Option<Self> {
        let mut turn = Self { steps: 0, time_s: 0.0, energy_j: 0.0 };
        for step in steps {
            turn.steps = turn.steps.saturating_add(1);
            turn.time_s += step.time_s;
            turn.energy_j += step.energy_j?;
        }
        let is_measured = turn.energy_j.is_normal() && turn.energy_j > 0.0;
        (turn.steps > 0 && is_measured && turn.time_s.is_finite()).then_some(turn)
    }

    pub(super) fn step_j(&self) -> f64 {
        self.energy_j / self.steps.max(1) as f64
    }

    pub(super) fn step_s(&self) -> f64 {
        self.time_s / self.steps.max(1) as f64
    }
}

/// A comparison of a plan with default clocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Compared {
    /// When it ended, in seconds since 1970.
    pub(crate) at_unix_s: u64,
    pub(crate) default: Turn,
    pub(crate) plan: Turn,
}

impl Compared {
    /// One of trials next to each other, which ended at this time; none if a GPU has no energy counter.
    ///
    /// Only usual steps are compared. What an evaluation or a checkpoint adds to a step of the plan is
    /// energy of the plan's turn that default clocks are taken to need as well: it is no saving. Its time is
    /// taken to be longer by the share by which usual steps are: neither flatters the plan. One in the turn
    /// at default clocks counts nothing.
    pub(crate) fn of(default: &TrialResult, plan: &[&TrialResult], at_unix_s: u64) -> Option<Self> {
        let usual = Usual::of(plan);
        let steps = || plan.iter().flat_map(|trial| &trial.steps);
        let plan = Turn::of(steps())?;
        let usual_plan = Turn::of(steps().filter(|step| usual.is_usual(step)))?;
        let usual = usual.at_default_clocks(default);
        let default = Turn::of(default.steps.iter().filter(|step| usual.is_usual(step)))?;
        let count = default.steps as f64;
        let default = Turn {
            time_s: default.time_s * plan.step_s() / usual_plan.step_s(),
            energy_j: default.energy_j + count * (plan.step_j() - usual_plan.step_j()),
            ..default
        };
        Some(Self { at_unix_s, default, plan })
    }

    /// One that the agents of all nodes of a job share.
    pub(super) fn of_whole(whole: &pfo_fleet::Compared) -> Self {
        let turn = |pfo_fleet::Turn { steps, time_s, energy_j }| Turn { steps, time_s, energy_j };
        let (default, plan) = (turn(whole.default), turn(whole.plan));
        Self { at_unix_s: whole.at_unix_s, default, plan }
    }

    /// The same, of a plan of this label that predicts so much energy of a step, as agents share it.
    pub(crate) fn shared(&self, label: String, predicted_j: Option<f64>) -> pfo_fleet::Compared {
        let turn = |Turn { steps, time_s, energy_j }| pfo_fleet::Turn { steps, time_s, energy_j };
        let (default, plan) = (turn(self.default), turn(self.plan));
        pfo_fleet::Compared { label, predicted_j, at_unix_s: self.at_unix_s, default, plan }
    }

    /// By what share of the plan's energy default clocks take more.
    pub(super) fn saving(&self) -> f64 {
        self.default.step_j() / self.plan.step_j() - 1.0
    }

    /// What share of the plan's time default clocks take less; below 0 if they take more.
    pub(super) fn slowdown(&self) -> f64 {
        let slowdown = 1.0 - self.default.step_s() / self.plan.step_s();
        if slowdown.is_finite() { slowdown } else { 0.0 }
    }

    /// What the saving scatters by, as a multiple of the variance of a step.
    pub(super) fn spread(&self) -> f64 {
        1.0 / self.default.steps.max(1) as f64 + 1.0 / self.plan.steps.max(1) as f64
    }
}

/// Trials of a held job: a plan and default clocks next to each other are a comparison, and no trial is
/// in two.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairing(Option<TrialResult>);

impl Pairing {
    /// Takes the next trial. Returns the plan and the comparison, if that completes one.
    pub(crate) fn take(
        &mut self,
        trial: &TrialResult,
        at_unix_s: u64,
    ) -> Option<(PlanStatus, Compared)> {
        let before = self.0.take();
        let (default, of_plan) = match &before {
            Some(before) if before.plan.is_none() && trial.plan.is_some() => (before, trial),
            Some(before) if before.plan.is_some() && trial.plan.is_none() => (trial, before),
            _ => {
                self.0 = Some(trial.clone());
                return None;
            }
        };
        let compared = Compared::of(default, &[of_plan], at_unix_s)?;
        Some((of_plan.plan.clone()?, compared))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::example;

    fn trial(plan: Option<&str>, step_j: Option<f64>) -> TrialResult {
        example::trial(plan, [(1.0, step_j); 4])
    }

    /// The saving and the slowdown that a comparison shows. A step is its seconds and its joules.
    fn compared(default: &[(f64, f64)], plan: &[(f64, f64)]) -> Option<(f64, f64)> {
        let of = |name, steps: &[(f64, f64)]| {
            example::trial(name, steps.iter().map(|(time_s, energy_j)| (*time_s, Some(*energy_j))))
        };
        let compared = Compared::of(&of(None, default), &[&of(Some("p"), plan)], 1)?;
        Some((compared.saving(), compared.slowdown()))
    }

    #[track_caller]
    fn assert_says(found: Option<(f64, f64)>, (saving, slowdown): (f64, f64)) {
        let (found_saving, found_slowdown) = found.unwrap();
        assert!((found_saving - saving).abs() < 1e-9, "{found_saving}");
        assert!((found_slowdown - slowdown).abs() < 1e-9, "{found_slowdown}");
    }

    #[test]
    fn an_evaluation_in_the_turn_at_default_clocks_is_no_saving() {
        let (default, plan, evaluation) = ((0.98, 110.0), (1.0, 100.0), (3.0, 250.0));
        assert_says(compared(&[default; 2], &[plan; 8]), (0.1, 0.02));
        assert_says(compared(&[default, evaluation], &[plan; 8]), (0.1, 0.02));
        assert_says(compared(&[(1.2, 110.0); 2], &[plan; 8]), (0.1, -0.2));
    }

    #[test]
    fn what_an_evaluation_needs_is_needed_at_default_clocks_too() {
        let (default, plan, evaluation) = ((0.98, 110.0), (1.0, 100.0), (3.0, 300.0));
        // Of 8 steps: 10 J of each of which 100 J are of the step, and 25 J of the evaluation.
        let found =
            compared(&[default; 2], &[plan, plan, plan, evaluation, plan, plan, plan, plan]);
        assert_says(found, (10.0 / 125.0, 0.02));
    }

    fn savings(trials: &[(Option<&str>, f64)]) -> Vec<(String, f64)> {
        let mut pairing = Pairing::default();
        let taken = trials.iter().filter_map(|(plan, step_j)| {
            let (plan, compared) = pairing.take(&trial(*plan, Some(*step_j)), 1)?;
            Some((plan.label, compared.saving()))
        });
        taken.collect()
    }

    #[test]
    fn turns_there_and_back_are_a_comparison_each_and_none_is_in_two() {
        let turns = [(None, 110.0), (Some("p"), 100.0), (Some("p"), 100.0), (None, 120.0)];
        let found = savings(&turns);
        assert_eq!(found.iter().map(|(label, _)| label.as_str()).collect::<Vec<_>>(), ["p", "p"]);
        assert!((found[0].1 - 0.1).abs() < 1e-9 && (found[1].1 - 0.2).abs() < 1e-9, "{found:?}");
        assert_eq!(
            savings(&[(Some("p"), 1.0), (Some("q"), 1.0), (None, 2.0)]),
            [("q".into(), 1.0)]
        );
        assert_eq!(savings(&[(None, 1.0), (Some("p"), 1.0), (None, 2.0)]).len(), 1);
    }

    #[test]
    fn a_trial_without_energy_is_half_of_nothing() {
        assert_eq!(Turn::of(trial(None, None).steps.iter()), None);
        for step_j in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Turn::of(trial(None, Some(step_j)).steps.iter()), None, "{step_j}");
        }
    }
}

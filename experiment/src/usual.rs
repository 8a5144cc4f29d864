//! Which steps of a comparison are usual. Some do what most do not: an evaluation, a checkpoint, a wait for
//! data. A turn of few steps that holds one says nothing of clocks. Pure.

use pfo_protocol::{TrialResult, TrialStep};

/// A step that is longer than the median by this many times the median distance from it is not usual.
const FAR: f64 = 6.0;

/// No step is unusual that is longer by less than this share.
const NEAR: f64 = 0.05;

/// The longest usual step, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usual(f64);

impl Usual {
    /// By some steps.
    #[must_use]
    pub fn of(trials: &[&TrialResult]) -> Self {
        Self::of_times(|| trials.iter().flat_map(|trial| &trial.steps).map(|step| step.time_s))
    }

    /// By the times of some steps, in seconds.
    pub(crate) fn of_times<T: Iterator<Item = f64>>(times_s: impl Fn() -> T) -> Self {
        let median_s = median(times_s());
        let apart_s = median(times_s().map(|time_s| (time_s - median_s).abs()));
        Self(median_s + (NEAR * median_s).max(FAR * apart_s))
    }

    /// By steps of the plan, for those at default clocks next to them, which are hardly ever longer but for
    /// another reason; by these themselves if all are longer.
    #[must_use]
    pub fn at_default_clocks(self, default: &TrialResult) -> Self {
        let is_usual = default.steps.iter().any(|step| self.is_usual(step));
        if is_usual { self } else { Self::of(&[default]) }
    }

    /// Whether a step is.
    #[must_use]
    pub fn is_usual(self, step: &TrialStep) -> bool {
        self.has(step.time_s)
    }

    pub(crate) fn has(self, time_s: f64) -> bool {
        time_s <= self.0
    }

    /// The mean time of the usual steps of a trial, in seconds; none if there are none.
    #[must_use]
    pub fn step_s(self, trial: &TrialResult) -> Option<f64> {
        let usual = || trial.steps.iter().filter(|step| self.is_usual(step));
        let count = usual().count();
        (count > 0).then(|| usual().map(|step| step.time_s).sum::<f64>() / count as f64)
    }
}

/// The median; of an even number, the upper one of the two in the middle. 0 of none.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trial(times_s: &[f64]) -> TrialResult {
        let step = |time_s: &f64| TrialStep { time_s: *time_s, energy_j: None };
        let steps = times_s.iter().map(step).collect();
        TrialResult { plan: None, first_step: 0, steps, ranks: Vec::new() }
    }

    fn usual(times_s: &[f64]) -> Vec<bool> {
        let trial = trial(times_s);
        let usual = Usual::of(&[&trial]);
        trial.steps.iter().map(|step| usual.is_usual(step)).collect()
    }

    #[test]
    fn an_evaluation_each_third_step_is_not_usual_and_a_step_that_scatters_is() {
        assert_eq!(
            usual(&[1.0, 1.01, 3.0, 0.99, 1.0, 3.1, 1.02, 1.0]),
            [true, true, false, true, true, false, true, true]
        );
        assert!(usual(&[0.8, 1.0, 1.2, 1.3, 0.7, 1.1, 0.9, 1.0]).into_iter().all(|usual| usual));
        assert!(usual(&[1.0, 1.0, 1.0, 1.04]).into_iter().all(|usual| usual));
    }

    #[test]
    fn the_mean_is_of_usual_steps() {
        let (plan, default) = (trial(&[1.0, 1.0, 1.0, 1.0, 2.0]), trial(&[0.9, 1.9]));
        let usual = Usual::of(&[&plan]);
        assert_eq!(usual.step_s(&default), Some(0.9));
        assert_eq!(usual.step_s(&plan), Some(1.0));
        assert_eq!(usual.step_s(&trial(&[1.9, 1.8])), None);
    }

    #[test]
    fn steps_at_default_clocks_that_are_all_longer_are_usual_among_themselves() {
        let usual = Usual::of(&[&trial(&[1.0, 1.0, 1.0, 1.0])]);
        let default_s = |times_s: &[f64]| {
            let default = trial(times_s);
            usual.at_default_clocks(&default).step_s(&default)
        };
        assert_eq!(default_s(&[0.9, 1.9]), Some(0.9));
        assert_eq!(default_s(&[1.5, 1.5, 4.5, 1.5]), Some(1.5));
    }

    proptest! {
        #[test]
        fn more_than_half_of_the_steps_of_a_plan_are_usual(
            times_s in prop::collection::vec(0.0_f64..1e3, 1..40)
        ) {
            let kept = usual(&times_s).into_iter().filter(|usual| *usual).count();
            prop_assert!(2 * kept > times_s.len(), "{kept} of {}", times_s.len());
        }
    }
}

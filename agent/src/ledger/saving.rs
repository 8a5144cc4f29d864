//! What a plan saved, and how sure that is. Pure.
//!
//! Of each comparison the ratio of energies at default clocks and under the plan counts: what changes
//! both, such as the temperature of a room, cancels out. Joules that were measured under the plan are
//! multiplied by the ratio of the sums of the few comparisons nearest in time, so that a job that has
//! changed is compared with itself. It is not that of the nearest one: a guard that doubts a plan compares
//! again at once, and stops when the doubt is gone, so that the last comparison of such a row is a
//! favourable one. The interval is Student's over all comparisons of the plan. What a comparison scatters by
//! falls with the steps that it took.

use std::ops::Range;

use pfo_experiment::students_reach;
use pfo_protocol::{SavedEnergy, Worth};
use serde::{Deserialize, Serialize};

use crate::ledger::comparison::Compared;
use crate::ledger::windows::Measured;

/// A node with more of a job than this has all of it, as far as counters that scatter can tell.
const NEARLY_ALL: f64 = 0.9;

/// Steps that take longer than those of comparisons by more than this factor were held up by something else.
const LONGER: f64 = 1.05;

/// Comparisons whose mean counts for joules.
pub(super) const NEAREST: usize = 8;

/// How far the interval of a known variance reaches, in standard deviations.
pub(crate) const NORMAL_REACH: f64 = 1.96;

/// Joules that were measured under a plan, around some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Used {
    pub(super) at_unix_s: u64,
    pub(super) energy_j: f64,
}

/// What one plan saved, in joules or, where these are priced, in money or in grams of carbon dioxide.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Estimate {
    pub(super) saved: f64,
    pub(super) variance: f64,
    pub(super) freedom: f64,
}

/// What is most likely, and between what it surely is, in joules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) low: f64,
    pub(super) estimate: f64,
    pub(super) high: f64,
}

/// What the comparisons of one plan say, in the order of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates<'a> {
    comparisons: &'a [Compared],
    /// Of a step, as a share of its energy.
    variance: f64,
    freedom: f64,
}

impl<'a> Rates<'a> {
    /// None with fewer than two comparisons.
    pub(super) fn of(comparisons: &'a [Compared]) -> Option<Self> {
        let freedom = comparisons.len().checked_sub(1).filter(|freedom| *freedom > 0)? as f64;
        let precision: f64 = comparisons.iter().map(|compared| 1.0 / compared.spread()).sum();
        let mean = comparisons.iter().map(|compared| compared.saving() / compared.spread());
        let mean = mean.sum::<f64>() / precision;
        let squares = comparisons.iter().map(|compared| {
            let off = compared.saving() - mean;
            off * off / compared.spread()
        });
        Some(Self { comparisons, variance: squares.sum::<f64>() / freedom, freedom })
    }

    /// The numbers of the comparisons that are nearest in time: one at least.
    fn nearest(&self, at_unix_s: u64) -> Range<usize> {
        let comparisons = self.comparisons;
        let middle = comparisons.partition_point(|compared| compared.at_unix_s < at_unix_s);
        let distance = |index: Option<usize>| {
            let found = index.and_then(|index| comparisons.get(index));
            found.map_or(u64::MAX, |one| one.at_unix_s.abs_diff(at_unix_s))
        };
        let mut near = middle..middle;
        while near.len() < NEAREST.min(comparisons.len()) {
            if distance(near.start.checked_sub(1)) <= distance(Some(near.end)) {
                near.start = near.start.saturating_sub(1);
            } else {
                near.end = near.end.saturating_add(1);
            }
        }
        near
    }

    /// The comparisons that are nearest in time, by their numbers, and which part of what was measured then
    /// is multiplied by each.
    pub(super) fn parts(&self, at_unix_s: u64) -> impl Iterator<Item = (usize, &Compared, f64)> {
        let near = self.nearest(at_unix_s);
        let of_plan = |compared: &Compared| compared.plan.energy_j;
        let sum_j: f64 = self.comparisons[near.clone()].iter().map(of_plan).sum();
        near.map(move |index| {
            let compared = &self.comparisons[index];
            (index, compared, of_plan(compared) / sum_j)
        })
    }

    /// What the comparisons nearest in time say together.
    pub(super) fn mean(&self, at_unix_s: u64, of: impl Fn(&Compared) -> f64) -> f64 {
        self.parts(at_unix_s).map(|(_, compared, part)| part * of(compared)).sum()
    }

    /// How much of what was used was used by steps such as were compared, in joules. Longer pauses than the
    /// comparisons have seen, such as for checkpoints, use energy that no plan saves.
    pub(super) fn of_steps_j(&self, row: &Measured) -> Option<f64> {
        let (energy_j, at) = (row.used_j()?, row.at_unix_s());
        let of_steps = |of: fn(&Compared) -> f64| row.steps as f64 * self.mean(at, of);
        let steps_s = of_steps(|compared| compared.plan.step_s());
        if row.time_s <= LONGER * steps_s {
            return Some(energy_j);
        }
        let steps_j = of_steps(|compared| compared.plan.step_j());
        let has_all = energy_j > NEARLY_ALL * steps_j;
        // Of a part of a job it is not known what its steps take: as if pauses took as much power.
        Some(if has_all { steps_j.min(energy_j) } else { energy_j * steps_s / row.time_s })
    }

    /// The variance of the saving that a comparison says, as a share of the energy.
    pub(super) fn variance_of(&self, compared: &Compared) -> f64 {
        self.variance * compared.spread()
    }

    /// What share of a job a node has that used so much in these steps, by a comparison of the whole job.
    pub(super) fn share(compared: &Compared, energy_j: f64, steps: u64) -> f64 {
        let share = energy_j / steps.max(1) as f64 / compared.plan.step_j();
        if share > 0.0 && share < NEARLY_ALL { share } else { 1.0 }
    }

    /// By how much an interval of this few comparisons is wider than one of many, as a factor of the
    /// variance.
    pub(super) fn widening(&self) -> Option<f64> {
        Some((students_reach(1.0, self.freedom)? / NORMAL_REACH).powi(2))
    }
}

impl Estimate {
    /// What was saved by these joules, given the comparisons of their plan in the order of time; none
    /// with fewer than two.
    pub(super) fn of(comparisons: &[Compared], used: &[Used]) -> Option<Self> {
        let rates = Rates::of(comparisons)?;
        let mut weights = vec![0.0; comparisons.len()];
        for used in used {
            for (index, _, part) in rates.parts(used.at_unix_s) {
                weights[index] += part * used.energy_j;
            }
        }
        let each = || comparisons.iter().zip(&weights);
        let saved = each().map(|(compared, weight)| weight * compared.saving()).sum();
        let variances =
            each().map(|(compared, weight)| weight * weight * rates.variance_of(compared));
        Some(Self { saved, variance: variances.sum(), freedom: rates.freedom })
    }

    /// What independent estimates come to together: their degrees of freedom are Welch's and
    /// Satterthwaite's. None of no estimate.
    pub(super) fn sum(estimates: &[Self]) -> Option<Self> {
        let saved = estimates.iter().map(|one| one.saved).sum();
        let variance: f64 = estimates.iter().map(|one| one.variance).sum();
        let share = |one: &Self| (one.variance / variance).powi(2) / one.freedom;
        let freedom = 1.0 / estimates.iter().map(share).sum::<f64>();
        let freedom = if variance > 0.0 { freedom } else { 1.0 };
        (!estimates.is_empty()).then_some(Self { saved, variance, freedom })
    }

    /// So many times of it, such as its money by one price.
    pub(super) fn times(&self, factor: f64) -> Self {
        let (saved, variance) = (factor * self.saved, factor * factor * self.variance);
        Self { saved, variance, ..*self }
    }

    /// Whether it can be computed with: another node wrote it.
    pub(super) fn is_one(&self) -> bool {
        self.saved.is_finite() && self.variance >= 0.0 && self.freedom > 0.0
    }

    /// What this comes to with one that is off by the same share.
    pub(super) fn with_dependent(&self, other: &Self) -> Self {
        Self {
            saved: self.saved + other.saved,
            variance: (self.variance.sqrt() + other.variance.sqrt()).powi(2),
            freedom: self.freedom.min(other.freedom),
        }
    }
}

impl Interval {
    /// That of what independent estimates come to together; none of no estimate.
    pub(super) fn of(estimates: &[Estimate]) -> Option<Self> {
        let Estimate { saved: estimate, variance, freedom } = Estimate::sum(estimates)?;
        if variance <= 0.0 {
            return Some(Self { low: estimate, estimate, high: estimate });
        }
        let reach = students_reach(variance, freedom)?;
        Some(Self { low: estimate - reach, estimate, high: estimate + reach })
    }

    pub(super) fn saved(self) -> SavedEnergy {
        SavedEnergy {
            low_j: self.low,
            estimate_j: self.estimate,
            high_j: self.high,
            shown: self.is_shown(),
        }
    }

    pub(super) fn worth(self) -> Worth {
        Worth { low: self.low, estimate: self.estimate, high: self.high }
    }

    /// Whether it does not hold zero.
    pub(super) fn is_shown(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ledger::comparison::Turn;

    fn turn(steps: u64, step_j: f64) -> Turn {
        Turn { steps, time_s: steps as f64, energy_j: steps as f64 * step_j }
    }

    fn compared(at_unix_s: u64, saving: f64) -> Compared {
        Compared { at_unix_s, default: turn(2, 100.0 * (1.0 + saving)), plan: turn(8, 100.0) }
    }

    fn used(at_unix_s: u64, energy_j: f64) -> Used {
        Used { at_unix_s, energy_j }
    }

    fn interval(comparisons: &[Compared], used: &[Used]) -> Interval {
        Interval::of(&[Estimate::of(comparisons, used).unwrap()]).unwrap()
    }

    #[test]
    fn an_interval_is_students() {
        let comparisons = [0.1, 0.2, 0.3].map(|saving| compared(10, saving));
        // All three count: a mean of 0.2, a deviation of 0.1 divided by the root of 3, t of 4.303.
        let Interval { low, estimate, high } = interval(&comparisons, &[used(10, 1000.0)]);
        assert!((estimate - 200.0).abs() < 1e-9, "{estimate}");
        assert!((high - estimate - 248.42).abs() < 0.01 && (low + high - 400.0).abs() < 1e-6);
    }

    #[test]
    fn joules_are_those_of_the_nearest_comparisons() {
        let [first, second] = [(0, 0.1), (100, 0.3)].map(|(at, saving)| compared(at, saving));
        let comparisons = [[first; NEAREST], [second; NEAREST]].concat();
        let of = |at| interval(&comparisons, &[used(at, 1000.0)]).estimate.round();
        assert_eq!([0, 49, 51, 100, 900].map(of), [100.0, 100.0, 300.0, 300.0, 300.0]);
        let of = |at| interval(&[first, second, second], &[used(at, 1000.0)]).estimate.round();
        assert_eq!([0, 100].map(of), [233.0; 2], "fewer count all");
    }

    #[test]
    fn pauses_that_no_comparison_has_seen_are_energy_that_no_plan_saves() {
        // A step of 100 J takes a second.
        let comparisons = [compared(0, 0.1); 3];
        let rates = Rates::of(&comparisons).unwrap();
        let of_steps_j = |steps, time_s, energy_j| {
            let energy_j = Some(energy_j);
            let row = Measured { steps, time_s, energy_j, ..Measured::default() };
            rates.of_steps_j(&row).unwrap().round()
        };
        assert_eq!(of_steps_j(40, 41.0, 4200.0), 4200.0, "heat makes steps of 105 J");
        assert_eq!(of_steps_j(40, 60.0, 4600.0), 4000.0, "20 s at 30 W");
        assert_eq!(of_steps_j(40, 60.0, 1500.0), 1000.0, "a part of the job");
        assert_eq!(of_steps_j(40, 60.0, 6600.0), 4000.0, "a pause in which GPUs compute");
        assert_eq!(rates.of_steps_j(&Measured { energy_j: None, ..Measured::default() }), None);
    }

    proptest! {
        #[test]
        fn no_comparison_is_nearer_than_those_that_count(
            times in prop::collection::vec(0_u64..100, 2..30),
            at in 0_u64..120,
        ) {
            let mut times = times;
            times.sort_unstable();
            let comparisons: Vec<_> = times.iter().map(|at| compared(*at, 0.1)).collect();
            let near = Rates::of(&comparisons).unwrap().nearest(at);
            let distances = |range: Range<usize>| times[range].iter().map(|time| time.abs_diff(at));
            prop_assert_eq!(near.len(), NEAREST.min(times.len()));
            let farthest = distances(near.clone()).max();
            let others = distances(0..near.start).chain(distances(near.end..times.len()));
            prop_assert!(others.min().is_none_or(|other| Some(other) >= farthest));
        }
    }

    #[test]
    fn one_comparison_shows_nothing() {
        assert_eq!(Estimate::of(&[], &[used(1, 1.0)]), None);
        assert_eq!(Estimate::of(&[compared(1, 0.5)], &[used(1, 1.0)]), None);
        assert_eq!(Interval::of(&[]), None);
    }

    #[test]
    fn what_scatters_about_nothing_is_not_shown() {
        let noisy = [-0.02, 0.03, 0.01, -0.01].map(|saving| compared(1, saving));
        assert!(!interval(&noisy, &[used(1, 1e6)]).is_shown());
        let clear = [0.10, 0.11, 0.09, 0.10].map(|saving| compared(1, saving));
        assert!(interval(&clear, &[used(1, 1e6)]).is_shown());
    }

    proptest! {
        #[test]
        fn a_saving_without_noise_is_exact_however_joules_are_spread(
            saving in -0.2_f64..0.5,
            times in prop::collection::vec(0_u64..10_000, 2..20),
            joules in prop::collection::vec((0_u64..10_000, 0.0_f64..1e9), 0..20),
        ) {
            let mut times = times;
            times.sort_unstable();
            let comparisons: Vec<_> = times.iter().map(|at| compared(*at, saving)).collect();
            let joules: Vec<_> = joules.iter().map(|(at, energy_j)| used(*at, *energy_j)).collect();
            let all_j: f64 = joules.iter().map(|used| used.energy_j).sum();
            let Interval { low, estimate, high } = interval(&comparisons, &joules);
            prop_assert!((estimate - saving * all_j).abs() <= 1e-9 * (1.0 + all_j));
            prop_assert!(low <= estimate && estimate <= high && high - low <= 1e-6 * (1.0 + all_j));
        }

        #[test]
        fn an_interval_holds_its_estimate_and_grows_with_its_joules(
            savings in prop::collection::vec(-0.2_f64..0.5, 2..20),
            energy_j in 1.0_f64..1e9,
            factor in 1.0_f64..10.0,
        ) {
            let comparisons: Vec<_> = savings.iter().map(|saving| compared(5, *saving)).collect();
            let one = interval(&comparisons, &[used(5, energy_j)]);
            let more = interval(&comparisons, &[used(5, factor * energy_j)]);
            prop_assert!(one.low <= one.estimate && one.estimate <= one.high);
            prop_assert!((factor * (one.high - one.low) - (more.high - more.low)).abs() <= 1e-6 * energy_j * factor);
        }
    }
}

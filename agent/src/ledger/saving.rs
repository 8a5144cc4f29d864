//! What a plan saved, and how sure that is. Pure.
//!
//! Of each comparison the ratio of energies at default clocks and under the plan counts: what changes
//! both, such as the temperature of a room, cancels out. Joules that were measured under the plan are
//! multiplied by the ratio of the comparison nearest in time, so that a job that has changed is
//! compared with itself. The interval is Student's over all comparisons of the plan. What a comparison
//! scatters by falls with the steps that it took.

use pfo_experiment::students_reach;

use crate::ledger::comparison::Compared;

/// Joules that were measured under a plan, around some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Used {
    pub(super) at_unix_s: u64,
    pub(super) energy_j: f64,
}

/// What one plan saved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    pub(super) saved_j: f64,
    variance_j2: f64,
    freedom: f64,
}

/// What is most likely, and between what it surely is, in joules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) low: f64,
    pub(super) estimate: f64,
    pub(super) high: f64,
}

impl Estimate {
    /// What was saved by these joules, given the comparisons of their plan in the order of time; none
    /// with fewer than two.
    pub(super) fn of(comparisons: &[Compared], used: &[Used]) -> Option<Self> {
        let freedom = comparisons.len().checked_sub(1).filter(|freedom| *freedom > 0)? as f64;
        let mut weights = vec![0.0; comparisons.len()];
        for used in used {
            weights[nearest(comparisons, used.at_unix_s)] += used.energy_j;
        }
        let each = || comparisons.iter().zip(&weights);
        let saved_j = each().map(|(compared, weight)| weight * compared.saving()).sum();
        let precision: f64 = comparisons.iter().map(|compared| 1.0 / compared.spread()).sum();
        let mean = comparisons.iter().map(|compared| compared.saving() / compared.spread());
        let mean = mean.sum::<f64>() / precision;
        let squares = comparisons.iter().map(|compared| {
            let off = compared.saving() - mean;
            off * off / compared.spread()
        });
        let of_a_step = squares.sum::<f64>() / freedom;
        let spread = each().map(|(compared, weight)| weight * weight * compared.spread());
        Some(Self { saved_j, variance_j2: of_a_step * spread.sum::<f64>(), freedom })
    }
}

/// The comparison that is nearest in time.
fn nearest(comparisons: &[Compared], at_unix_s: u64) -> usize {
    let after = comparisons.partition_point(|compared| compared.at_unix_s < at_unix_s);
    let before = after.saturating_sub(1);
    let distance = |index: usize| {
        comparisons.get(index).map_or(u64::MAX, |one| one.at_unix_s.abs_diff(at_unix_s))
    };
    if distance(before) <= distance(after) { before } else { after }
}

impl Interval {
    /// What independent estimates come to together: their degrees of freedom are Welch's and
    /// Satterthwaite's. None of no estimate.
    pub(super) fn of(estimates: &[Estimate]) -> Option<Self> {
        if estimates.is_empty() {
            return None;
        }
        let estimate = estimates.iter().map(|one| one.saved_j).sum();
        let variance_j2: f64 = estimates.iter().map(|one| one.variance_j2).sum();
        if variance_j2 <= 0.0 {
            return Some(Self { low: estimate, estimate, high: estimate });
        }
        let share = |one: &Estimate| (one.variance_j2 / variance_j2).powi(2) / one.freedom;
        let freedom = 1.0 / estimates.iter().map(share).sum::<f64>();
        let reach = students_reach(variance_j2, freedom)?;
        Some(Self { low: estimate - reach, estimate, high: estimate + reach })
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
        // The first of equals takes all joules: a mean of 0.2, a deviation of 0.1, t of 4.303.
        let Interval { low, estimate, high } = interval(&comparisons, &[used(10, 1000.0)]);
        assert!((estimate - 100.0).abs() < 1e-9, "{estimate}");
        assert!((high - estimate - 430.27).abs() < 0.01 && (low + high - 200.0).abs() < 1e-6);
    }

    #[test]
    fn joules_are_those_of_the_nearest_comparison() {
        let comparisons = [compared(0, 0.1), compared(100, 0.3)];
        let of = |at| interval(&comparisons, &[used(at, 1000.0)]).estimate.round();
        assert_eq!([0, 49, 51, 100, 900].map(of), [100.0, 100.0, 300.0, 300.0, 300.0]);
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

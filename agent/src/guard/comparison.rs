//! What the comparisons of a guarded plan with default clocks say. Pure.
//!
//! Noise makes single comparisons cross a limit. So a plan is given up only if the mean of the
//! newest comparisons is above the limit, and most of them are; as long as that may be, the next
//! comparison follows at once.

use std::collections::VecDeque;

/// The newest comparisons that count, and how many of them have to be above the limit.
const KEPT: usize = 3;
const MOST: usize = 2;

/// The slowdowns that were measured, as shares of a step's time at default clocks, newest last.
#[derive(Clone, Debug, Default)]
pub(super) struct Comparisons(VecDeque<f64>);

/// What follows from them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// The plan keeps the limit.
    Kept,
    /// It may not: it has to be compared again.
    Doubtful,
    /// It does not: the slowdown.
    Broken(f64),
}

impl Comparisons {
    /// These, the newest last.
    pub(super) fn of(slowdowns: &[f64]) -> Self {
        Self(slowdowns.iter().rev().take(KEPT).rev().copied().collect())
    }

    /// The slowdown that a turn at default clocks between two turns of the plan shows, by their step
    /// times in seconds.
    pub(super) fn slowdown(default_s: f64, plan_s: [f64; 2]) -> f64 {
        (plan_s[0] + plan_s[1]) / 2.0 / default_s - 1.0
    }

    /// The mean slowdown; none before the first comparison.
    pub(super) fn mean(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.iter().sum::<f64>() / self.0.len() as f64)
    }

    /// Whether there are as many as count.
    pub(super) fn are_enough(&self) -> bool {
        self.0.len() == KEPT
    }

    /// What they say about a limit.
    pub(super) fn verdict(&self, limit: f64) -> Verdict {
        let above = self.0.iter().filter(|slowdown| **slowdown > limit).count();
        let mean = self.mean().unwrap_or_default();
        match self.0.back() {
            Some(newest) if *newest > limit => {
                let is_broken = self.0.len() == KEPT && above >= MOST && mean > limit;
                if is_broken { Verdict::Broken(mean) } else { Verdict::Doubtful }
            }
            _ => Verdict::Kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn after(slowdowns: &[f64], limit: f64) -> Verdict {
        Comparisons::of(slowdowns).verdict(limit)
    }

    #[test]
    fn a_turn_at_default_clocks_is_compared_with_the_plan_before_and_after_it() {
        let slowdown = Comparisons::slowdown(2.0, [2.09, 2.11]);
        assert!((slowdown - 0.05).abs() < 1e-9, "{slowdown}");
    }

    #[test]
    fn a_plan_within_its_limit_is_kept() {
        assert_eq!(after(&[], 0.01), Verdict::Kept);
        assert_eq!(after(&[0.005, -0.002, 0.009, 0.001], 0.01), Verdict::Kept);
    }

    #[test]
    fn one_comparison_above_the_limit_is_only_a_doubt() {
        assert_eq!(after(&[0.02], 0.01), Verdict::Doubtful);
        assert_eq!(after(&[0.001, 0.001, 0.02], 0.01), Verdict::Doubtful);
        assert_eq!(after(&[0.001, 0.02, 0.001], 0.01), Verdict::Kept);
    }

    #[test]
    fn a_plan_that_stays_above_the_limit_is_broken_within_three_comparisons() {
        let Verdict::Broken(slowdown) = after(&[0.12, 0.11, 0.13], 0.05) else { panic!() };
        assert!((slowdown - 0.12).abs() < 1e-9, "{slowdown}");
        assert!(matches!(after(&[0.0, 0.0, 0.0, 0.12, 0.12], 0.05), Verdict::Broken(_)));
    }

    proptest! {
        #[test]
        fn noise_below_the_limit_never_breaks_it(
            slowdowns in prop::collection::vec(-0.01_f64..0.01, 0..50)
        ) {
            prop_assert_ne!(after(&slowdowns, 0.01), Verdict::Doubtful);
            prop_assert_eq!(after(&slowdowns, 0.01), Verdict::Kept);
        }

        #[test]
        fn a_plan_that_keeps_its_limit_on_the_whole_is_never_given_up(
            slowdowns in prop::collection::vec(-0.05_f64..0.05, 3..50)
        ) {
            if let Verdict::Broken(mean) = after(&slowdowns, 0.01) {
                let newest = &slowdowns[slowdowns.len() - 3..];
                prop_assert!(newest.iter().filter(|slowdown| **slowdown > 0.01).count() >= 2);
                prop_assert!((newest.iter().sum::<f64>() / 3.0 - mean).abs() < 1e-9);
            }
        }
    }
}

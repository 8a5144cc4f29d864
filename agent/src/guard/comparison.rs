//! What the comparisons of a guarded plan with default clocks say. Pure.
//!
//! Noise makes single comparisons cross a limit, and those of a job whose steps scatter their mean. So a
//! plan is given up only if the newest three comparisons, or all that count, prove that it is above the
//! limit: Student's interval of their mean is. As long as that may be, the next comparison follows at once.

use std::collections::VecDeque;

use pfo_experiment::students_reach;

/// The newest comparisons that count, and how many of them prove something.
const KEPT: usize = 8;
const LEAST: usize = 3;

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

    /// Whether none of the newest few is above the limit.
    pub(super) fn are_within(&self, limit: f64) -> bool {
        let newest = self.0.iter().rev().take(LEAST);
        self.0.len() >= LEAST && newest.into_iter().all(|slowdown| *slowdown <= limit)
    }

    /// What they say about a limit.
    pub(super) fn verdict(&self, limit: f64) -> Verdict {
        match self.0.back() {
            Some(newest) if *newest > limit => {
                let proof = [LEAST, self.0.len()].into_iter().find_map(|count| {
                    let (mean, low) = self.newest(count)?;
                    (low > limit).then_some(mean)
                });
                proof.map_or(Verdict::Doubtful, Verdict::Broken)
            }
            _ => Verdict::Kept,
        }
    }

    /// The mean of the newest ones, and where its interval begins; none of too few.
    fn newest(&self, count: usize) -> Option<(f64, f64)> {
        let left_out = self.0.len().checked_sub(count).filter(|_| count >= LEAST)?;
        let newest = || self.0.iter().skip(left_out);
        let n = count as f64;
        let mean = newest().sum::<f64>() / n;
        let squares: f64 = newest().map(|slowdown| (slowdown - mean).powi(2)).sum();
        let reach = students_reach(squares / (n - 1.0) / n, n - 1.0)?;
        Some((mean, mean - reach))
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
        assert_eq!(after(&[0.0, 0.0, 0.0, 0.12, 0.12], 0.05), Verdict::Doubtful);
        assert!(matches!(after(&[0.0, 0.0, 0.0, 0.12, 0.12, 0.12], 0.05), Verdict::Broken(_)));
    }

    #[test]
    fn a_plan_has_proved_itself_after_three_comparisons_within_the_limit() {
        let within = |slowdowns: &[f64]| Comparisons::of(slowdowns).are_within(0.05);
        assert!(within(&[0.3, 0.04, 0.05, 0.01]) && !within(&[0.3, 0.3, 0.01]));
        assert!(!within(&[0.04, 0.04]));
    }

    #[test]
    fn comparisons_that_scatter_about_the_limit_prove_nothing() {
        assert_eq!(after(&[0.02, 0.11, 0.07], 0.05), Verdict::Doubtful);
        assert_eq!(after(&[0.10, -0.06, 0.09, 0.11, 0.06], 0.05), Verdict::Doubtful);
        // With more of them, they do.
        let many = [0.10, 0.14, 0.09, 0.11, 0.13, 0.07, 0.12, 0.10];
        assert!(
            matches!(after(&many, 0.05), Verdict::Broken(mean) if (mean - 0.1075).abs() < 1e-9)
        );
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
                let newest = |count: usize| &slowdowns[slowdowns.len().saturating_sub(count)..];
                let is_of = |of: &[f64]| (of.iter().sum::<f64>() / of.len() as f64 - mean).abs() < 1e-9;
                prop_assert!(mean > 0.01 && (is_of(newest(3)) || is_of(newest(8))));
            }
        }
    }
}

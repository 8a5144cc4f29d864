//! How surely something was measured: intervals that hold what is true in 95 of 100 cases.
//!
//! They are Student's, of values that scatter about their mean. Changes are taken between two
//! neighbours in time, pair by pair: what drifts, such as the temperature of a room, changes both
//! of a pair, and cancels out.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// In how many cases of a hundred an interval is to hold what is true.
const CONFIDENCE: f64 = 0.95;

/// What something is, most likely, and between what it surely is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// What it is most likely.
    pub estimate: f64,
    /// Where it begins.
    pub low: f64,
    /// Where it ends.
    pub high: f64,
}

/// What something took before and after a change.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Before the change.
    pub before: f64,
    /// After it.
    pub after: f64,
    /// How much it counts beside other pairs: in proportion to one over its variance.
    pub weight: f64,
}

/// How far an interval reaches to each side of an estimate of this variance, with so many degrees of
/// freedom; none where these give no interval.
#[must_use]
pub fn students_reach(variance: f64, freedom: f64) -> Option<f64> {
    let t = StudentsT::new(0.0, 1.0, freedom).ok()?;
    Some(t.inverse_cdf(f64::midpoint(1.0, CONFIDENCE)) * variance.sqrt())
}

impl Interval {
    /// The mean of what these values are drawn from, whose variances are in proportion to one over their
    /// weights; none of fewer than two values.
    fn of_mean(values: &[(f64, f64)]) -> Option<Self> {
        let freedom = values.len().checked_sub(1).filter(|&freedom| freedom > 0)? as f64;
        let weight: f64 = values.iter().map(|(_, weight)| weight).sum();
        let sum = |of: &dyn Fn(f64) -> f64| -> f64 {
            values.iter().map(|&(value, weight)| weight * of(value)).sum()
        };
        let estimate = sum(&|value| value) / weight;
        let squares = sum(&|value| (value - estimate).powi(2));
        let reach = students_reach(squares / (freedom * weight), freedom)?;
        Some(Self { estimate, low: estimate - reach, high: estimate + reach })
    }

    /// By what share of the first the second of each pair is larger: the ratios' geometric mean
    /// less one.
    #[must_use]
    pub fn of_weighted_change(pairs: &[Pair]) -> Option<Self> {
        let logarithm = |pair: &Pair| ((pair.after / pair.before).ln(), pair.weight);
        let Self { estimate, low, high } =
            Self::of_mean(&pairs.iter().map(logarithm).collect::<Vec<_>>())?;
        let share = f64::exp_m1;
        Some(Self { estimate: share(estimate), low: share(low), high: share(high) })
    }

    /// The same the other way round: a saving, of a change.
    #[must_use]
    pub fn negated(self) -> Self {
        Self { estimate: -self.estimate, low: -self.high, high: -self.low }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn change(pairs: &[(f64, f64)]) -> Option<Interval> {
        let pair = |&(before, after)| Pair { before, after, weight: 1.0 };
        Interval::of_weighted_change(&pairs.iter().map(pair).collect::<Vec<_>>())
    }

    #[test]
    fn an_interval_is_students() {
        // A mean of 3 and a deviation of 1.5811 of five values; t is 2.7764 at four degrees of
        // freedom.
        let Interval { estimate, low, high } =
            Interval::of_mean(&[1.0, 2.0, 3.0, 4.0, 5.0].map(|value| (value, 7.0))).unwrap();
        assert_eq!(estimate, 3.0);
        assert!((low - 1.0368).abs() < 1e-4 && (high - 4.9632).abs() < 1e-4, "{low} to {high}");
    }

    #[test]
    fn one_value_says_nothing_about_how_surely_it_holds() {
        assert_eq!(Interval::of_mean(&[(1.0, 1.0)]), None);
        assert_eq!(change(&[(1.0, 2.0)]), None);
    }

    #[test]
    fn a_value_that_scatters_more_moves_the_mean_less() {
        // By hand: a mean of (1 + 3 * 5) / 4, squares of (9 + 3 * 1) / (1 * 4), t of 12.7062.
        let Interval { estimate, low, .. } = Interval::of_mean(&[(1.0, 1.0), (5.0, 3.0)]).unwrap();
        assert_eq!(estimate, 4.0);
        assert!((estimate - low - 12.7062 * 3.0_f64.sqrt()).abs() < 1e-3, "{low}");
    }

    #[test]
    fn about_95_intervals_of_100_hold_what_is_true() {
        const TRIED: usize = 2000;
        let mut random = fastrand::Rng::with_seed(1);
        // A sum of twelve is as good as normally distributed.
        let mut normal = || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let holds = (0..TRIED).filter(|_| {
            let pairs: Vec<_> =
                (0..4).map(|_| (1.0 + 0.01 * normal(), 1.1 * (1.0 + 0.01 * normal()))).collect();
            let change = change(&pairs).unwrap();
            (change.low..=change.high).contains(&0.1)
        });
        let share = holds.count() as f64 / TRIED as f64;
        assert!((0.935..0.965).contains(&share), "{share}");
    }

    proptest! {
        #[test]
        fn a_drift_that_both_of_a_pair_share_changes_nothing(
            pairs in prop::collection::vec((0.5_f64..2.0, 0.5_f64..2.0, 0.1_f64..10.0), 2..8)
        ) {
            let still: Vec<_> = pairs.iter().map(|&(a, b, _)| (a, b)).collect();
            let drifted: Vec<_> = pairs.iter().map(|&(a, b, drift)| (a * drift, b * drift)).collect();
            let (still, drifted) =
                (change(&still).unwrap(), change(&drifted).unwrap());
            prop_assert!((still.low - drifted.low).abs() < 1e-9);
            prop_assert!((still.high - drifted.high).abs() < 1e-9);
            prop_assert!(still.low <= still.estimate && still.estimate <= still.high);
        }
    }
}

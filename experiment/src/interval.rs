//! How surely something was measured: Student's intervals, which hold the truth in 95 of 100 cases.

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

/// How far an interval reaches to each side of an estimate of this variance, with so many degrees of
/// freedom; none where these give no interval.
#[must_use]
pub fn students_reach(variance: f64, freedom: f64) -> Option<f64> {
    let t = StudentsT::new(0.0, 1.0, freedom).ok()?;
    Some(t.inverse_cdf(f64::midpoint(1.0, CONFIDENCE)) * variance.sqrt())
}

impl Interval {
    /// The same the other way round: a saving, of a change.
    #[must_use]
    pub fn negated(self) -> Self {
        Self { estimate: -self.estimate, low: -self.high, high: -self.low }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the table of any book: 2.7764 at four degrees of freedom, 12.7062 at one.
    #[test]
    fn an_interval_is_students() {
        for (freedom, t) in [(4.0, 2.7764), (1.0, 12.7062)] {
            let reach = students_reach(0.25, freedom).unwrap();
            assert!((reach - t * 0.5).abs() < 1e-4, "{reach}");
        }
    }

    #[test]
    fn one_value_says_nothing_about_how_surely_it_holds() {
        assert_eq!(students_reach(1.0, 0.0), None);
    }
}

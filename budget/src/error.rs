//! What is wrong with a number that came from outside.

use thiserror::Error;

/// Why there is no curve or no decision.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum BudgetError {
    /// A curve without a point.
    #[error("a curve has no point; measure the job, or steer it by uniform clocks")]
    NoPoint,
    /// A number that no measurement gives.
    #[error("{name} of {of} is {value}; it must be {expected}")]
    BadNumber {
        /// What the number is.
        name: &'static str,
        /// Where it stands: a point's place, a job's name.
        of: String,
        /// The number.
        value: f64,
        /// What is possible.
        expected: &'static str,
    },
    /// Two jobs of one name.
    #[error("two jobs are called {0}; a job has one name")]
    SameName(String),
    /// A line of a budget file.
    #[error("line {line} of the budget: {problem}")]
    BadLine {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
}

/// The largest number of seconds, watts, weights and joules that is believed.
pub(crate) const LARGEST: f64 = 1e12;

const ABOVE_0: &str = "a number above 0 and at most 1e12";
const FROM_0: &str = "a number from 0 to 1e12";

/// A number that is above 0 and not absurd.
pub(crate) fn above_0(
    name: &'static str,
    of: impl FnOnce() -> String,
    value: f64,
) -> Result<f64, BudgetError> {
    within(value > 0.0, name, of, value, ABOVE_0)
}

/// A number that is at least 0 and not absurd.
pub(crate) fn from_0(
    name: &'static str,
    of: impl FnOnce() -> String,
    value: f64,
) -> Result<f64, BudgetError> {
    within(value >= 0.0, name, of, value, FROM_0)
}

fn within(
    is_enough: bool,
    name: &'static str,
    of: impl FnOnce() -> String,
    value: f64,
    expected: &'static str,
) -> Result<f64, BudgetError> {
    if is_enough && value <= LARGEST {
        Ok(value)
    } else {
        Err(BudgetError::BadNumber { name, of: of(), value, expected })
    }
}

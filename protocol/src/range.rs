//! The ranges that a peer's numbers must lie in, checked where a message is decoded.

use std::fmt;
use std::ops::RangeInclusive;

/// A number that a peer sent and that is outside of its range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{what} is {value}; it must be {lowest} to {highest}")]
pub struct OutOfRange<N: fmt::Display> {
    /// Which number.
    pub what: &'static str,
    /// The number.
    pub value: N,
    /// The lowest one that is accepted.
    pub lowest: N,
    /// The highest one that is accepted.
    pub highest: N,
}

/// Returns the value if it lies in the range. NaN lies in none.
pub(crate) fn within<N: Copy + PartialOrd + fmt::Display>(
    what: &'static str,
    value: N,
    range: RangeInclusive<N>,
) -> Result<N, OutOfRange<N>> {
    match range.contains(&value) {
        true => Ok(value),
        false => {
            let (lowest, highest) = range.into_inner();
            Err(OutOfRange { what, value, lowest, highest })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_number_its_value_and_both_bounds() {
        let error = within("the number of steps", 0, 1..=50_000).unwrap_err().to_string();
        assert_eq!(error, "the number of steps is 0; it must be 1 to 50000");
    }

    #[test]
    fn the_bounds_belong_to_the_range_and_nan_never_does() {
        for value in [1.0, 2.0] {
            assert_eq!(within("x", value, 1.0..=2.0), Ok(value));
        }
        for value in [0.999, 2.001, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(within("x", value, 1.0..=2.0).is_err(), "{value}");
        }
    }
}

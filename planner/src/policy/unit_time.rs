//! The unit in which lowtime, and Perseus' evaluation with it, counts time.

use crate::error::PlanError;

/// Seconds that are counted as one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnitTime(f64);

impl UnitTime {
    /// # Errors
    /// [`PlanError::BadArgument`] if the unit is not from 1 µs to 1 s long.
    pub fn from_seconds(seconds: f64) -> Result<Self, PlanError> {
        if (1e-6..=1.0).contains(&seconds) {
            return Ok(Self(seconds));
        }
        Err(PlanError::BadArgument {
            name: "the unit of time",
            value: format!("{} ms", 1e3 * seconds),
            expected: "from 0.001 to 1000 ms",
        })
    }

    /// How long it is.
    pub fn seconds(self) -> f64 {
        self.0
    }
}

impl Default for UnitTime {
    /// 1 ms, as these systems have it.
    fn default() -> Self {
        Self(0.001)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_of_no_use_is_refused_with_its_value() {
        for seconds in [0.0, -0.001, f64::NAN, 2.0, 1e-9] {
            let message = UnitTime::from_seconds(seconds).unwrap_err().to_string();
            assert!(message.contains(&format!("is {} ms", 1e3 * seconds)), "{message}");
        }
        assert_eq!(UnitTime::from_seconds(0.001).unwrap(), UnitTime::default());
    }
}

//! The unit in which lowtime and Perseus' evaluation count time.

use crate::error::PlanError;

/// The length of one unit of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnitTime(f64);

impl UnitTime {
    /// A unit of this many seconds.
    ///
    /// # Errors
    /// [`PlanError::BadArgument`] if it is not between 1 µs and 1 s.
    pub fn from_seconds(seconds: f64) -> Result<Self, PlanError> {
        if (1e-6..=1.0).contains(&seconds) {
            return Ok(Self(seconds));
        }
        Err(PlanError::BadArgument {
            name: "the unit of time",
            value: format!("{} ms", 1e3 * seconds),
            expected: "between 0.001 and 1000 ms",
        })
    }

    /// Its length in seconds.
    pub fn seconds(self) -> f64 {
        self.0
    }
}

impl Default for UnitTime {
    /// 1 ms, the default of these systems.
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

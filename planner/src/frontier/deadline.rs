//! How a request names a plan: by its iteration time.

use std::fmt;
use std::str::FromStr;

use crate::error::PlanError;
use crate::excerpt::excerpt;

/// The longest iteration time that a plan may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Deadline {
    /// Seconds, such as `3.1`, `3.1s` or `310ms`.
    Seconds(f64),
    /// A multiple of the fastest iteration time, such as `1.02x`.
    Factor(f64),
    /// The time of the fastest plan: `fastest`.
    Fastest,
    /// The time of the plan of least energy: `min-energy`.
    MinEnergy,
}

impl FromStr for Deadline {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let deadline = match text {
            "fastest" => Some(Self::Fastest),
            "min-energy" => Some(Self::MinEnergy),
            _ => match text.strip_suffix('x') {
                Some(factor) => number(factor).map(Self::Factor),
                None => seconds(text).map(Self::Seconds),
            },
        };
        deadline.ok_or_else(|| PlanError::BadArgument {
            name: "the deadline",
            value: format!("\"{}\"", excerpt(text)),
            expected: "a time (3.1s, 310ms), a factor of the fastest time (1.02x), fastest or min-energy",
        })
    }
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|&number: &f64| number.is_finite() && number > 0.0)
}

/// A time with its unit, or seconds.
fn seconds(text: &str) -> Option<f64> {
    for (unit, divisor) in [("ms", 1e3), ("µs", 1e6), ("s", 1.0)] {
        if let Some(value) = text.strip_suffix(unit) {
            return number(value.trim_end()).map(|value| value / divisor);
        }
    }
    number(text)
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seconds(seconds) => write!(f, "{seconds} s"),
            Self::Factor(factor) => write!(f, "{factor}x the fastest time"),
            Self::Fastest => f.write_str("fastest"),
            Self::MinEnergy => f.write_str("min-energy"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_ask_is_understood() {
        for text in ["3.25", "3.25s", "3.25 s", "3250ms", "3250000 µs"] {
            assert_eq!(text.parse::<Deadline>().unwrap(), Deadline::Seconds(3.25), "{text}");
        }
        assert_eq!("1.02x".parse::<Deadline>().unwrap(), Deadline::Factor(1.02));
        assert_eq!("fastest".parse::<Deadline>().unwrap(), Deadline::Fastest);
        assert_eq!("min-energy".parse::<Deadline>().unwrap(), Deadline::MinEnergy);
    }

    #[test]
    fn anything_else_is_refused_with_what_could_be_asked_for() {
        for text in ["", "x", "-1", "0", "NaN", "infx", "soon", "1.02 x", "s", "-1ms"] {
            let message = text.parse::<Deadline>().unwrap_err().to_string();
            assert!(message.contains(&format!("\"{text}\"")), "{message}");
            assert!(message.contains("min-energy"), "{message}");
        }
    }
}

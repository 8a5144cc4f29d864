//! How much longer a step may take, as arguments say it.

use std::str::FromStr;

/// A share of the time at default or the highest clocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slowdown(pub(crate) f64);

impl FromStr for Slowdown {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent = text.trim().trim_end_matches('%').parse().ok();
        percent
            .filter(|percent: &f64| (0.0..=1000.0).contains(percent))
            .map(|percent| Self(percent / 100.0))
            .ok_or_else(|| "give percent from 0 to 1000, such as 5%".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slowdown_is_given_in_percent() {
        assert_eq!("5%".parse(), Ok(Slowdown(0.05)));
        assert_eq!("0".parse(), Ok(Slowdown(0.0)));
        for text in ["-1%", "x", "", "nan", "1e9%"] {
            assert!(text.parse::<Slowdown>().is_err(), "{text}");
        }
    }
}

//! A time in the past, as people and scripts give it.

use std::str::FromStr;

/// Since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    Ago { seconds: u64 },
    At { unix_s: u64 },
}

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is no time; give 90min, 12h, 7d, or @ and seconds since 1970");
        if let Some(unix_s) = text.strip_prefix('@') {
            return unix_s.parse().map(|unix_s| Self::At { unix_s }).map_err(|_| wrong());
        }
        seconds(text).map(|seconds| Self::Ago { seconds }).ok_or_else(wrong)
    }
}

impl Since {
    pub(crate) fn unix_s(self, now_unix_s: u64) -> u64 {
        match self {
            Self::Ago { seconds } => now_unix_s.saturating_sub(seconds),
            Self::At { unix_s } => unix_s,
        }
    }
}

/// The seconds of a span such as `90min`; none of no span.
pub(crate) fn seconds(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_s = match unit {
        "s" => 1,
        "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    let seconds = number.parse().ok().and_then(|number: u64| number.checked_mul(unit_s));
    seconds.filter(|seconds| *seconds > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_so_long_ago_or_in_seconds_since_1970() {
        let since = |text: &str| text.parse::<Since>().map(|since| since.unix_s(1_000_000));
        assert_eq!(since("2h"), Ok(992_800));
        assert_eq!(since("7d"), Ok(395_200));
        assert_eq!(since("@5"), Ok(5));
        assert_eq!(since("90000d"), Ok(0));
        let wrong = ["", "7", "d", "0d", "-1d", "1w", "@", "@x", "99999999999999999999s"];
        insta::assert_snapshot!(wrong.map(|text| since(text).unwrap_err()).join("\n"));
    }
}

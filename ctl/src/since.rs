//! Times in the past, as people and scripts give them, and what lies between two of them. Days and months
//! are those of this machine's time zone.

use std::str::FromStr;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use crate::exit::Exit;
use crate::explained::Explained;

/// A time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Since {
    /// As it was given.
    text: String,
    at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Ago { seconds: u64 },
    Unix { unix_s: u64 },
    Day(Date),
}

/// A month of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Month {
    first: Date,
    after: Date,
}

/// What lies between two times: the first is in it, the second is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Period {
    pub(crate) since_unix_s: Option<u64>,
    pub(crate) until_unix_s: Option<u64>,
}

/// A period that is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PeriodError {
    #[error("--until {until} is not after --since {since}")]
    Reversed { since: String, until: String },
    #[error("--{option} {text} is in the future")]
    Future { option: &'static str, text: String, today: Date },
    #[error("TZ={name} is no time zone: {why}")]
    Zone { name: String, why: String },
}

/// The time zone of this machine, or the one that `TZ` chooses.
///
/// # Errors
/// If `TZ` chooses none. Without it and without `/etc/localtime`, as in many containers, it is UTC.
pub(crate) fn zone() -> Result<TimeZone, PeriodError> {
    TimeZone::try_system().or_else(|why| match std::env::var("TZ") {
        Ok(name) => Err(PeriodError::Zone { name, why: why.to_string() }),
        Err(_) => Ok(TimeZone::UTC),
    })
}

impl Explained for PeriodError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }

    fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::Zone { .. } => {
                "`timedatectl list-timezones` lists them, if the package tzdata is installed".into()
            }
            Self::Reversed { .. } => {
                "give a later --until; a day begins at midnight, so the last day is the one before"
                    .into()
            }
            Self::Future { option: "month", today, .. } => {
                format!("give a month up to {}, which is this one", today.strftime("%Y-%m"))
            }
            Self::Future { today, .. } => format!("give a time that is over; today is {today}"),
        })
    }
}

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let at = match text.strip_prefix('@') {
            Some(unix_s) => unix_s.parse().ok().map(|unix_s| At::Unix { unix_s }),
            None => {
                seconds(text).map(|seconds| At::Ago { seconds }).or_else(|| day(text).map(At::Day))
            }
        };
        let at = at.ok_or_else(|| {
            format!(
                "{text:?} is no time; give a day such as 2026-11-01, 90min, 12h, 7d, or @ and seconds \
                 since 1970"
            )
        })?;
        Ok(Self { text: text.to_owned(), at })
    }
}

impl FromStr for Month {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Nothing is measured before the times that clocks count from.
        let first = day(&format!("{text}-01")).filter(|first| first.year() >= 1970);
        first
            .and_then(Self::from_first)
            .ok_or_else(|| format!("{text:?} is no month since 1970; give one such as 2026-11"))
    }
}

impl Month {
    /// That of a time.
    pub(crate) fn of(unix_s: u64, zone: &TimeZone) -> Option<Self> {
        Self::from_first(at(unix_s, zone).date().first_of_month())
    }

    fn from_first(first: Date) -> Option<Self> {
        Some(Self { first, after: first.last_of_month().tomorrow().ok()? })
    }

    /// The month as a person writes it.
    pub(crate) fn text(self) -> String {
        self.first.strftime("%Y-%m").to_string()
    }
}

impl Since {
    fn unix_s(&self, now_unix_s: u64, zone: &TimeZone) -> u64 {
        match self.at {
            At::Ago { seconds } => now_unix_s.saturating_sub(seconds),
            At::Unix { unix_s } => unix_s,
            At::Day(day) => begins(day, zone),
        }
    }
}

impl Period {
    /// What lies between these times; all that is measured where none is given.
    ///
    /// # Errors
    /// If nothing can lie there.
    pub(crate) fn of(
        (since, until): (Option<&Since>, Option<&Since>),
        month: Option<Month>,
        now_unix_s: u64,
        zone: &TimeZone,
    ) -> Result<Self, PeriodError> {
        let future = |option, text: String| PeriodError::Future {
            option,
            text,
            today: at(now_unix_s, zone).date(),
        };
        if let Some(month) = month {
            let (since_unix_s, until_unix_s) =
                (begins(month.first, zone), begins(month.after, zone));
            if since_unix_s > now_unix_s {
                return Err(future("month", month.text()));
            }
            return Ok(Self { since_unix_s: Some(since_unix_s), until_unix_s: Some(until_unix_s) });
        }
        let unix_s = |time: &Since| time.unix_s(now_unix_s, zone);
        let period = Self { since_unix_s: since.map(unix_s), until_unix_s: until.map(unix_s) };
        if let Some(since) = since.filter(|since| unix_s(since) > now_unix_s) {
            return Err(future("since", since.text.clone()));
        }
        match since.zip(until) {
            Some((since, until)) if period.until_unix_s <= period.since_unix_s => {
                Err(PeriodError::Reversed { since: since.text.clone(), until: until.text.clone() })
            }
            _ => Ok(period),
        }
    }
}

/// The first second of a day, which is not midnight where clocks are put forward then.
fn begins(day: Date, zone: &TimeZone) -> u64 {
    let first = day.to_zoned(zone.clone()).map_or(0, |zoned| zoned.timestamp().as_second());
    first.try_into().unwrap_or_default()
}

/// The date of a time in seconds since 1970, in UTC.
pub(crate) fn date(unix_s: u64) -> String {
    at(unix_s, &TimeZone::UTC).date().to_string()
}

/// A time in seconds since 1970 to the minute, as a clock on the wall shows it.
pub(crate) fn minute(unix_s: u64, zone: &TimeZone) -> String {
    at(unix_s, zone).strftime("%Y-%m-%d %H:%M %Z").to_string()
}

fn at(unix_s: u64, zone: &TimeZone) -> Zoned {
    let unix_s = unix_s.try_into().unwrap_or(i64::MAX);
    Timestamp::from_second(unix_s).unwrap_or(Timestamp::MAX).to_zoned(zone.clone())
}

/// A day such as `2026-11-01`, and in no other form.
fn day(text: &str) -> Option<Date> {
    let is_day = text.len() == "2026-11-01".len() && !text.starts_with('-');
    text.parse().ok().filter(|day: &Date| is_day && day.to_string() == text)
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

    /// Friday, 27 November 2026, 12:00 UTC.
    const NOW: u64 = 1_795_780_800;

    fn berlin() -> TimeZone {
        // The rules themselves, so that no machine's database decides.
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
    }

    fn month(text: &str) -> Period {
        Period::of((None, None), Some(text.parse().unwrap()), NOW, &berlin()).unwrap()
    }

    fn between(since: &str, until: &str) -> Result<Period, PeriodError> {
        let (since, until) = (since.parse().unwrap(), until.parse().unwrap());
        Period::of((Some(&since), Some(&until)), None, NOW, &berlin())
    }

    #[test]
    fn a_time_is_so_long_ago_or_a_day_or_in_seconds_since_1970() {
        let since =
            |text: &str| text.parse::<Since>().map(|since| since.unix_s(1_000_000, &berlin()));
        assert_eq!(since("2h"), Ok(992_800));
        assert_eq!(since("7d"), Ok(395_200));
        assert_eq!(since("@5"), Ok(5));
        assert_eq!(since("90000d"), Ok(0));
        assert_eq!(since("1970-01-02"), Ok(86_400 - 3600), "midnight in Berlin");
        assert_eq!(since("1950-01-01"), Ok(0));
        let wrong = [
            "",
            "7",
            "d",
            "0d",
            "-1d",
            "1w",
            "@",
            "@x",
            "99999999999999999999s",
            "2026-13-01",
            "2026-02-29",
            "2026-11-1",
            "2026-11",
            "2026-11-01T10:00",
            "20261101",
            "11/01/2026",
        ];
        insta::assert_snapshot!(wrong.map(|text| since(text).unwrap_err()).join("\n"));
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (unix_s, expected) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (4_102_444_799, "2099-12-31"),
            (4_107_542_400, "2100-03-01"),
            (u64::MAX, "9999-12-30"),
        ] {
            assert_eq!(date(unix_s), expected);
        }
    }

    #[test]
    fn a_month_that_is_none_is_named_with_what_would_be_one() {
        let wrong =
            ["2026-13", "2026-00", "2026", "November", "2026-11-01", "26-11", "", "9999-12"];
        let said = wrong.map(|text| text.parse::<Month>().unwrap_err());
        insta::assert_snapshot!(said.join("\n"));
    }

    #[test]
    fn a_month_of_daylight_saving_has_an_hour_less_or_more() {
        let hours = |text| {
            let Period { since_unix_s, until_unix_s } = month(text);
            (until_unix_s.unwrap() - since_unix_s.unwrap()) / 3600
        };
        assert_eq!(hours("2026-02"), 28 * 24);
        assert_eq!(hours("2026-03"), 31 * 24 - 1);
        assert_eq!(hours("2026-10"), 31 * 24 + 1);
        assert_eq!(hours("2026-11"), 30 * 24);
        assert_eq!(hours("2024-02"), 29 * 24);
    }

    #[test]
    fn months_follow_each_other_without_a_gap() {
        let months = ["2025-12", "2026-01", "2026-02", "2026-03", "2026-04"].map(month);
        for pair in months.windows(2) {
            assert_eq!(pair[0].until_unix_s, pair[1].since_unix_s);
        }
        assert_eq!(between("2026-03-01", "2026-04-01"), Ok(months[3]));
    }

    #[test]
    fn a_day_whose_midnight_is_skipped_begins_an_hour_later() {
        // As in Paraguay until 2024: clocks are put forward at midnight of the first Sunday of October.
        let zone = TimeZone::posix("<-04>4<-03>,M10.1.0/0,M3.4.0/0").unwrap();
        let [saturday, sunday, monday] =
            [3, 4, 5].map(|day| begins(Date::constant(2026, 10, day), &zone));
        assert_eq!((sunday - saturday, monday - sunday), (24 * 3600, 23 * 3600));
    }

    #[test]
    fn a_period_that_is_none_says_which_time_to_change() {
        let of_month = |text: &str| {
            Period::of((None, None), Some(text.parse().unwrap()), NOW, &berlin()).unwrap_err()
        };
        let errors = [
            between("2026-11-05", "2026-11-01").unwrap_err(),
            between("2026-11-05", "2026-11-05").unwrap_err(),
            between("1h", "2h").unwrap_err(),
            between("2026-11-28", "2026-12-01").unwrap_err(),
            of_month("2026-12"),
        ];
        assert!(errors.iter().all(|error| error.exit() == Exit::Usage));
        let said = errors.map(|error| format!("{error}\n{}", error.remedy().unwrap()));
        insta::assert_snapshot!(said.join("\n"));
    }

    #[test]
    fn the_month_that_has_begun_and_an_end_that_is_to_come_are_no_error() {
        assert!(month("2026-11").until_unix_s.unwrap() > NOW);
        assert!(between("2026-11-01", "2026-12-01").is_ok());
        assert!(between("7d", "1h").is_ok());
    }
}

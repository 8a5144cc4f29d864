//! What energy costs by the hour: a CSV file of times and prices, as market data come, or of times of the day,
//! as a contract with a night rate says.
//!
//! Anything may write the file. It is read within bounds, again whenever it has changed, and one that is wrong
//! is ignored as a whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use csv::StringRecord;
use jiff::Timestamp;
use jiff::civil::{DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use pfo_service::lock;

use crate::bounded_file::text_within;
use crate::ledger::config::LARGEST;

/// The largest file: ten years of hours, or more than two of quarters of an hour.
const LARGEST_FILE: u64 = 4 << 20;

/// For how long the last row before a gap holds, in seconds.
const ROW_S: i64 = 3600;

const COLUMNS: [&str; 3] = ["time", "price_per_kwh", "co2e_g_per_kwh"];

/// What a kilowatt-hour costs at some time. A price below 0 is one, and so is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Price {
    pub(super) price_per_kwh: Option<f64>,
    pub(super) co2e_g_per_kwh: Option<f64>,
}

/// Prices by the hour.
#[derive(Debug, PartialEq)]
pub(super) enum Hours {
    /// From a time in seconds since 1970 on, in this order.
    Dated(Vec<(i64, Price)>),
    /// From a time of each day on, in this order.
    Daily(Vec<(Time, Price)>),
}

impl Hours {
    /// The prices of a file. Times without an offset are those of this zone.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub(super) fn read(text: &str, zone: &TimeZone) -> Result<Self, String> {
        let mut reader =
            csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
        let columns = columns(reader.headers().map_err(|error| error.to_string())?)?;
        let (mut dated, mut daily) = (Vec::<(i64, Price)>::new(), Vec::<(Time, Price)>::new());
        for record in reader.records() {
            let record = record.map_err(|error| error.to_string())?;
            let wrong = |why: String| {
                format!("line {}: {why}", record.position().map_or(0, csv::Position::line))
            };
            let [time, price, co2e] = columns.map(|column| field(&record, column));
            let price = Price {
                price_per_kwh: figure(price, -LARGEST).map_err(wrong)?,
                co2e_g_per_kwh: figure(co2e, 0.0).map_err(wrong)?,
            };
            if let Some(time) = time_of_day(time) {
                is_after(daily.last().map(|row| row.0), time).map_err(wrong)?;
                daily.push((time, price));
            } else {
                let before = dated.last().map(|row| row.0);
                let at = unix_s(time, before, zone).map_err(wrong)?;
                is_after(before, at).map_err(wrong)?;
                dated.push((at, price));
            }
        }
        match (dated.is_empty(), daily.is_empty()) {
            (true, true) => Err("it has no row".to_owned()),
            (false, true) => Ok(Self::Dated(dated)),
            (true, false) => Ok(Self::Daily(daily)),
            (false, false) => {
                Err("it has times of the day and times with a date: give one of the two".to_owned())
            }
        }
    }

    /// The price at a time; a row holds until the next one, but before a gap for an hour.
    pub(super) fn at(&self, unix_s: u64, zone: &TimeZone) -> Price {
        let at = i64::try_from(unix_s).unwrap_or(i64::MAX);
        match self {
            Self::Dated(rows) => {
                let after = rows.partition_point(|row| row.0 <= at);
                let row = after.checked_sub(1).and_then(|index| rows.get(index));
                let holds = row.filter(|row| at.saturating_sub(row.0) < ROW_S);
                holds.map_or_else(Price::default, |row| row.1)
            }
            Self::Daily(rows) => {
                let Ok(at) = Timestamp::from_second(at) else { return Price::default() };
                let time = at.to_zoned(zone.clone()).time();
                let after = rows.partition_point(|row| row.0 <= time);
                // Before the first row of a day, the last one holds.
                let row = rows.get(after.checked_sub(1).unwrap_or(rows.len().saturating_sub(1)));
                row.map_or_else(Price::default, |row| row.1)
            }
        }
    }
}

/// A time without a date. Of a date and a time, jiff would take the time.
fn time_of_day(text: &str) -> Option<Time> {
    text.parse().ok().filter(|_| text.len() <= "22:00:00".len())
}

/// Where each column is.
fn columns(header: &StringRecord) -> Result<[Option<usize>; 3], String> {
    if let Some(other) = header.iter().find(|name| !COLUMNS.contains(name)) {
        return Err(format!("unknown column {other:?}: it may have {}", COLUMNS.join(", ")));
    }
    let columns = COLUMNS.map(|column| header.iter().position(|name| name == column));
    match columns {
        [None, ..] => Err("it has no column time".to_owned()),
        [_, None, None] => Err("it has neither price_per_kwh nor co2e_g_per_kwh".to_owned()),
        _ => Ok(columns),
    }
}

fn field(record: &StringRecord, column: Option<usize>) -> &str {
    column.and_then(|column| record.get(column)).unwrap_or_default()
}

/// A figure; none of an empty field.
fn figure(text: &str, lowest: f64) -> Result<Option<f64>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let figure = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    match (lowest..=LARGEST).contains(&figure) {
        true => Ok(Some(figure)),
        false => Err(format!("{text} is not between {lowest} and {LARGEST}")),
    }
}

fn is_after<T: Copy + PartialOrd>(before: Option<T>, time: T) -> Result<(), String> {
    match before.is_none_or(|before| before < time) {
        true => Ok(()),
        false => Err("its time is not after that of the row before".to_owned()),
    }
}

/// A time with its offset, or of the zone. Of an hour that autumn repeats, the second one is meant once the
/// first one is over.
fn unix_s(text: &str, before: Option<i64>, zone: &TimeZone) -> Result<i64, String> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(at.as_second());
    }
    let local: DateTime = text.parse().map_err(|_| {
        format!("{text:?} is no time: give one such as 2026-11-28T14:00:00+01:00, 2026-11-28 14:00 or 14:00")
    })?;
    let times = zone.to_ambiguous_timestamp(local);
    if matches!(times.offset(), AmbiguousOffset::Gap { .. }) {
        return Err(format!("there was no {text} here: spring skips that hour"));
    }
    let second = |of: Result<Timestamp, jiff::Error>| {
        of.map(Timestamp::as_second).map_err(|error| error.to_string())
    };
    let earlier = second(times.earlier())?;
    match before.is_some_and(|before| before >= earlier) {
        true => second(times.later()),
        false => Ok(earlier),
    }
}

/// The file as it was read last: it may be large, and is asked for often.
#[derive(Debug, Default)]
pub(super) struct HoursFile(Mutex<Option<Read>>);

#[derive(Debug)]
struct Read {
    of: Stamp,
    hours: Result<Arc<Hours>, String>,
}

/// What changes when a file is written anew.
#[derive(Debug, PartialEq)]
struct Stamp {
    path: PathBuf,
    modified: Option<SystemTime>,
    bytes: u64,
}

impl HoursFile {
    /// The prices of a file as it is now.
    ///
    /// # Errors
    /// Why the file is ignored.
    pub(super) fn hours(&self, path: &Path, zone: &TimeZone) -> Result<Arc<Hours>, String> {
        let metadata = fs::metadata(path).ok();
        let of = Stamp {
            path: path.to_owned(),
            modified: metadata.as_ref().and_then(|file| file.modified().ok()),
            bytes: metadata.map_or(0, |file| file.len()),
        };
        let mut last = lock(&self.0);
        if let Some(read) = last.as_ref().filter(|read| read.of == of) {
            return read.hours.clone();
        }
        let shown = path.display();
        let hours = text_within(path, LARGEST_FILE)
            .map_err(|error| format!("cannot read {shown}: {error}"))
            .and_then(|text| Hours::read(&text, zone).map_err(|why| format!("{shown}: {why}")));
        let hours = hours.map(Arc::new);
        *last = Some(Read { of, hours: hours.clone() });
        hours
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn berlin() -> TimeZone {
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
    }

    fn price_at(hours: &Hours, time: &str) -> Option<f64> {
        let at: Timestamp = time.parse().unwrap();
        hours.at(at.as_second().try_into().unwrap(), &berlin()).price_per_kwh
    }

    fn read(text: &str) -> Result<Hours, String> {
        Hours::read(text, &berlin())
    }

    #[test]
    fn a_row_holds_until_the_next_one_and_before_a_gap_for_an_hour() {
        let hours = read(
            "time,price_per_kwh,co2e_g_per_kwh\n\
             2026-11-28T13:00:00Z,0.30,400\n\
             2026-11-28T13:15:00Z,-0.02,\n\
             2026-11-28T20:00:00Z,,90\n",
        )
        .unwrap();
        for (time, price) in [
            ("2026-11-28T12:59:59Z", None),
            ("2026-11-28T13:00:00Z", Some(0.30)),
            ("2026-11-28T13:14:59Z", Some(0.30)),
            ("2026-11-28T13:15:00Z", Some(-0.02)),
            ("2026-11-28T14:14:59Z", Some(-0.02)),
            ("2026-11-28T14:15:00Z", None),
            ("2026-11-28T20:00:00Z", None),
        ] {
            assert_eq!(price_at(&hours, time), price, "{time}");
        }
        assert_eq!(hours.at(u64::MAX, &berlin()), Price::default());
    }

    #[test]
    fn the_hour_that_autumn_repeats_has_two_prices_and_that_which_spring_skips_none() {
        let local = "time,price_per_kwh\n2026-10-25 01:00,1\n2026-10-25 02:00,2\n\
                     2026-10-25 02:30,2.5\n2026-10-25 02:00,3\n2026-10-25 02:30,3.5\n\
                     2026-10-25 03:00,4\n";
        let hours = read(local).unwrap();
        for (time, price) in [
            ("2026-10-24T23:30:00Z", 1.0),
            ("2026-10-25T00:10:00Z", 2.0),
            ("2026-10-25T00:40:00Z", 2.5),
            ("2026-10-25T01:10:00Z", 3.0),
            ("2026-10-25T01:40:00Z", 3.5),
            ("2026-10-25T02:10:00Z", 4.0),
        ] {
            assert_eq!(price_at(&hours, time), Some(price), "{time}");
        }
        let hours = read("time,price_per_kwh\n2026-03-29 01:00,1\n2026-03-29 03:00,3\n").unwrap();
        assert_eq!(price_at(&hours, "2026-03-29T00:59:59Z"), Some(1.0));
        assert_eq!(price_at(&hours, "2026-03-29T01:00:00Z"), Some(3.0));
        let why = read("time,price_per_kwh\n2026-03-29 02:00,1\n").unwrap_err();
        assert!(why.contains("spring skips"), "{why}");
    }

    #[test]
    fn times_of_the_day_hold_on_every_day_also_on_one_of_23_or_25_hours() {
        let hours = read("time,price_per_kwh\n06:00,0.35\n22:00,0.20\n").unwrap();
        for (time, price) in [
            ("2026-11-28T04:59:59Z", 0.20),
            ("2026-11-28T05:00:00Z", 0.35),
            ("2026-11-28T20:59:59Z", 0.35),
            ("2026-11-28T21:00:00Z", 0.20),
            // In summer, six o'clock is an hour sooner; on the days of the change, it has changed by then.
            ("2026-07-01T04:00:00Z", 0.35),
            ("2026-03-29T03:59:59Z", 0.20),
            ("2026-03-29T04:00:00Z", 0.35),
            ("2026-10-25T04:59:59Z", 0.20),
            ("2026-10-25T05:00:00Z", 0.35),
        ] {
            assert_eq!(price_at(&hours, time), Some(price), "{time}");
        }
    }

    #[test]
    fn a_file_that_is_wrong_is_named_with_its_line() {
        for (text, said) in [
            ("time,price\n", "unknown column \"price\""),
            ("price_per_kwh\n1\n", "no column time"),
            ("time\n14:00\n", "neither price_per_kwh nor co2e_g_per_kwh"),
            ("time,price_per_kwh\n", "no row"),
            ("time,price_per_kwh\n14:00,1\nnoon,2\n", "line 3: \"noon\" is no time"),
            ("time,price_per_kwh\n14:00,1,2\n", "2 fields"),
            ("time,price_per_kwh\n14:00,\"0,3\"\n", "line 2: \"0,3\" is no number"),
            ("time,price_per_kwh\n14:00,nan\n", "line 2: nan is not between"),
            ("time,co2e_g_per_kwh\n14:00,-1\n", "line 2: -1 is not between 0 and"),
            ("time,price_per_kwh\n14:00,1\n13:00,1\n", "line 3: its time is not after"),
            ("time,price_per_kwh\n2026-11-28T14:00Z,1\n2026-11-28T14:00Z,1\n", "not after"),
            ("time,price_per_kwh\n14:00,1\n2026-11-28T14:00Z,1\n", "one of the two"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(said), "{text}: {why}");
        }
    }

    #[test]
    fn a_file_is_read_again_once_it_has_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("prices.csv");
        let file = HoursFile::default();
        let now = || file.hours(&path, &berlin());
        assert!(now().unwrap_err().contains("prices.csv"));
        fs::write(&path, "time,price_per_kwh\n00:00,1\n").unwrap();
        let first = now().unwrap();
        assert!(Arc::ptr_eq(&first, &now().unwrap()));
        fs::write(&path, "time,price_per_kwh\n00:00,1\n12:00,1\n").unwrap();
        assert_ne!(*first, *now().unwrap());
    }
}

//! What energy costs: as the configuration says or, where it names a file, as that says now, but before all as
//! the prices by the hour say.
//!
//! Anything may write the file. It is read anew for each answer, within bounds, and one that is wrong
//! is ignored as a whole.

use std::path::Path;
use std::sync::Arc;

use jiff::tz::TimeZone;
use pfo_protocol::Tariff;
use serde::Deserialize;

use crate::bounded_file::text_of;
use crate::ledger::config::{Figure, LedgerConfig, currency};
use crate::ledger::hours::{Hours, HoursFile, Price};

/// What energy costs at each time.
#[derive(Clone, Debug, Default)]
pub(super) struct Prices {
    /// Where no price by the hour says otherwise.
    pub(super) flat: Tariff,
    /// With the zone of their times of the day.
    hours: Option<(Arc<Hours>, TimeZone)>,
}

impl Prices {
    /// The prices as they are now, and why a file is ignored, if one is.
    pub(super) fn of(config: &LedgerConfig, file: &HoursFile) -> (Self, Option<String>) {
        let zone = TimeZone::try_system();
        // Without TZ and /etc/localtime, as in many containers, nobody has chosen one.
        let no_zone = zone.as_ref().err().filter(|_| std::env::var_os("TZ").is_some());
        let no_zone = no_zone.map(|why| format!("TZ is no time zone: {why}; times are UTC"));
        let zone = zone.unwrap_or(TimeZone::UTC);
        let (flat, problem) = tariff(config);
        let hours = config.hours_file.as_deref().map(|path| file.hours(path, &zone)).transpose();
        let (hours, no_hours) = match hours {
            Ok(hours) => (hours.map(|hours| (hours, zone)), None),
            Err(why) => (None, Some(why)),
        };
        let problems: Vec<_> = problem.into_iter().chain(no_hours).chain(no_zone).collect();
        let problem = (!problems.is_empty()).then(|| problems.join("; "));
        (Self { flat, hours }, problem)
    }

    /// What a kilowatt-hour costs at a time.
    pub(super) fn at(&self, unix_s: u64) -> Price {
        let hour = self.hours.as_ref().map(|(hours, zone)| hours.at(unix_s, zone));
        let Price { price_per_kwh, co2e_g_per_kwh } = hour.unwrap_or_default();
        Price {
            price_per_kwh: price_per_kwh.or(self.flat.price_per_kwh),
            co2e_g_per_kwh: co2e_g_per_kwh.or(self.flat.co2e_g_per_kwh),
        }
    }

    /// The tariff of a time.
    pub(super) fn tariff_at(&self, unix_s: u64) -> Tariff {
        let Price { price_per_kwh, co2e_g_per_kwh } = self.at(unix_s);
        Tariff { price_per_kwh, co2e_g_per_kwh, ..self.flat.clone() }
    }

    /// Whether there are prices by the hour.
    pub(super) fn is_by_hour(&self) -> bool {
        self.hours.is_some()
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Content {
    price_per_kwh: Option<Figure>,
    #[serde(deserialize_with = "named")]
    currency: Option<String>,
    co2e_g_per_kwh: Option<Figure>,
}

fn named<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    currency(deserializer).map(Some)
}

/// What the flat tariff says, and why its file is ignored, if it is.
fn tariff(config: &LedgerConfig) -> (Tariff, Option<String>) {
    let (content, problem) = match config.tariff_file.as_deref().map(read) {
        None => (Content::default(), None),
        Some(Ok(content)) => (content, None),
        Some(Err(why)) => (Content::default(), Some(why)),
    };
    let tariff = Tariff {
        price_per_kwh: content.price_per_kwh.unwrap_or(config.price_per_kwh).known(),
        currency: content.currency.unwrap_or_else(|| config.currency.clone()),
        co2e_g_per_kwh: content.co2e_g_per_kwh.unwrap_or(config.co2e_g_per_kwh).known(),
    };
    (tariff, problem)
}

fn read(path: &Path) -> Result<Content, String> {
    let shown = path.display();
    let text = text_of(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    toml::from_str(&text).map_err(|error| format!("{shown}: {}", error.message()))
}

#[cfg(test)]
impl Prices {
    pub(super) fn flat(flat: Tariff) -> Self {
        Self { flat, hours: None }
    }

    /// With the rows of a file in UTC.
    pub(super) fn by_hour(flat: Tariff, rows: &str) -> Self {
        let zone = TimeZone::UTC;
        Self { flat, hours: Some((Arc::new(Hours::read(rows, &zone).unwrap()), zone)) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::bounded_file::LARGEST;

    fn config(file: Option<&Path>) -> LedgerConfig {
        let file = file.map(|path| format!("tariff_file = {path:?}\n")).unwrap_or_default();
        let text = format!("{file}price_per_kwh = 0.3\ncurrency = 'EUR'\n");
        toml::from_str(&text).unwrap()
    }

    fn tariff_of(content: &[u8]) -> (Tariff, Option<String>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tariff.toml");
        fs::write(&path, content).unwrap();
        tariff(&config(Some(&path)))
    }

    fn configured() -> Tariff {
        Tariff { price_per_kwh: Some(0.3), currency: "EUR".into(), co2e_g_per_kwh: None }
    }

    #[test]
    fn the_file_has_its_say_and_the_configuration_the_rest() {
        assert_eq!(tariff(&config(None)), (configured(), None));
        let (tariff, problem) = tariff_of(b"co2e_g_per_kwh = 380\nprice_per_kwh = 0.25");
        assert_eq!((tariff.price_per_kwh, tariff.co2e_g_per_kwh), (Some(0.25), Some(380.0)));
        assert_eq!((tariff.currency.as_str(), problem), ("EUR", None));
        assert_eq!(tariff_of(b"price_per_kwh = 0").0.price_per_kwh, None, "it is not known");
    }

    #[test]
    fn a_file_that_is_wrong_is_ignored_as_a_whole_and_named() {
        let long = [b'#'; LARGEST as usize + 1];
        for (content, said) in [
            (&b"price_per_kwh = -1"[..], "-1 is not between 0 and 1000000"),
            (b"co2e_g_per_kwh = nan", "NaN is not between"),
            (b"co2e_g_per_kwh = 300\nprice = 1", "unknown field `price`"),
            (b"currency = \"a\\u001bb\"", "is no name of a currency"),
            (b"\xff\xfe", "valid UTF-8"),
            (&long, "larger than 65536 bytes"),
        ] {
            let (tariff, problem) = tariff_of(content);
            let problem = problem.unwrap();
            assert_eq!(tariff, configured(), "{problem}");
            assert!(problem.contains("tariff.toml"), "{problem}");
            assert!(problem.contains(said), "{problem}: {said}");
        }
    }

    #[test]
    fn an_hour_without_a_price_has_that_of_the_flat_tariff() {
        let hours = "time,price_per_kwh,co2e_g_per_kwh\n1970-01-01T01:00:00Z,-0.5,\n\
                     1970-01-01T02:00:00Z,,90\n";
        let prices = Prices::by_hour(configured(), hours);
        let at = |unix_s| (prices.at(unix_s).price_per_kwh, prices.at(unix_s).co2e_g_per_kwh);
        assert_eq!(at(0), (Some(0.3), None));
        assert_eq!(at(3600), (Some(-0.5), None));
        assert_eq!(at(7200), (Some(0.3), Some(90.0)));
        assert_eq!(prices.tariff_at(3600).price_per_kwh, Some(-0.5), "that of metrics");
        assert_eq!(prices.tariff_at(3600).currency, "EUR");
    }

    #[test]
    fn each_file_that_is_wrong_is_named_and_the_rest_counts() {
        let directory = tempfile::tempdir().unwrap();
        let [hours, tariff] = ["hours.csv", "tariff.toml"].map(|name| directory.path().join(name));
        fs::write(&hours, "when,price_per_kwh\n").unwrap();
        let config = LedgerConfig { hours_file: Some(hours), ..config(Some(&tariff)) };
        let (prices, problem) = Prices::of(&config, &HoursFile::default());
        assert_eq!(prices.at(0).price_per_kwh, Some(0.3));
        let problem = problem.unwrap();
        assert!(
            problem.contains("tariff.toml") && problem.contains("column \"when\""),
            "{problem}"
        );
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        for path in [directory.path(), &directory.path().join("missing"), Path::new("/dev/zero")] {
            let (tariff, problem) = tariff(&config(Some(path)));
            assert_eq!(tariff, configured());
            assert!(problem.unwrap().contains(&path.display().to_string()));
        }
    }
}

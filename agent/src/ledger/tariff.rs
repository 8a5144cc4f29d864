//! What energy costs: as the configuration says or, where it names a file, as that says now.
//!
//! Anything may write the file. It is read anew for each answer, within bounds, and one that is wrong
//! is ignored as a whole.

use std::path::Path;

use pfo_protocol::Tariff;
use serde::Deserialize;

use crate::bounded_file::text_of;
use crate::ledger::config::{Figure, LedgerConfig, currency};

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

/// What energy costs now, and why the file is ignored, if it is.
pub(super) fn tariff(config: &LedgerConfig) -> (Tariff, Option<String>) {
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
    fn what_is_no_file_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        for path in [directory.path(), &directory.path().join("missing"), Path::new("/dev/zero")] {
            let (tariff, problem) = tariff(&config(Some(path)));
            assert_eq!(tariff, configured());
            assert!(problem.unwrap().contains(&path.display().to_string()));
        }
    }
}

//! `[ledger]` of the configuration.

use std::path::PathBuf;

use pfo_service::Within;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// The longest name of a currency, in bytes.
const LONGEST_CURRENCY: usize = 16;

/// The largest price, and the largest mass of carbon dioxide, of a kilowatt-hour.
pub(super) const LARGEST: f64 = 1e6;

/// `[ledger]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LedgerConfig {
    /// Days for which entries are kept.
    pub(super) keep_days: Within<1, 36_500>,
    /// Mebibytes that the ledger may take.
    pub(super) most_mib: Within<1, 65_536>,
    /// What a kilowatt-hour costs; 0 is not known.
    pub(super) price_per_kwh: Figure,
    /// In this currency.
    #[serde(deserialize_with = "currency")]
    pub(super) currency: String,
    /// Grams of carbon dioxide equivalent of a kilowatt-hour; 0 is not known.
    pub(super) co2e_g_per_kwh: Figure,
    /// The file that these are read from instead.
    #[serde(deserialize_with = "absolute")]
    pub(super) tariff_file: Option<PathBuf>,
    /// The file of prices by the hour, which count before these.
    #[serde(deserialize_with = "absolute")]
    pub(super) hours_file: Option<PathBuf>,
}

impl Default for LedgerConfig {
    fn default() -> Self {
        Self {
            keep_days: Within::of::<400>(),
            most_mib: Within::of::<64>(),
            price_per_kwh: Figure(0.0),
            currency: String::new(),
            co2e_g_per_kwh: Figure(0.0),
            tariff_file: None,
            hours_file: None,
        }
    }
}

/// A figure from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "f64")]
pub(super) struct Figure(f64);

// It is a number.
impl Eq for Figure {}

impl TryFrom<f64> for Figure {
    type Error = String;

    fn try_from(figure: f64) -> Result<Self, String> {
        let is_within = (0.0..=LARGEST).contains(&figure);
        is_within
            .then_some(Self(figure))
            .ok_or_else(|| format!("{figure} is not between 0 and {LARGEST}"))
    }
}

impl Figure {
    /// The figure, if it is known.
    pub(super) fn known(self) -> Option<f64> {
        Some(self.0).filter(|figure| *figure > 0.0)
    }
}

/// The name of a currency; empty if it is not known.
pub(super) fn currency<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let currency = String::deserialize(deserializer)?;
    if currency.len() <= LONGEST_CURRENCY && !currency.contains(char::is_control) {
        return Ok(currency);
    }
    Err(D::Error::custom(format!(
        "{currency:?} is no name of a currency: give at most {LONGEST_CURRENCY} bytes, such as EUR"
    )))
}

fn absolute<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    let path = PathBuf::from(String::deserialize(deserializer)?);
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    if path.is_absolute() {
        return Ok(Some(path));
    }
    Err(D::Error::custom(format!(
        "{path:?} is no absolute path: give one such as /run/tariff.toml"
    )))
}

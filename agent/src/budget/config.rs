//! `[budget]` of the configuration.

use pfo_protocol::{from_hexadecimal, hexadecimal};
use pfo_service::Within;
use serde::Deserialize;

/// The longest name of a key, in bytes.
const LONGEST_NAME: usize = 64;

/// `[budget]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BudgetConfig {
    /// Seconds from one look at the counters to the next.
    pub(super) every_s: Within<1, 3600>,
    /// Watts that count for each GPU of the node, beside what it draws.
    pub(super) site_w_per_gpu: Within<0, 100_000>,
    /// Whether owners may set the weights of their jobs.
    pub(crate) owners_set_weights: bool,
    /// Whether owners may set the floors of their jobs.
    pub(crate) owners_set_floors: bool,
    /// Whether this node obeys the budgets of its fleet.
    pub(super) fleet: bool,
    /// Who may sign them.
    pub(super) keys: Vec<SigningKey>,
    /// Percent by which they may lengthen the steps of a job on this node.
    pub(super) fleet_slower_percent: Within<0, 100_000>,
}

/// The public key of an administrator who may sign budgets of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct SigningKey {
    pub(super) name: String,
    pub(super) public: [u8; 32],
}

impl Default for BudgetConfig {
    fn default() -> Self {
        Self {
            every_s: Within::of::<2>(),
            site_w_per_gpu: Within::of::<0>(),
            owners_set_weights: false,
            owners_set_floors: false,
            fleet: false,
            keys: Vec::new(),
            fleet_slower_percent: Within::of::<100>(),
        }
    }
}

impl BudgetConfig {
    /// What is wrong beyond single values.
    pub(crate) fn contradiction(&self) -> Option<String> {
        (self.fleet && self.keys.is_empty()).then(|| {
            "budget.fleet is true, and budget.keys lists nobody who may sign a budget of the fleet: add \
             the line that `pfoctl budget sign-key` printed"
                .to_owned()
        })
    }

    /// The name of a listed key.
    pub(super) fn name_of(&self, public: &[u8; 32]) -> Option<&str> {
        self.keys.iter().find(|key| key.public == *public).map(|key| key.name.as_str())
    }

    /// The longest that a budget of the fleet may make a step, as a multiple of the shortest.
    pub(super) fn slowest_in_fleet(&self) -> f64 {
        1.0 + f64::from(self.fleet_slower_percent.get()) / 100.0
    }
}

impl TryFrom<String> for SigningKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_name = |name: &str| {
            let may_be = |letter: char| letter.is_ascii_alphanumeric() || "._@-".contains(letter);
            (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(may_be)
        };
        let parts = text.split_once(':').filter(|(name, _)| is_name(name));
        let key = parts.and_then(|(name, digits)| {
            Some(Self { name: name.to_owned(), public: from_hexadecimal(digits)? })
        });
        key.ok_or_else(|| {
            format!(
                "{text:?} is no key: give NAME:DIGITS, as `pfoctl budget sign-key` printed it, with 64 \
                 hexadecimal digits"
            )
        })
    }
}

/// A key that is not listed, as a message names it.
pub(super) fn short(public: &[u8; 32]) -> String {
    hexadecimal(&public[..4]) + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_a_name_and_its_digits() {
        let digits = "0f".repeat(32);
        let key = SigningKey::try_from(format!("ann@site:{digits}")).unwrap();
        assert_eq!((key.name.as_str(), short(&key.public).as_str()), ("ann@site", "0f0f0f0f…"));
        for wrong in [
            digits.clone(),
            format!(":{digits}"),
            format!("a b:{digits}"),
            format!("a:{}", &digits[1..]),
            format!("{}:{digits}", "a".repeat(65)),
        ] {
            assert!(SigningKey::try_from(wrong.clone()).is_err(), "{wrong}");
        }
    }
}

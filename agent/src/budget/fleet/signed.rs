//! What an administrator has signed about the budgets of the fleet, and whether this node obeys it. Everybody
//! who may write into the store can put anything in its place.

use std::collections::BTreeMap;

use pfo_budget::Series;
use pfo_protocol::{BudgetLevel, BudgetScope, FleetBudgets, FleetOrder, SignedBudgets};
use pfo_service::parse_versioned;
use ring::signature::{ED25519, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use crate::budget::book::{Book, Kept};
use crate::budget::config::{BudgetConfig, short};
use crate::budget::level::Level;

const FORMAT: &str = "pfo-agent-budget-signed/1";

/// What the store has, under no signature but the one in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::budget) struct Record {
    format: String,
    signed: SignedBudgets,
    /// What files say now. Nobody has signed it, so it counts between the lowest and the highest power that
    /// was signed.
    texts: Vec<(BudgetScope, String)>,
}

impl Record {
    /// As nobody's files say anything else than was signed.
    pub(super) fn of(signed: SignedBudgets) -> Self {
        Self { format: FORMAT.into(), signed, texts: Vec::new() }
    }

    fn key_and_signature(&self) -> Result<([u8; 32], [u8; 64]), String> {
        let both = self.signed.key_and_signature();
        both.ok_or_else(|| "its key and its signature are not 64 and 128 digits".to_owned())
    }

    /// # Errors
    /// In words, if it is none.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        parse_versioned(bytes, FORMAT).map_err(|why| format!("nobody has signed it ({why})"))
    }
}

/// What was signed, and what its files say now.
#[derive(Clone, Debug)]
pub(super) struct Stated {
    pub(super) signed: SignedBudgets,
    key: [u8; 32],
    budgets: FleetBudgets,
    texts: BTreeMap<BudgetScope, String>,
}

impl Stated {
    /// What a record contains, if a listed key has signed it for this fleet.
    ///
    /// # Errors
    /// Why this node does not obey it.
    pub(super) fn verified(
        record: Record,
        config: &BudgetConfig,
        fleet: &str,
    ) -> Result<Self, String> {
        let (key, signature) = record.key_and_signature()?;
        let name = config.name_of(&key).ok_or_else(|| {
            format!("key {} is not in budget.keys of its agent.toml", short(&key))
        })?;
        UnparsedPublicKey::new(&ED25519, key)
            .verify(&SignedBudgets::message(&record.signed.text), &signature)
            .map_err(|_| format!("the signature with key {name} is not of this text"))?;
        let stated = Self::read(record)?;
        if stated.budgets.fleet != fleet {
            return Err(format!(
                "key {name} has signed it for fleet {:?}, and fleet.name of its agent.toml is {fleet:?}",
                stated.budgets.fleet
            ));
        }
        Ok(stated)
    }

    /// What a record contains, whoever has signed it: an agent of this node has verified it before.
    ///
    /// # Errors
    /// If these are no budgets of a fleet.
    pub(super) fn read(record: Record) -> Result<Self, String> {
        let (key, _) = record.key_and_signature()?;
        let budgets: FleetBudgets = serde_json::from_str(&record.signed.text)
            .map_err(|error| format!("what is signed are no budgets: {error}"))?;
        let orders = budgets.orders.iter().map(|order| &order.order.scope);
        let mut scopes = orders.chain(budgets.terms.iter().map(|terms| &terms.scope));
        if scopes.any(|scope| !scope.is_of_fleet()) {
            return Err("what is signed is about the budgets of a node".to_owned());
        }
        for order in &budgets.orders {
            let read = Level::kept(&order.order, order.text.as_deref());
            read.map_err(|why| format!("what is signed has a wrong level: {}", why.message))?;
        }
        let Record { signed, texts, .. } = record;
        Ok(Self { signed, key, budgets, texts: texts.into_iter().collect() })
    }

    /// Whether it sets anything.
    pub(super) fn is_empty(&self) -> bool {
        self.budgets.orders.is_empty() && self.budgets.terms.is_empty()
    }

    pub(super) fn number(&self) -> u64 {
        self.budgets.number
    }

    pub(super) fn budgets(&self) -> &FleetBudgets {
        &self.budgets
    }

    /// The name of its key, if that may still sign and it is this fleet's.
    pub(super) fn signer<'a>(&self, config: &'a BudgetConfig, fleet: &str) -> Option<&'a str> {
        config.name_of(&self.key).filter(|_| self.budgets.fleet == fleet)
    }

    /// What is to take its place is newer, or the same with other contents of files.
    ///
    /// # Errors
    /// Why it may not.
    pub(super) fn check_next(&self, next: &Self) -> Result<(), String> {
        let (known, number) = (self.number(), next.number());
        if number < known {
            return Err(format!(
                "it is number {number}, and this node knows number {known}: somebody replays it, or the \
                 store was restored"
            ));
        }
        if number == known && self.signed.text != next.signed.text {
            return Err(format!("it is another one with number {number} than this node knows"));
        }
        Ok(())
    }

    /// As the store has it, maybe with what a file says now.
    pub(super) fn record(&self, text: Option<(&BudgetScope, &str)>) -> Record {
        let mut texts = self.texts.clone();
        texts.extend(text.map(|(scope, text)| (scope.clone(), text.to_owned())));
        texts.retain(|scope, _| self.signed_text(scope).is_some());
        Record {
            format: FORMAT.into(),
            signed: self.signed.clone(),
            texts: texts.into_iter().collect(),
        }
    }

    /// Keeps what the files of budgets say now that have not changed.
    pub(super) fn keep_texts(&mut self, before: Option<&Self>) {
        let Some(before) = before else { return };
        let kept = before.texts.iter().filter(|(scope, _)| {
            let of = |stated: &Self| {
                stated.budgets.orders.iter().find(|order| order.order.scope == **scope).cloned()
            };
            of(self) == of(before)
        });
        self.texts = kept.map(|(scope, text)| (scope.clone(), text.clone())).collect();
    }

    /// What the file of a budget said when it was signed.
    fn signed_text(&self, scope: &BudgetScope) -> Option<&str> {
        let order = self.budgets.orders.iter().find(|order| order.order.scope == *scope)?;
        order.text.as_deref().filter(|_| matches!(order.order.level, BudgetLevel::File(_)))
    }

    /// That a file says no power that is lower or higher than any that was signed.
    ///
    /// # Errors
    /// If it does, or is wrong.
    pub(super) fn check_text(&self, scope: &BudgetScope, text: &str) -> Result<(), String> {
        let range = |text| {
            let series = Series::from_csv(text).map_err(|error| error.to_string())?;
            Ok::<_, String>(series.range_w())
        };
        let signed = self.signed_text(scope).ok_or("nobody has signed a budget with a file")?;
        let ((least_w, most_w), (low_w, high_w)) = (range(signed)?, range(text)?);
        if low_w < least_w || high_w > most_w {
            return Err(format!(
                "it says {low_w} W to {high_w} W, and {least_w} W to {most_w} W were signed"
            ));
        }
        Ok(())
    }

    /// What is in force of it.
    pub(super) fn book(&self, key: &str) -> Book {
        let kept = |order: &FleetOrder| {
            let scope = order.order.scope.clone();
            let now = self.texts.get(&scope).filter(|text| self.check_text(&scope, text).is_ok());
            let kept = Kept {
                order: order.order.clone(),
                by_uid: order.by_uid,
                since_unix_s: order.since_unix_s,
                text: now.or(order.text.as_ref()).cloned(),
                by_node: order.by_node.parse().ok(),
                by_key: Some(key.to_owned()),
            };
            (scope, kept)
        };
        let terms = self.budgets.terms.iter().map(|terms| (terms.scope.clone(), terms.clone()));
        Book { orders: self.budgets.orders.iter().map(kept).collect(), terms: terms.collect() }
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{BudgetOrder, BudgetTerms, Uid, hexadecimal};
    use ring::signature::{Ed25519KeyPair, KeyPair};

    use super::*;

    /// Of the administrator whose key the node lists, and of somebody else.
    const ANN: u8 = 7;
    const MALLORY: u8 = 8;

    fn order(scope: BudgetScope, level: BudgetLevel, text: Option<&str>) -> FleetOrder {
        let (up_w_per_s, down_w_per_s, emergency) = (None, None, false);
        FleetOrder {
            order: BudgetOrder { scope, level, up_w_per_s, down_w_per_s, emergency },
            by_uid: Uid(5),
            by_node: "node-c".into(),
            since_unix_s: 7,
            text: text.map(str::to_owned),
        }
    }

    fn budgets(number: u64) -> FleetBudgets {
        let orders = vec![order(BudgetScope::Fleet, BudgetLevel::Watts(900.0), None)];
        FleetBudgets { fleet: "one".into(), number, orders, terms: Vec::new() }
    }

    fn signed_text(by: u8, text: String) -> SignedBudgets {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[by; 32]).unwrap();
        let signature = pair.sign(&SignedBudgets::message(&text));
        SignedBudgets::new(pair.public_key().as_ref(), signature.as_ref(), text)
    }

    fn signed(by: u8, budgets: &FleetBudgets) -> SignedBudgets {
        signed_text(by, serde_json::to_string(budgets).unwrap())
    }

    fn config() -> BudgetConfig {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[ANN; 32]).unwrap();
        let keys =
            format!("fleet = true\nkeys = ['ann:{}']", hexadecimal(pair.public_key().as_ref()));
        toml::from_str(&keys).unwrap()
    }

    fn taken(signed: SignedBudgets) -> Result<Stated, String> {
        let bytes = serde_json::to_vec(&Record::of(signed)).unwrap();
        Stated::verified(Record::read(&bytes)?, &config(), "one")
    }

    fn refused(signed: SignedBudgets) -> String {
        taken(signed).unwrap_err()
    }

    #[test]
    fn what_an_administrator_has_signed_is_in_force_with_who_ordered_it() {
        let stated = taken(signed(ANN, &budgets(3))).unwrap();
        let book = stated.book(stated.signer(&config(), "one").unwrap());
        let kept = &book.orders[&BudgetScope::Fleet];
        let by = (kept.by_uid, kept.by_node.clone(), kept.by_key.as_deref());
        assert_eq!(by, (Uid(5), Some("node-c".parse().unwrap()), Some("ann")));
    }

    #[test]
    fn what_nobody_has_signed_is_refused() {
        let unsigned = br#"{"format":"pfo-agent-budget/1","orders":[],"terms":[]}"#;
        assert!(Record::read(unsigned).unwrap_err().starts_with("nobody has signed it"));
        let mut blank = signed(ANN, &budgets(1));
        blank.signature.clear();
        assert!(refused(blank).contains("128 digits"));
    }

    #[test]
    fn what_a_key_has_signed_that_is_not_listed_is_refused() {
        let why = refused(signed(MALLORY, &budgets(1)));
        assert_eq!(why, "key 1398f62c… is not in budget.keys of its agent.toml");
        let ann = signed(ANN, &budgets(1));
        let borrowed = SignedBudgets { key: ann.key, ..signed(MALLORY, &budgets(1)) };
        assert!(refused(borrowed).contains("the signature with key ann is not of this text"));
    }

    #[test]
    fn a_text_in_which_a_field_is_changed_is_refused() {
        let honest = signed(ANN, &budgets(1));
        for (field, other) in [
            ("900.0", "1.0"),
            ("\"emergency\":false", "\"emergency\":true"),
            ("number\":1", "number\":9"),
        ] {
            let text = honest.text.replace(field, other);
            assert_ne!(text, honest.text, "{field}");
            let why = refused(SignedBudgets { text, ..honest.clone() });
            assert!(why.contains("is not of this text"), "{field}: {why}");
        }
    }

    #[test]
    fn what_is_signed_for_another_fleet_is_refused() {
        let why = refused(signed(ANN, &FleetBudgets { fleet: "two".into(), ..budgets(1) }));
        assert!(
            why.contains("for fleet \"two\", and fleet.name of its agent.toml is \"one\""),
            "{why}"
        );
    }

    #[test]
    fn a_signature_under_anything_but_budgets_of_a_fleet_is_refused() {
        assert!(refused(signed_text(ANN, "{}".into())).contains("no budgets"));
        let more = serde_json::to_string(&budgets(1)).unwrap().replacen('{', "{\"more\":1,", 1);
        assert!(refused(signed_text(ANN, more)).contains("no budgets"));
        let pair = Ed25519KeyPair::from_seed_unchecked(&[ANN; 32]).unwrap();
        let text = serde_json::to_string(&budgets(1)).unwrap();
        let elsewhere = pair.sign(text.as_bytes());
        let signed = SignedBudgets::new(pair.public_key().as_ref(), elsewhere.as_ref(), text);
        assert!(refused(signed).contains("is not of this text"));
    }

    #[test]
    fn a_signed_budget_of_a_node_is_refused() {
        let of_node = order(BudgetScope::Node, BudgetLevel::Watts(900.0), None);
        let why = refused(signed(ANN, &FleetBudgets { orders: vec![of_node], ..budgets(1) }));
        assert!(why.contains("about the budgets of a node"), "{why}");
        let scope = BudgetScope::User(Uid(5));
        let terms = vec![BudgetTerms { scope, weight: Some(2.0), slowest: None }];
        let why = refused(signed(ANN, &FleetBudgets { terms, ..budgets(1) }));
        assert!(why.contains("about the budgets of a node"), "{why}");
    }

    #[test]
    fn an_older_number_is_refused_and_so_is_another_text_of_the_same() {
        let known = taken(signed(ANN, &budgets(7))).unwrap();
        let next = |number| known.check_next(&taken(signed(ANN, &budgets(number))).unwrap());
        assert_eq!([next(7), next(8)], [Ok(()), Ok(())]);
        assert!(next(6).unwrap_err().contains("number 6, and this node knows number 7"));
        let cleared = FleetBudgets { orders: Vec::new(), ..budgets(7) };
        let cleared = taken(signed(ANN, &cleared)).unwrap();
        assert!(known.check_next(&cleared).unwrap_err().contains("another one with number 7"));
    }

    #[test]
    fn what_was_in_force_is_not_once_its_key_is_taken_off_the_list() {
        let stated = taken(signed(ANN, &budgets(1))).unwrap();
        assert_eq!(stated.signer(&config(), "one"), Some("ann"));
        assert_eq!(stated.signer(&BudgetConfig::default(), "one"), None);
        assert_eq!(stated.signer(&config(), "two"), None);
        let known_to_the_next_agent = Stated::read(stated.record(None)).unwrap();
        assert_eq!(known_to_the_next_agent.signer(&config(), "one"), Some("ann"));
    }

    #[test]
    fn what_a_file_says_later_counts_between_the_powers_that_were_signed() {
        let path = BudgetLevel::File("/etc/pfo/day.csv".into());
        let filed = order(BudgetScope::Fleet, path, Some("06:00,40kW\n18:00,30kW"));
        let stated =
            taken(signed(ANN, &FleetBudgets { orders: vec![filed], ..budgets(1) })).unwrap();
        let scope = BudgetScope::Fleet;
        let now = |text: &str| {
            let again = Stated::read(stated.record(Some((&scope, text)))).unwrap();
            again.book("ann").orders[&scope].text.clone().unwrap()
        };
        assert_eq!(now("07:00,35kW"), "07:00,35kW");
        for wrong in ["07:00,1W", "07:00,50kW", "much"] {
            assert_eq!(now(wrong), "06:00,40kW\n18:00,30kW", "{wrong}");
        }
        let why = stated.check_text(&scope, "07:00,1W").unwrap_err();
        assert_eq!(why, "it says 1 W to 1 W, and 30000 W to 40000 W were signed");
        let fixed = BudgetScope::FleetUser(Uid(5));
        assert!(stated.check_text(&fixed, "07:00,35kW").is_err(), "a budget without a file");
    }
}

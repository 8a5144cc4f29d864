//! Power budgets: what the jobs of a node may draw together, how much each counts, and what it gave up.

use std::ops::RangeInclusive;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use pfo_vocabulary::{JobName, PartitionName, Uid};

use crate::job::JobSelector;
use crate::range::within;

/// The power of a budget, in watts, and of its ramps, in watts a second.
const POWERS_W: RangeInclusive<f64> = 0.0..=1e12;

/// How many times its shortest step a job may be slowed down to.
const SLOWEST: RangeInclusive<f64> = 1.0..=1e6;

/// The longest path of a file, in bytes.
const LONGEST_PATH: usize = 4096;

/// What a budget, a weight or a floor is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetScope {
    /// The whole node.
    Node,
    /// The jobs of a user.
    User(Uid),
    /// One job.
    Job(JobSelector),
    /// All nodes of the fleet.
    Fleet,
    /// The jobs of a user on all of them.
    FleetUser(Uid),
    /// One job, on whichever of them it is.
    FleetJob(JobSelector),
    /// The jobs of a scheduler's partition.
    Partition(PartitionName),
    /// The jobs of a scheduler's partition on all nodes of the fleet.
    FleetPartition(PartitionName),
}

impl BudgetScope {
    /// Whether all nodes of the fleet share it.
    #[must_use]
    pub fn is_of_fleet(&self) -> bool {
        match self {
            Self::Node | Self::User(_) | Self::Job(_) | Self::Partition(_) => false,
            Self::Fleet | Self::FleetUser(_) | Self::FleetJob(_) | Self::FleetPartition(_) => true,
        }
    }

    /// The user whose it is, if it is one's.
    #[must_use]
    pub fn uid(&self) -> Option<Uid> {
        match self {
            Self::Node | Self::Fleet | Self::Partition(_) | Self::FleetPartition(_) => None,
            Self::User(uid) | Self::FleetUser(uid) => Some(*uid),
            Self::Job(job) | Self::FleetJob(job) => job.uid,
        }
    }
}

/// How much power there is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetLevel {
    /// So many watts at all times.
    Watts(#[serde(deserialize_with = "power_w")] f64),
    /// What a file of the node says for each moment: its absolute path.
    File(#[serde(deserialize_with = "path")] String),
}

/// A budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetOrder {
    /// What it is for.
    pub scope: BudgetScope,
    /// How much there is.
    pub level: BudgetLevel,
    /// The watts by which power may rise in a second; none for any number.
    #[serde(deserialize_with = "ramp")]
    pub up_w_per_s: Option<f64>,
    /// The watts by which it may fall in a second; none for any number.
    #[serde(deserialize_with = "ramp")]
    pub down_w_per_s: Option<f64>,
    /// Whether ramps and floors do not count.
    pub emergency: bool,
}

/// How much jobs count, and how slow they may become.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetTerms {
    /// Whose terms they are.
    pub scope: BudgetScope,
    /// How much the progress of each job counts; none is the number of its GPUs.
    #[serde(deserialize_with = "weight")]
    pub weight: Option<f64>,
    /// The slowest allowed, as a multiple of its shortest step; none if there is no limit.
    #[serde(deserialize_with = "slowest")]
    pub slowest: Option<f64>,
}

impl BudgetTerms {
    /// How much a job may count.
    pub const WEIGHTS: RangeInclusive<f64> = 1e-6..=1e6;
}

/// What a signature under [`FleetBudgets`] begins with, so that it is none under anything else.
pub const SIGNED_CONTEXT: &str = "pfo-fleet-budgets/1\n";

/// All budgets and terms of a fleet, as an administrator signs them: as JSON, with a number that is one more
/// than that of the statement which they replace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetBudgets {
    /// The fleet, as `fleet.name` of agent.toml names it.
    pub fleet: String,
    /// Nodes obey no number that is not higher than the one before.
    pub number: u64,
    /// The budgets.
    pub orders: Vec<FleetOrder>,
    /// How much jobs count, and how slow they may become.
    pub terms: Vec<BudgetTerms>,
}

/// A budget of a fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetOrder {
    /// What was ordered.
    pub order: BudgetOrder,
    /// Who ordered it.
    pub by_uid: Uid,
    /// At which node. If the level is a file, it is that node's.
    pub by_node: String,
    /// When, in seconds since 1970.
    pub since_unix_s: u64,
    /// What that file said. Later contents may say powers between its lowest and its highest.
    pub text: Option<String>,
}

/// [`FleetBudgets`] with a signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedBudgets {
    /// The public key (Ed25519), in 64 hexadecimal digits.
    pub key: String,
    /// The signature under [`SIGNED_CONTEXT`] and the text, in 128 hexadecimal digits.
    pub signature: String,
    /// The JSON of [`FleetBudgets`].
    pub text: String,
}

impl SignedBudgets {
    /// A text with a key and a signature.
    #[must_use]
    pub fn new(key: &[u8], signature: &[u8], text: String) -> Self {
        Self { key: hexadecimal(key), signature: hexadecimal(signature), text }
    }

    /// The public key and the signature; none if they are not so many digits.
    #[must_use]
    pub fn key_and_signature(&self) -> Option<([u8; 32], [u8; 64])> {
        Some((from_hexadecimal(&self.key)?, from_hexadecimal(&self.signature)?))
    }

    /// What is signed when a text is.
    #[must_use]
    pub fn message(text: &str) -> Vec<u8> {
        [SIGNED_CONTEXT, text].concat().into_bytes()
    }
}

/// Bytes as lowercase digits, two for each.
#[must_use]
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of lowercase digits; none if there are not exactly so many.
#[must_use]
pub fn from_hexadecimal<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let pairs = digits.as_bytes().chunks_exact(2);
    if !digits.as_bytes().iter().all(is_digit) || !pairs.remainder().is_empty() {
        return None;
    }
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(byte).collect::<Option<Vec<u8>>>()?.try_into().ok()
}

/// A change of the budgets of a fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum BudgetChange {
    /// A budget, in the place of the one of the same scope.
    Set(BudgetOrder),
    /// The end of a budget.
    Clear(BudgetScope),
    /// Terms, in the place of those of the same scope.
    Terms(BudgetTerms),
}

/// What an administrator is to sign for a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetDraft {
    /// What it replaces; none if the node knows of nothing that was signed.
    pub former: Option<SignedBudgets>,
    /// The JSON of [`FleetBudgets`].
    pub text: String,
}

/// Every budget of the node and of its fleet, and the jobs that count for one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BudgetReport {
    /// The budgets; those of the node and of other users only for administrators.
    pub budgets: Vec<BudgetStatus>,
    /// The terms that are set.
    pub terms: Vec<BudgetTerms>,
    /// The jobs that the peer may see.
    pub jobs: Vec<BudgetedJob>,
    /// Why this node obeys no budget of its fleet though one is set, or which one it refuses, if so.
    pub disobeyed: Option<String>,
}

/// A budget and what is drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetStatus {
    /// What was ordered.
    pub order: BudgetOrder,
    /// Who ordered it.
    pub by_uid: Uid,
    /// At which node, if it is one of the fleet.
    #[serde(default)]
    pub by_node: Option<String>,
    /// The name of the key that signed it, if it is one of the fleet.
    #[serde(default)]
    pub by_key: Option<String>,
    /// When, in seconds since 1970.
    pub since_unix_s: u64,
    /// What there is now, in watts; none while nothing was decided.
    pub budget_w: Option<f64>,
    /// What is drawn now, by the counters, in watts.
    pub drawn_w: Option<f64>,
    /// What of this no plan changes: GPUs without a job, jobs that cannot be slowed down, and each GPU's
    /// share of the site, in watts.
    pub base_w: f64,
    /// What is kept free, in watts.
    pub reserve_w: f64,
    /// The weighted progress that the last watt costs; 0 if the budget costs nothing, none if it cannot be
    /// kept.
    pub price: Option<f64>,
    /// The watts that are missing even with every job at its floor.
    pub missing_w: Option<f64>,
    /// What is wrong with its file, if anything. What the file said before stays in force.
    pub file: Option<BudgetFileTrouble>,
    /// What else is wrong, if anything.
    pub problem: Option<String>,
}

/// Why the file of a budget cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetFileTrouble {
    /// The node that reads it, in a budget of the fleet.
    pub node: Option<String>,
    /// What is wrong, with the path.
    pub why: String,
    /// Since when, in seconds since 1970.
    pub since_unix_s: u64,
}

/// How a job is slowed down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetSteering {
    /// By plans of its frontier.
    Plans,
    /// By one clock for everything.
    UniformClocks,
    /// It is not; it only counts.
    Nothing,
    /// Power limits hold its GPUs: its plan does not keep it below its share, or not yet.
    PowerLimits,
}

/// Why a job runs what it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetReason {
    /// The budget takes nothing from it.
    Own,
    /// Another watt of it would cost more than a watt of others.
    Price,
    /// It is as slow as it may be.
    Floor,
    /// Somebody measures it.
    Held,
    /// Nothing is known about it yet, or it cannot be changed on this node alone.
    Unknown,
}

/// What a job gives up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetedJob {
    /// Its name.
    pub job: JobName,
    /// Whose it is.
    pub uid: Uid,
    /// The partition that it is in, if its scheduler says so.
    #[serde(default)]
    pub partition: Option<PartitionName>,
    /// The budget that it counts for.
    pub scope: BudgetScope,
    /// How it is slowed down.
    pub steering: BudgetSteering,
    /// How much its progress counts.
    pub weight: f64,
    /// The slowest allowed, as a multiple of its shortest step.
    pub slowest: Option<f64>,
    /// What it draws, by its counters, in watts.
    pub drawn_w: Option<f64>,
    /// What it would draw with what it runs by itself, in watts.
    pub own_w: Option<f64>,
    /// The watts that it gives up.
    pub given_w: f64,
    /// The share of its speed that it gives up.
    pub lost: f64,
    /// Why it runs what it runs.
    pub reason: BudgetReason,
    /// The weighted progress that the next watt would cost; none at its floor.
    pub next_price: Option<f64>,
    /// The joules that it gave up since the agent has steered it.
    pub given_j: f64,
    /// The seconds of progress at its own pace that it lost since then.
    pub lost_s: f64,
    /// Why it could not be changed, if so.
    pub problem: Option<String>,
}

fn power_w<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let power_w = f64::deserialize(deserializer)?;
    within("the budget in watts", power_w, POWERS_W).map_err(D::Error::custom)
}

fn ramp<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    checked(deserializer, "the ramp in watts a second", POWERS_W)
}

fn weight<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    checked(deserializer, "the weight", BudgetTerms::WEIGHTS)
}

fn slowest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    checked(deserializer, "the floor", SLOWEST)
}

fn checked<'de, D: Deserializer<'de>>(
    deserializer: D,
    what: &'static str,
    range: RangeInclusive<f64>,
) -> Result<Option<f64>, D::Error> {
    let value = Option::<f64>::deserialize(deserializer)?;
    value.map(|value| within(what, value, range)).transpose().map_err(D::Error::custom)
}

fn path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let path = String::deserialize(deserializer)?;
    if path.starts_with('/') && path.len() <= LONGEST_PATH && !path.contains(char::is_control) {
        return Ok(path);
    }
    Err(D::Error::custom("the path of a budget file is not absolute, too long, or no line of text"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;

    fn decoded<T: Serialize + for<'de> Deserialize<'de>>(value: &T) -> Result<T, String> {
        let mut bytes = Vec::new();
        codec::append(value, &mut bytes).unwrap();
        codec::decode(&bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn a_number_that_is_no_budget_is_refused_where_it_is_decoded() {
        let order = |watts| BudgetOrder {
            scope: BudgetScope::Node,
            level: BudgetLevel::Watts(watts),
            up_w_per_s: None,
            down_w_per_s: Some(watts),
            emergency: false,
        };
        assert_eq!(decoded(&order(40e3)), Ok(order(40e3)));
        for watts in [-1.0, f64::NAN, f64::INFINITY, 2e12] {
            assert!(decoded(&order(watts)).is_err(), "{watts}");
        }
        let terms = |weight, slowest| BudgetTerms { scope: BudgetScope::Node, weight, slowest };
        assert!(decoded(&terms(Some(2.0), Some(1.2))).is_ok());
        for (weight, slowest) in [(Some(0.0), None), (Some(f64::NAN), None), (None, Some(0.9))] {
            assert!(decoded(&terms(weight, slowest)).is_err(), "{weight:?} {slowest:?}");
        }
    }

    #[test]
    fn a_key_is_lowercase_digits_of_exactly_its_length() {
        let (key, signature) = ([0xa7; 32], [3; 64]);
        let signed = SignedBudgets::new(&key, &signature, "{}".into());
        assert_eq!(signed.key_and_signature(), Some((key, signature)));
        assert_eq!(from_hexadecimal::<2>("0aff"), Some([10, 255]));
        for wrong in ["0af", "0aff0", "0aff00", "0AFF", "0a+f", "", "0aéf"] {
            assert_eq!(from_hexadecimal::<2>(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_an_absolute_path_of_one_line_names_a_file() {
        for (path, is_one) in [("/etc/pfo/day.csv", true), ("day.csv", false), ("/a\nb", false)] {
            assert_eq!(decoded(&BudgetLevel::File(path.into())).is_ok(), is_one, "{path}");
        }
    }
}

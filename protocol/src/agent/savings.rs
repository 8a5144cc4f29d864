//! What plans have saved, as the ledger of the agent knows it. `pfoctl savings --json` prints these
//! very fields.

use serde::{Deserialize, Serialize};

use pfo_vocabulary::{JobName, Uid};

/// Which savings are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavingsQuery {
    /// Only those of jobs of this name.
    pub job: Option<JobName>,
    /// Only those of this user's jobs.
    pub uid: Option<Uid>,
    /// Only what was measured from this time on, in seconds since 1970.
    pub since_unix_s: Option<u64>,
    /// What each row is of.
    pub by: SavingsBy,
    /// Only what was measured before this time, in seconds since 1970.
    pub until_unix_s: Option<u64>,
    /// This month of all nodes of the fleet, such as `2026-11`, in the place of both times.
    pub fleet_month: Option<String>,
}

/// What each row of savings is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SavingsBy {
    /// A job of a user.
    #[default]
    Job,
    /// A user.
    User,
    /// A plan of a job.
    Plan,
    /// A day, from midnight UTC on.
    Day,
    /// A partition of the scheduler.
    Partition,
    /// A model of GPUs.
    Model,
}

/// What plans have saved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavingsReport {
    /// One for each job, user, plan, day, partition or model.
    pub rows: Vec<SavingsRow>,
    /// All rows together. Its interval is no sum of theirs, whose errors are not independent.
    pub total: Savings,
    /// What energy costs where no price by the hour says otherwise.
    pub tariff: Tariff,
    /// Why a file of the tariff is ignored, or a saving has no money or no carbon dioxide.
    pub tariff_problem: Option<String>,
    /// Why the ledger is not kept on disk, or is not complete, if so.
    pub ledger_problem: Option<String>,
    /// Entries of the ledger, of all users.
    pub entries: u64,
    /// The time from which on this was measured, in seconds since 1970, if one was given.
    pub since_unix_s: Option<u64>,
    /// The time before which it was measured.
    pub until_unix_s: Option<u64>,
    /// The nodes whose months are in it, where it is of the fleet.
    pub nodes: Vec<SavingsNode>,
}

/// A node whose month is part of the savings of its fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavingsNode {
    /// Its name in the fleet.
    pub name: String,
    /// When it wrote its month last, in seconds since 1970.
    pub written_unix_s: u64,
}

/// The savings of one job, user, plan, day, partition or model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavingsRow {
    /// The owner of the job.
    pub uid: Option<Uid>,
    /// The job.
    pub job: Option<JobName>,
    /// The label of the plan.
    pub plan: Option<String>,
    /// The midnight at which the day began, in seconds since 1970.
    pub day_unix_s: Option<u64>,
    /// What was saved.
    pub savings: Savings,
    /// The partition of the scheduler; none if it said none.
    pub partition: Option<String>,
    /// The model of the GPUs.
    pub model: Option<String>,
}

/// What was measured under plans, and what it saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Savings {
    /// Steps under plans.
    pub steps: u64,
    /// The time that they took, in seconds.
    pub time_s: f64,
    /// The energy that they took, in joules, as far as the GPUs have energy counters.
    pub energy_j: f64,
    /// The part of that energy whose plan was compared with default clocks at least twice.
    pub compared_j: f64,
    /// The comparisons.
    pub comparisons: u64,
    /// What that part saved; none if there is no such part.
    pub saved: Option<SavedEnergy>,
    /// For how long at least one of its GPUs was throttled below what it was asked for, in seconds, looked
    /// at every few seconds; none if nobody looked.
    pub throttled_s: Option<f64>,
    /// The highest temperature that one of its GPUs was seen at, in degrees Celsius.
    pub hottest_c: Option<u32>,
    /// What was given up for power budgets meanwhile, in joules: it is in no saving.
    pub given_j: f64,
    /// The progress that this cost, in seconds at the pace of what the job runs by itself.
    pub lost_s: f64,
    /// How much longer than at default clocks the compared part took, in seconds, as the same comparisons
    /// measured it; below 0 if it took less.
    pub slowdown_s: Option<f64>,
    /// What was saved in the currency of the tariff, by the price at the time; none if there is nothing
    /// that was compared, or the price of a part of it is not known.
    pub money: Option<Worth>,
    /// The same in grams of carbon dioxide equivalent.
    pub co2e_g: Option<Worth>,
}

/// What a saving is worth, and its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Worth {
    /// The lower end of the interval.
    pub low: f64,
    /// What is most likely.
    pub estimate: f64,
    /// The upper end.
    pub high: f64,
}

/// What was saved beside default clocks, in joules, and its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedEnergy {
    /// The lower end of the interval.
    pub low_j: f64,
    /// What is most likely.
    pub estimate_j: f64,
    /// The upper end.
    pub high_j: f64,
    /// Whether the interval is above or below zero. What is not shown may be nothing.
    pub shown: bool,
}

/// What energy costs. Figures that are not known are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tariff {
    /// The price of a kilowatt-hour.
    pub price_per_kwh: Option<f64>,
    /// In this currency.
    pub currency: String,
    /// The carbon dioxide equivalent of a kilowatt-hour, in grams.
    pub co2e_g_per_kwh: Option<f64>,
}

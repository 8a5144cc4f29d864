//! Tuning: the agent finds a plan for a running job, proves it on the job, and leaves the job running it.

use serde::{Deserialize, Serialize};

use pfo_vocabulary::{JobName, Uid};

use crate::job::JobSelector;
use crate::session::Refusal;

/// A job to tune, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TuneOrder {
    /// The job.
    pub job: JobSelector,
    /// The terms, as JSON. What they leave out has its default.
    pub terms: Vec<u8>,
    /// The CSV of a profile; none means the stored one or, if there is none, a sweep.
    pub profile: Option<Vec<u8>>,
    /// An order file; none means the order that the job runs.
    pub order: Option<Vec<u8>>,
}

/// A tune, and how far it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuneStatus {
    /// The job.
    pub job: JobName,
    /// Whose job it is.
    pub uid: Uid,
    /// Counts the changes of this status, over restarts of the agent, too.
    pub changed: u64,
    /// What it does, or what became of it.
    pub state: TuneState,
    /// What is being done, in words, such as `proving pfo 1, turn 3 of 8`.
    pub now: String,
    /// How much of that is done, from 0 to 1.
    pub done: f64,
    /// How long that will still take, in seconds, where it is known.
    pub remaining_s: Option<f64>,
    /// The share of energy that the best plan so far saves.
    pub saving: Option<f64>,
    /// What a person should read, in the order in which it came up.
    pub remarks: Vec<String>,
}

/// What a tune does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TuneState {
    /// It waits for the profile of the job, which a sweep measures if none is stored.
    Profile,
    /// It measures how the GPUs change their clocks.
    Calibration,
    /// It measures the job at default clocks.
    DefaultClocks,
    /// It computes plans.
    Planning,
    /// A policy searches on the job.
    Search,
    /// A plan and default clocks take turns.
    Proof,
    /// It is over.
    Ended(TuneEnd),
}

/// What became of a tune.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TuneEnd {
    /// The job runs a plan that is proved.
    Kept,
    /// The job runs a plan that most likely, but not certainly, is within the allowed slowdown.
    KeptUncertain,
    /// No plan is better than default clocks, which the job runs.
    NothingKept,
    /// Stopped on request. The job runs at default clocks.
    Stopped,
    /// It could not continue. The job runs at default clocks.
    Failed(Refusal),
}

/// What a tune has measured and decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TuneReport {
    /// The report, as `pfoctl tune --json` prints it.
    pub report: Vec<u8>,
    /// The plan that the job runs, `pfo-plan/1` JSON; none at default clocks and under power limits.
    pub plan: Option<Vec<u8>>,
    /// The frontier that the plan is from, as `pfoctl plan optimize` writes it.
    pub frontier: Option<Vec<u8>>,
}

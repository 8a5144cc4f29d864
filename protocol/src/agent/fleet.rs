//! What the agent reports about its fleet, and about jobs that have ranks on other nodes.

use serde::{Deserialize, Serialize};

use pfo_vocabulary::{Rank, Uid};

/// The fleet, as one of its agents sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetStatus {
    /// The name of this node in the fleet.
    pub node: String,
    /// Where the store is.
    pub endpoints: Vec<String>,
    /// Every node whose agent reaches the store, by name.
    pub nodes: Vec<FleetNode>,
}

/// A node of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetNode {
    /// Its name.
    pub node: String,
    /// The version of its agent.
    pub version: String,
}

/// One thing that a check of the fleet has looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetFinding {
    /// What was looked at.
    pub what: String,
    /// What is wrong with it, and what to do about it; none if it is well.
    pub wrong: Option<String>,
}

/// A job that has ranks on other nodes, too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetJob {
    /// Its nodes, by name.
    pub nodes: Vec<FleetMember>,
    /// Why it cannot be changed as a whole, if it cannot.
    pub problem: Option<String>,
    /// Seconds for which the store has not answered, if it does not.
    pub store_away_s: Option<f64>,
    /// The newest swap of the whole job.
    pub swap: Option<FleetSwap>,
    /// A step of the whole job since the newest swap that was committed; none until every node has
    /// measured some.
    pub step: Option<FleetStep>,
    /// What its steps took under the last swaps, the oldest first, trials left out.
    pub windows: Vec<FleetWindow>,
    /// The node that compares its plan with default clocks, if one does.
    pub guarded_by: Option<String>,
    /// The node that answers its slow stages, if one does.
    pub answered_by: Option<String>,
    /// How many times the fastest iteration the straggler's takes that it runs a plan for.
    pub straggler: Option<f64>,
}

/// What the steps of the whole job took between two swaps of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetWindow {
    /// The number of the first of these swaps, 0 for the time before any.
    pub swap: u64,
    /// What the plan is called; none for default clocks.
    pub plan: Option<String>,
    /// A step.
    pub step: FleetStep,
}

/// A step of the whole job, as its nodes have measured it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetStep {
    /// Mean time from one step's begin to the next one's, of the slowest rank, in seconds.
    pub time_s: f64,
    /// Mean energy of all ranks together, in joules; none if one of their GPUs has no energy counter.
    pub energy_j: Option<f64>,
}

/// A node that has ranks of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetMember {
    /// Its name.
    pub node: String,
    /// Its ranks of the job, in the order of their numbers.
    pub ranks: Vec<Rank>,
    /// The number of the newest swap that it runs, 0 before the first one.
    pub swap: u64,
    /// The newest swap that it was late for.
    pub late: Option<FleetLate>,
}

/// Steps in which a node did not run what the whole job did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetLate {
    /// The number of the swap.
    pub swap: u64,
    /// The first of the steps.
    pub from_step: u64,
    /// The step from which it runs the swap; none while it does not.
    pub until_step: Option<u64>,
    /// Why.
    pub why: String,
}

/// A swap of a whole job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetSwap {
    /// Counts the swaps of the whole job from 1.
    pub number: u64,
    /// What the plan is called; none for default clocks.
    pub plan: Option<String>,
    /// The step at which every node changes.
    pub step: u64,
    /// Who asked for it.
    pub by_uid: Uid,
    /// Where.
    pub by_node: String,
    /// What became of it.
    pub outcome: FleetOutcome,
}

/// What became of a swap of a whole job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FleetOutcome {
    /// Not every node has it ready.
    Open,
    /// Every node changes at its step.
    Committed,
    /// None does, for this reason.
    Aborted(String),
}

/// A swap of a whole job that was decided or, with `wait`, done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetSwapped {
    /// Counts the swaps of the whole job from 1.
    pub number: u64,
    /// What the plan is called; none for default clocks.
    pub plan: Option<String>,
    /// The step at which every node changes.
    pub step: u64,
    /// The nodes of the job.
    pub nodes: u32,
    /// How many of them have changed already.
    pub changed: u32,
    /// Those that were late for it, each with the reason.
    pub late: Vec<String>,
}

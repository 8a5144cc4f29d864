//! What the agent reports about itself and the jobs that it watches. `pfoctl status --json` prints
//! these very fields.

use serde::{Deserialize, Serialize};

use pfo_vocabulary::{Instruction, JobName, Pid, Rank, Stage, Uid};

use crate::agent::first_plan::FirstPlan;
use crate::agent::fleet::FleetJob;
use crate::status::ConfigStatus;

/// The agent and the jobs that the peer may see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: Pid,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// Why it does not reach `pfod`, if it does not.
    pub pfod_problem: Option<String>,
    /// The jobs that it watches, by owner and name.
    pub jobs: Vec<WatchedJob>,
    /// Its configuration.
    #[serde(default)]
    pub config: ConfigStatus,
    /// Why what it measures for `savings` is not written, if it is not.
    #[serde(default)]
    pub ledger_problem: Option<String>,
}

/// What the agent knows of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WatchedJob {
    /// Its name.
    pub job: JobName,
    /// Whose it is.
    pub uid: Uid,
    /// The frontier that is loaded for stragglers.
    pub frontier: Option<FrontierStatus>,
    /// How far what is measured is from what the plan predicts, if it is too far.
    pub drift: Option<DriftStatus>,
    /// The ranks whose instructions take longer than was profiled, in the order of their numbers.
    pub slow: Vec<SlowRank>,
    /// How the slowdown that was allowed is kept, if somebody asked for that.
    pub guard: Option<GuardStatus>,
    /// The whole job, if it has ranks on other nodes, too, and the agent is in a fleet.
    pub fleet: Option<FleetJob>,
    /// The plan that is kept for it, with which it begins.
    pub first_plan: Option<FirstPlan>,
}

/// The guard of a job. Shares are of a step's time at default clocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GuardStatus {
    /// The slowdown that is allowed.
    pub max_slowdown: f64,
    /// The slowdown of the plan that runs, over the newest comparisons; none before the first.
    pub slowdown: Option<f64>,
    /// The step after the last comparison.
    pub compared_at_step: Option<u64>,
    /// The slowdown of the plan that was replaced by the one that runs, which was made for what is
    /// allowed.
    pub corrected: Option<f64>,
    /// The slowdown of a plan for which the job was brought to default clocks.
    pub given_up: Option<f64>,
}

/// A rank whose instructions take longer than was profiled, for several steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlowRank {
    /// The rank.
    pub rank: Rank,
    /// By which share they take longer.
    pub share: f64,
}

/// A frontier as status shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FrontierStatus {
    /// Where it came from, as the client called it.
    pub label: String,
    /// How many plans it has from the fastest to the one of least energy. Those that are only for
    /// stragglers do not count.
    pub plans: u32,
    /// The step time that its fastest plan predicts, in seconds.
    pub fastest_s: f64,
    /// The step time that its plan of least energy predicts, in seconds.
    pub slowest_s: f64,
    /// How many times the fastest iteration the straggler's takes that the job runs a plan for.
    pub straggler: Option<f64>,
    /// Whether the agent answers ranks that it finds slow.
    pub auto: bool,
    /// What its plans trade: some of them, fastest first, both ends included.
    #[serde(default)]
    pub curve: Vec<CurvePoint>,
}

/// What a plan predicts, for a controller that divides watts among jobs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// The time of a step, in seconds.
    pub step_s: f64,
    /// The mean power meanwhile, in watts, of one rank of each stage.
    pub power_w: f64,
}

/// How far what a job measures is from what its plan predicts. Shares are of what was predicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriftStatus {
    /// The number of the plan.
    pub plan: u32,
    /// By which share steps take longer, negative if they take less.
    pub time: f64,
    /// By which share they take more energy, negative if they take less; none if not every stage is
    /// on this node.
    pub energy: Option<f64>,
    /// The instructions whose own time is too far from the profile, as far as that is known.
    pub instructions: Vec<DriftedInstruction>,
    /// The ranks whose steps take an energy that is too far from what they took first with this
    /// plan. Which of their instructions do is only known where they are recorded.
    pub ranks: Vec<DriftedRank>,
}

/// A rank whose steps take another energy than they did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriftedRank {
    /// The rank.
    pub rank: Rank,
    /// By which share they take more, negative if they take less.
    pub energy: f64,
}

/// An instruction that takes another time than was profiled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriftedInstruction {
    /// The stage.
    pub stage: Stage,
    /// The kind.
    pub instruction: Instruction,
    /// By which share it takes longer, negative if it takes less.
    pub time: f64,
}

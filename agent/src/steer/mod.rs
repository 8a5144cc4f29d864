//! The one hand on a running job: everything that the agent does with one is done through [`Steer`].
//!
//! Nothing above it knows on how many nodes a job runs. `here` steers a job through the `pfod` of this
//! node, `fleet` a job that has ranks on other nodes, with the agents there.

mod attempts;
mod error;
mod fleet;
mod here;
#[cfg(test)]
pub(crate) mod model;
#[cfg(test)]
pub(crate) mod scenario;
mod slowdown;
mod steering;

use std::fmt;
use std::pin::Pin;

use pfo_fleet::{Digest, Guard, Node, Run, Standing};
use pfo_planner::{Conditions, Profile};
use pfo_protocol::{
    AgentResponse, FleetSwapped, JobView, PlanStatus, RecordedTrial, Refusal, RefusalCode,
    SwapTarget, TrialLength, TrialResult, TrialRun,
};
use pfo_store::Note;

use crate::fleet::{AllSlow, Members, Noted};
use crate::job::JobKey;
use crate::ledger::Compared;
use crate::pfod::Asker;
use crate::record::TrialSamples;
use crate::straggler::{Labelled, SlowStages};

pub(crate) use self::attempts::Attempts;
pub(crate) use self::error::SteerError;
pub(crate) use self::here::Standings;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::here::alone;
pub(crate) use self::slowdown::allow_slowdown;
pub(crate) use self::steering::{Steering, check_all_here};

/// What a verb of [`Steer`] does, and what becomes of it.
pub(crate) type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T, SteerError>> + Send + 'a>>;

/// What may be done with a running job.
pub(crate) trait Steer: fmt::Debug + Send + Sync {
    /// Which job it is.
    fn key(&self) -> &JobKey;

    /// The job with all of its nodes.
    ///
    /// # Errors
    /// If it is not on this node, or some of its nodes are missing.
    fn look(&self) -> Doing<'_, WholeJob>;

    /// What it runs for good, and what stands beside that.
    ///
    /// # Errors
    /// If that is not known.
    fn stands(&self) -> Doing<'_, Stands>;

    /// The guard of what it runs, if it has one.
    fn guard(&self) -> Doing<'_, Option<Guard>>;

    /// The plan of something that it runs or ran; none for what has no clock table.
    ///
    /// # Errors
    /// If it is not known any more.
    fn plan_of<'a>(&'a self, run: &'a Run) -> Doing<'a, Option<Labelled>>;

    /// A plan as something that the job can run.
    ///
    /// # Errors
    /// If it does not fit the job, or its other nodes cannot be handed it.
    fn publish(&self, plan: Labelled) -> Doing<'_, Run>;

    /// Every rank changes to something else at the same step, as a user requested it.
    ///
    /// # Errors
    /// If the job cannot run that, or is held for measuring.
    fn swap(&self, request: SwapRequest) -> Doing<'_, Swapped>;

    /// The job changes, or what stands beside that, or both.
    ///
    /// # Errors
    /// As [`swap`](Self::swap), and if the job has changed since.
    fn change(&self, change: Change) -> Doing<'_, Swapped>;

    /// A comparison of the plan that the job runs with default clocks, unless the job has changed since
    /// what it [`stands`](Self::stands) at had this number.
    fn compare(&self, number: u64) -> Box<dyn Comparison>;

    /// Whether it is for this node to do what was requested on another one: the other one is gone.
    fn is_for_this_node<'a>(&'a self, node: &'a Node) -> Doing<'a, bool>;

    /// What this node is called among those of the job.
    fn node(&self) -> &Node;

    /// What was noted of the job for its other nodes; none if it has no others.
    fn noted(&self, note: Note) -> Doing<'_, Option<Noted>>;

    /// The bytes of that.
    ///
    /// # Errors
    /// If they cannot be had.
    fn fetch_noted<'a>(&'a self, noted: &'a Noted) -> Doing<'a, Vec<u8>>;

    /// Notes something of the job for its other nodes; nothing if it has no others.
    ///
    /// # Errors
    /// If it cannot be noted.
    fn note(&self, note: Note, label: String, bytes: Vec<u8>) -> Doing<'_, ()>;

    /// Hands what was profiled to the nodes of the job, stage by stage; nothing if it has no others.
    ///
    /// # Errors
    /// If they cannot be handed it.
    fn publish_profile<'a>(&'a self, profile: &'a Profile) -> Doing<'a, Vec<Digest>>;

    /// What another node has profiled of the stages that are on this one.
    ///
    /// # Errors
    /// If it cannot be had.
    fn fetch_profile<'a>(&'a self, digests: &'a [Digest]) -> Doing<'a, Profile>;

    /// Says which stages on this node do not run as they were profiled.
    fn note_slow(&self, stages: &SlowStages, conditions: &Conditions);

    /// The slow stages of all nodes; none if not all of them can be seen.
    fn all_slow(&self) -> Doing<'_, Option<AllSlow>>;

    /// The right to measure the job. Nobody else loses it before the first turn.
    fn hold(&self, by: Asker) -> Box<dyn Hold>;
}

/// A job that is held for measuring. When this is dropped, the job returns to default clocks.
pub(crate) trait Hold: fmt::Debug + Send {
    /// Runs some steps under a setting, and measures them. If the future is dropped, so is the hold.
    ///
    /// # Errors
    /// If the turn cannot begin, or not all of it was measured.
    fn turn(&mut self, turn: Turn) -> Doing<'_, Measured>;

    /// Whether the job is held: after the first turn, and as long as nothing has ended the hold.
    fn is_held(&self) -> bool;

    /// Takes a comparison of a plan with default clocks that its turns have been, for the ledger of
    /// savings of every node.
    fn take(&mut self, plan: PlanStatus, compared: Compared);

    /// Ends the hold: the job runs what the last turn ran, or default clocks, for good. Returns the plan
    /// that runs on this node.
    ///
    /// # Errors
    /// If the setting of the last turn cannot be kept.
    fn end(&mut self, keep: bool) -> Doing<'_, Option<PlanStatus>>;
}

/// A comparison under way. When this is dropped before its end, the job runs its plan again.
pub(crate) trait Comparison: fmt::Debug + Send {
    /// Measures what the job takes with this.
    ///
    /// # Errors
    /// If the turn cannot begin, or not all of it was measured.
    fn turn(&mut self, run: Run, length: TrialLength) -> Doing<'_, ComparedTurn>;

    /// Ends it with what it has shown: the job runs this for good, beside which this stands. The ledgers
    /// of all nodes take what was measured.
    ///
    /// # Errors
    /// If the job cannot run that; then it runs its plan again.
    fn end(
        self: Box<Self>,
        outcome: (Run, Standing),
        compared: Option<pfo_fleet::Compared>,
    ) -> Doing<'static, ()>;
}

/// One turn of a comparison.
#[derive(Clone, Debug)]
pub(crate) struct ComparedTurn {
    /// The step from which on the job ran it.
    pub(crate) step: u64,
    pub(crate) trial: TrialResult,
}

/// What a job runs for good.
#[derive(Clone, Debug)]
pub(crate) struct Stands {
    /// The job, with its ranks on this node.
    pub(crate) view: JobView,
    /// Counts the changes of the job.
    pub(crate) number: u64,
    /// The step of the newest one.
    pub(crate) step: u64,
    /// Whether the job is held for measuring.
    pub(crate) in_trial: bool,
    pub(crate) run: Run,
    pub(crate) standing: Standing,
}

/// What a job is to change to.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) by: Asker,
    pub(crate) run: Run,
    pub(crate) standing: Standing,
    /// The number of what it [`stands`](Steer::stands) at: if it has another one, the reason is gone.
    pub(crate) after: u64,
    /// Answer only when every rank has changed.
    pub(crate) wait: bool,
}

/// The first step that no rank of a job on this node has begun.
pub(crate) fn next_step(job: &JobView) -> u64 {
    let begun = job.ranks.iter().filter_map(|rank| rank.step).max();
    begun.map_or(0, |step| step.saturating_add(1))
}

/// The agent itself, in the name of a job's owner.
pub(crate) fn owner(key: &JobKey) -> Asker {
    Asker { uid: key.uid, pid: None, administrator: false }
}

/// A plan whose clocks nobody knows cannot be run again.
pub(crate) fn no_table() -> Refusal {
    Refusal::new(RefusalCode::NoPlan, "its clocks are not known", "see `pfoctl status`")
}

/// Some steps under one setting.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) setting: TrialRun,
    pub(crate) length: TrialLength,
    /// Whether to keep the instructions one by one.
    pub(crate) samples: bool,
}

/// What a turn has measured, and its instructions one by one.
pub(crate) type Measured = (RecordedTrial, TrialSamples);

/// A job, and all of its nodes.
#[derive(Clone, Debug)]
pub(crate) struct WholeJob {
    /// Its ranks on this node.
    pub(crate) view: JobView,
    /// Every node, with its ranks and their GPUs.
    pub(crate) members: Members,
}

/// What a job is to change to.
#[derive(Clone, Debug)]
pub(crate) struct SwapRequest {
    pub(crate) by: Asker,
    pub(crate) target: SwapTarget,
    /// The step; none for the first one that is possible.
    pub(crate) at_step: Option<u64>,
    /// The slowdown that is allowed from then on; none to change nothing about that.
    pub(crate) max_slowdown: Option<f64>,
    /// Answer only when every rank has changed.
    pub(crate) wait: bool,
}

/// A swap that was decided or, if that was wanted, done.
#[derive(Clone, Debug)]
pub(crate) enum Swapped {
    /// Of a job of this node.
    Here(pfo_protocol::Swapped),
    /// Of all nodes of a job.
    Fleet(FleetSwapped),
}

impl Swapped {
    /// What the job changes to.
    pub(crate) fn label(&self) -> &str {
        let label = match self {
            Self::Here(swapped) => swapped.plan.as_ref().map(|plan| plan.label.as_str()),
            Self::Fleet(swapped) => swapped.plan.as_deref(),
        };
        label.unwrap_or("default clocks")
    }

    /// The step at which every rank changes.
    pub(crate) fn step(&self) -> u64 {
        match self {
            Self::Here(swapped) => swapped.step,
            Self::Fleet(swapped) => swapped.step,
        }
    }
}

impl From<Swapped> for AgentResponse {
    fn from(swapped: Swapped) -> Self {
        match swapped {
            Swapped::Here(swapped) => Self::Swapped(swapped),
            Swapped::Fleet(swapped) => Self::FleetSwapped(swapped),
        }
    }
}

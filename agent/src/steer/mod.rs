//! The one hand on a running job: everything that the agent does with one is done through [`Steer`].
//!
//! Nothing above it knows on how many nodes a job runs. `here` steers a job through the `pfod` of this
//! node, `fleet` a job that has ranks on other nodes, with the agents there.

mod error;
mod fleet;
mod here;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use pfo_protocol::{
    AgentResponse, FleetSwapped, JobView, PlanStatus, RecordedTrial, SwapTarget, TrialLength,
    TrialRun,
};

use crate::fleet::{Fleet, Members, fleet_of};
use crate::job::JobKey;
use crate::ledger::{Compared, Ledger};
use crate::pfod::{Asker, Pfod, Questions};
use crate::record::TrialSamples;
use crate::straggler::Labelled;

pub(crate) use self::error::SteerError;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::here::alone;

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

    /// Every rank changes to something else, at the same step.
    ///
    /// # Errors
    /// If the job cannot run that, or is held for measuring.
    fn swap(&self, request: SwapRequest) -> Doing<'_, Swapped>;

    #[allow(dead_code, reason = "the next change to guards calls it")]
    /// The plan that the job runs; none at default clocks, and for what has no clock table.
    ///
    /// # Errors
    /// If that is not known.
    fn plan(&self) -> Doing<'_, Option<Labelled>>;

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

/// The jobs that this node can steer.
#[derive(Debug)]
pub(crate) struct Steering {
    pub(crate) pfod: Pfod,
    pub(crate) questions: Arc<Questions>,
    pub(crate) fleet: Option<Arc<Fleet>>,
    pub(crate) ledger: Arc<Ledger>,
}

impl Steering {
    /// The hand on a job.
    pub(crate) fn of(self: &Arc<Self>, job: &JobView) -> Arc<dyn Steer> {
        match fleet_of(self.fleet.as_ref(), job) {
            Some(fleet) => Arc::new(fleet::OnNodes::of(fleet, job)),
            None => Arc::new(here::Here::of(self, job)),
        }
    }

    /// That of a node without a `pfod`, for tests.
    #[cfg(test)]
    pub(crate) fn of_no_pfod(directory: &std::path::Path) -> Arc<Self> {
        let pfod = Pfod::at(directory.join("no-pfod.sock"));
        let settings = crate::settings::InForce::new(Default::default(), Default::default());
        Arc::new(Self {
            questions: Arc::new(Questions::to(pfod.clone())),
            pfod,
            fleet: None,
            ledger: Arc::new(Ledger::under(directory, Arc::new(settings))),
        })
    }
}

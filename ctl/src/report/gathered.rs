//! What pfo-agent knows of a job beside its ledger: the stored profile, the frontier, and what a tune found.

use pfo_experiment::Report;
use pfo_planner::{Combine, Frontier, Noise, Plan, Profile};
use pfo_protocol::{
    AgentRequest, AgentResponse, JobSelector, JobStatus, ProfileSelector, TuneReport,
};

use crate::daemons::Daemons;
use crate::error::Error;
use crate::planning::measured::Measured;
use crate::profile::stored::described;

/// The frontier that was loaded for the job, by a tune or by hand.
///
/// # Errors
/// If there is none, or it is no frontier that this program reads.
pub(super) fn frontier(daemons: &Daemons, job: &JobStatus) -> Result<Frontier, Error> {
    let mut agent = daemons.agent()?;
    match agent.ask(AgentRequest::FrontierRead(selector(job)))? {
        AgentResponse::FrontierFile { frontier, .. } => Ok(Frontier::from_bytes(&frontier)?),
        other => Err(agent.unexpected(&other).into()),
    }
}

/// What the last tune of a job found, as far as this program reads it.
#[derive(Default)]
pub(super) struct Tuned {
    pub(super) report: Option<Report>,
    pub(super) plan: Option<Plan>,
    pub(super) frontier: Option<Frontier>,
}

/// What the last tune of the job found.
///
/// # Errors
/// If there was none, or it is not over.
pub(super) fn tuned(daemons: &Daemons, job: &JobStatus) -> Result<Tuned, Error> {
    let mut agent = daemons.agent()?;
    match agent.ask(AgentRequest::TuneRead(selector(job)))? {
        AgentResponse::TuneReport(found) => {
            let TuneReport { report, plan, frontier } = *found;
            Ok(Tuned {
                report: serde_json::from_slice(&report).ok(),
                plan: plan.and_then(|json| Plan::from_json(&json).ok()),
                frontier: frontier.and_then(|bytes| Frontier::from_bytes(&bytes).ok()),
            })
        }
        other => Err(agent.unexpected(&other).into()),
    }
}

/// The stored profile of the model that is named like the job, and what to call it.
///
/// # Errors
/// If none is stored.
pub(super) fn profile(daemons: &Daemons, job: &JobStatus) -> Result<(Profile, String), Error> {
    let (model, uid) = (job.job.clone(), Some(job.uid));
    let selector = ProfileSelector { model, uid, gpus: None, partition: None };
    let mut agent = daemons.agent()?;
    match agent.ask(AgentRequest::ProfileRead(selector))? {
        AgentResponse::Profile { profile, csv } => {
            let name = described(&profile.key);
            Ok((Measured::of(&csv, &name, Combine::Mean, Noise::Off)?.profile, name))
        }
        other => Err(agent.unexpected(&other).into()),
    }
}

/// A job and no other user's of that name.
pub(super) fn selector(job: &JobStatus) -> JobSelector {
    JobSelector { job: job.job.clone(), uid: Some(job.uid) }
}

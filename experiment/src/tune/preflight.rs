//! What can be known to be in the way before anything is measured.

use std::collections::BTreeSet;

use pfo_protocol::{AgentRequest, AgentResponse, JobSelector, JobStatus, RankStatus, Stage};

use crate::bench::Bench;
use crate::error::TuneError;
use crate::subject::{Subject, unexpected};

/// Checks that every stage of a job can be measured, and the energy of every GPU. A job that has no rank
/// yet is left to be refused when it is measured.
///
/// # Errors
/// If one cannot, or a daemon does not say.
pub async fn preflight<B: Bench>(bench: &mut B, job: JobSelector) -> Result<(), TuneError> {
    let mut subject = Subject::new(bench, job);
    let spans_nodes = subject.spans_nodes().await?;
    let status = subject.status().await?;
    let Some(job) = subject.in_status(&status) else { return Ok(()) };
    let missing = missing_stages(job);
    if !spans_nodes && !missing.is_empty() && !job.ranks.is_empty() {
        return Err(TuneError::elsewhere(&job.job, &missing, job.pp_degree));
    }
    let without = without_counter(job);
    if !without.is_empty() {
        let (job, gpus) = (job.job.clone(), without.join(", "));
        return Err(TuneError::NoEnergyCounter { job, gpus });
    }
    Ok(())
}

fn missing_stages(job: &JobStatus) -> Vec<Stage> {
    let here: BTreeSet<Stage> = job.ranks.iter().map(|rank| rank.stage).collect();
    let all = (0..job.pp_degree).filter_map(|stage| Stage::try_from(stage).ok());
    all.filter(|stage| !here.contains(stage)).collect()
}

fn without_counter(job: &JobStatus) -> Vec<String> {
    // Before its first step a rank may not have read its counter.
    let lacks_energy = |rank: &&RankStatus| rank.step.is_some() && rank.energy_j.is_none();
    let ranks = job.ranks.iter().filter(lacks_energy);
    ranks.map(|rank| format!("{} of rank {}", rank.gpu_uuid, rank.rank)).collect()
}

impl<B: Bench> Subject<'_, B> {
    /// Whether the agents of several nodes measure the job together.
    pub(crate) async fn spans_nodes(&mut self) -> Result<bool, TuneError> {
        let status = match self.agent(AgentRequest::Status).await? {
            AgentResponse::Status(status) => status,
            other => return Err(unexpected(&other)),
        };
        let (job, owner) = (self.job(), self.selector().uid);
        Ok(status.jobs.iter().any(|watched| {
            let is_it = watched.job == job && owner.is_none_or(|owner| owner == watched.uid);
            is_it && watched.fleet.is_some()
        }))
    }
}

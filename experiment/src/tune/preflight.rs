//! What can be known to be in the way before anything is measured.

use std::collections::BTreeSet;

use pfo_protocol::{
    AgentRequest, AgentResponse, GpuStatus, JobSelector, JobStatus, RankStatus, Stage,
};

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
    measures_energy(job, &status.gpus)
}

fn missing_stages(job: &JobStatus) -> Vec<Stage> {
    let here: BTreeSet<Stage> = job.ranks.iter().map(|rank| rank.stage).collect();
    let all = (0..job.pp_degree).filter_map(|stage| Stage::try_from(stage).ok());
    all.filter(|stage| !here.contains(stage)).collect()
}

fn measures_energy(job: &JobStatus, gpus: &[GpuStatus]) -> Result<(), TuneError> {
    let of_rank = |rank: &RankStatus| {
        let gpu = gpus.iter().find(|gpu| gpu.uuid == rank.gpu_uuid)?;
        let meter = gpu.meter.as_ref().filter(|meter| meter.withheld)?;
        Some(format!("{} of rank {} ({})", gpu.uuid, rank.rank, meter.reason))
    };
    let without: Vec<_> = job.ranks.iter().filter_map(of_rank).collect();
    if without.is_empty() {
        return Ok(());
    }
    Err(TuneError::NoEnergyCounter { job: job.job.clone(), gpus: without.join(", ") })
}

impl<B: Bench> Subject<'_, B> {
    /// Checks that no energy counter of the job's GPUs on this node is in doubt.
    ///
    /// # Errors
    /// The GPUs whose counters are, and why.
    pub(crate) async fn check_meters(&mut self) -> Result<(), TuneError> {
        let status = self.status().await?;
        self.in_status(&status).map_or(Ok(()), |job| measures_energy(job, &status.gpus))
    }

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

//! Whether the energy of a job can be measured at all, before anything is measured.

use pfo_protocol::{JobStatus, RankStatus};

use super::TrialError;
use crate::arguments::JobArguments;
use crate::daemons::Daemons;
use crate::error::Error;

/// Checks that every GPU of a job on this node has an energy counter.
///
/// # Errors
/// If one has none. A job that does not exist is left to be refused by the daemon that measures it.
pub(crate) fn require_energy_counters(daemons: &Daemons, job: &JobArguments) -> Result<(), Error> {
    let jobs = daemons.pfod()?.status()?.jobs;
    let missing = job.find(&jobs).map(without_counter).unwrap_or_default();
    match missing.is_empty() {
        true => Ok(()),
        false => {
            let (job, gpus) = (job.name().clone(), missing.join(", "));
            Err(TrialError::NoEnergyCounter { job, gpus }.into())
        }
    }
}

fn without_counter(job: &JobStatus) -> Vec<String> {
    // Before its first step a rank may not have read its counter.
    let lacks_energy = |rank: &&RankStatus| rank.step.is_some() && rank.energy_j.is_none();
    let ranks = job.ranks.iter().filter(lacks_energy);
    ranks.map(|rank| format!("{} of rank {}", rank.gpu_uuid, rank.rank)).collect()
}

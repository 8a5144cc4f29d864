//! Whether a whole pipeline is on this node. `pfod` changes the clocks of its own ranks only, so
//! the effect of a plan on a pipeline that spans nodes cannot be measured.

use std::collections::BTreeSet;

use pfo_protocol::{JobStatus, Stage};

use super::TrialError;
use crate::arguments::JobArguments;
use crate::daemons::Daemons;
use crate::error::Error;

/// Checks that each stage of a job has a rank here.
///
/// # Errors
/// If one has none. A job that does not exist is left to be refused by the daemon that measures it.
pub(crate) fn require_every_stage(daemons: &Daemons, job: &JobArguments) -> Result<(), Error> {
    let jobs = daemons.pfod()?.status()?.jobs;
    let Some(status) = job.find(&jobs) else { return Ok(()) };
    let missing = missing_stages(status);
    if missing.is_empty() || status.ranks.is_empty() {
        return Ok(());
    }
    let missing: Vec<String> = missing.iter().map(Stage::to_string).collect();
    let (job, missing) = (status.job.clone(), missing.join(", "));
    Err(TrialError::StagesElsewhere { job, missing, stages: status.pp_degree }.into())
}

fn missing_stages(job: &JobStatus) -> Vec<Stage> {
    let here: BTreeSet<Stage> = job.ranks.iter().map(|rank| rank.stage).collect();
    let all = (0..job.pp_degree).filter_map(|stage| Stage::try_from(stage).ok());
    all.filter(|stage| !here.contains(stage)).collect()
}

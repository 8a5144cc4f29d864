//! Whether a whole pipeline is on this node. A daemon changes the clocks of its own ranks only, so what a
//! plan makes of a pipeline that goes on elsewhere cannot be measured.

use std::collections::BTreeSet;

use pfo_protocol::{JobSelector, JobStatus, Request, Response};

use crate::connection::Connection;
use crate::error::Error;
use crate::job::JobArguments;
use crate::socket::Sockets;
use crate::user;

/// Checks that each stage of a job has a rank here.
///
/// # Errors
/// If one has none. That there is no such job is left to be said by whoever measures it.
pub(crate) fn require_every_stage(sockets: &Sockets, job: &JobArguments) -> Result<(), Error> {
    let mut connection = Connection::open(sockets)?;
    let jobs = match connection.ask(Request::Status)? {
        Response::Status(status) => status.jobs,
        other => return Err(connection.other_answer(&format!("{other:?}"))),
    };
    let Some(status) = meant(&jobs, &job.selector()) else { return Ok(()) };
    let missing = missing_stages(status);
    if missing.is_empty() || status.ranks.is_empty() {
        return Ok(());
    }
    let missing: Vec<String> = missing.iter().map(u32::to_string).collect();
    Err(Error::StagesElsewhere {
        job: status.job.clone(),
        missing: missing.join(", "),
        stages: status.pp_degree,
    })
}

/// The user's own, or another one for who may see it.
fn meant<'a>(jobs: &'a [JobStatus], selector: &JobSelector) -> Option<&'a JobStatus> {
    let named = || jobs.iter().filter(|job| job.job == selector.job);
    let uid = selector.uid.unwrap_or_else(user::own);
    let other = || named().next().filter(|_| selector.uid.is_none());
    named().find(|job| job.uid == uid).or_else(other)
}

fn missing_stages(job: &JobStatus) -> Vec<u32> {
    let here: BTreeSet<u32> = job.ranks.iter().map(|rank| rank.stage).collect();
    (0..job.pp_degree).filter(|stage| !here.contains(stage)).collect()
}

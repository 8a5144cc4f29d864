//! Which job a command means: its name and, where several users have one of that name, whose.

use clap::Args;
use pfo_protocol::{JobName, JobSelector, JobStatus, Uid};

use crate::exit::Exit;
use crate::explained::Explained;
use crate::user;

/// A job as arguments name it.
#[derive(Args, Clone)]
pub(crate) struct JobArguments {
    /// The job, as `pfoctl status` shows it
    job: JobName,

    /// The owner of the job, by name or number [default: yourself; for an administrator the owner
    /// of the only job of that name]
    #[arg(long, value_name = "USER", value_parser = user::parse)]
    user: Option<Uid>,
}

/// A job that `pfod` does not show.
#[derive(Debug, thiserror::Error)]
#[error("no job named {job} runs on this node, or it is not yours to see")]
pub(crate) struct NoSuchJob {
    pub(crate) job: String,
}

impl Explained for NoSuchJob {
    fn exit(&self) -> Exit {
        Exit::Refused
    }

    fn remedy(&self) -> Option<String> {
        Some("`pfoctl status` lists the jobs".to_owned())
    }
}

impl JobArguments {
    /// A job that other arguments name.
    pub(crate) fn of(job: JobName, user: Option<Uid>) -> Self {
        Self { job, user }
    }

    /// The job as the protocol names it.
    pub(crate) fn selector(&self) -> JobSelector {
        JobSelector { job: self.job.clone(), uid: self.user }
    }

    pub(crate) fn name(&self) -> &JobName {
        &self.job
    }

    /// The job among these: the user's own or, if it has none of that name, the first one. One with ranks
    /// goes before one without, as for the daemons.
    pub(crate) fn find<'a>(&self, jobs: &'a [JobStatus]) -> Option<&'a JobStatus> {
        let is_meant =
            |job: &&JobStatus| job.job == self.job && self.user.is_none_or(|user| user == job.uid);
        let own = user::own();
        jobs.iter().filter(is_meant).min_by_key(|job| (job.ranks.is_empty(), job.uid != own))
    }

    /// Whether the job is among these.
    pub(crate) fn is_among(&self, jobs: &[(&JobName, Uid)]) -> bool {
        let is_it = |(job, uid): &(&JobName, Uid)| {
            **job == self.job && self.user.is_none_or(|user| user == *uid)
        };
        jobs.iter().any(is_it)
    }

    /// The error for a job that is not there.
    pub(crate) fn missing(&self) -> NoSuchJob {
        NoSuchJob { job: self.job.to_string() }
    }
}

//! Which job a command means: its name and, where several users have one of that name, whose.

use clap::Args;
use pfo_protocol::{JobName, JobSelector};

use crate::user;

/// A job as arguments name it.
#[derive(Args, Clone)]
pub(crate) struct JobArguments {
    /// The job, as `pfoctl status` names it
    job: JobName,

    /// Whose job, by name or number [default: your own; for an administrator the only one of that
    /// name]
    #[arg(long, value_name = "USER", value_parser = user::parse)]
    user: Option<u32>,
}

impl JobArguments {
    /// A job that other arguments name.
    pub(crate) fn of(job: JobName, user: Option<u32>) -> Self {
        Self { job, user }
    }

    /// The job as the protocol names it.
    pub(crate) fn selector(&self) -> JobSelector {
        JobSelector { job: self.job.clone(), uid: self.user }
    }

    /// The job's name.
    pub(crate) fn name(&self) -> &JobName {
        &self.job
    }
}

//! Which job is meant: its owner and its name.

use std::fmt;

use pfo_protocol::{JobName, JobSelector, JobView, Uid};

/// What tells the jobs of a node apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct JobKey {
    /// Whose job it is.
    pub(crate) uid: Uid,
    /// Its name.
    pub(crate) name: JobName,
}

impl JobKey {
    pub(crate) fn of(job: &JobView) -> Self {
        Self { uid: job.uid, name: job.job.clone() }
    }

    /// How a request to `pfod` names this job and no other.
    pub(crate) fn selector(&self) -> JobSelector {
        JobSelector { job: self.name.clone(), uid: Some(self.uid) }
    }
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {} of user {}", self.name, self.uid)
    }
}

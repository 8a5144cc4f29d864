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

/// A job that `pfod` does not show, or more than one of that name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoSuchJob {
    #[error("no job named {0} runs on this node, or it is not yours to see")]
    None(String),
    #[error("several users have a job {job}, among them {one} and {other}")]
    Several { job: JobName, one: Uid, other: Uid },
    #[error("no power budget takes anything from job {0}: none covers it")]
    WithoutBudget(JobName),
}

impl Explained for NoSuchJob {
    fn exit(&self) -> Exit {
        Exit::Refused
    }

    fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::None(_) => "`pfoctl status` lists the jobs",
            Self::Several { .. } => "name its user with --user",
            Self::WithoutBudget(_) => "`pfoctl budget status` lists the budgets",
        };
        Some(remedy.to_owned())
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

    /// As [`find`](Self::find), where the name alone says which job is meant.
    ///
    /// # Errors
    /// If several users have a job of that name, the caller has none, and `--user` names nobody.
    pub(crate) fn only<'a>(
        &self,
        jobs: &'a [JobStatus],
    ) -> Result<Option<&'a JobStatus>, NoSuchJob> {
        let Some(found) = self.find(jobs) else { return Ok(None) };
        let is_other = |job: &&JobStatus| {
            job.job == self.job
                && job.uid != found.uid
                && job.ranks.is_empty() == found.ranks.is_empty()
        };
        let is_meant = self.user.is_some() || found.uid == user::own();
        match jobs.iter().find(is_other).filter(|_| !is_meant) {
            Some(other) => {
                let job = self.job.clone();
                Err(NoSuchJob::Several { job, one: found.uid, other: other.uid })
            }
            None => Ok(Some(found)),
        }
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
        NoSuchJob::None(self.job.to_string())
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Status;

    use super::*;

    #[test]
    fn a_job_that_two_other_users_have_is_none_of_them_without_a_user() {
        let Status { jobs, .. } =
            serde_json::from_str(include_str!("../../tests/golden/status.json")).unwrap();
        let first = jobs.iter().find(|job| !job.ranks.is_empty()).unwrap();
        let of_user = |uid| JobStatus { uid, ..first.clone() };
        let [one, other] = [user::own().0 + 1, user::own().0 + 2].map(Uid);
        let named = |user| JobArguments::of(first.job.clone(), user);
        let uid = |user, jobs: &[JobStatus]| {
            named(user)
                .only(jobs)
                .map(|job| job.map(|job| job.uid))
                .map_err(|error| error.to_string())
        };
        let both = [of_user(one), of_user(other)];
        let several =
            format!("several users have a job {}, among them {one} and {other}", first.job);
        assert_eq!(uid(None, &both), Err(several));
        assert_eq!(uid(Some(other), &both), Ok(Some(other)));
        assert_eq!(uid(None, &both[..1]), Ok(Some(one)));
        let own = [of_user(one), of_user(user::own())];
        assert_eq!(uid(None, &own), Ok(Some(user::own())));
        let mut ended = both;
        ended[0].ranks.clear();
        assert_eq!(uid(None, &ended), Ok(Some(other)), "the other one runs");
    }
}

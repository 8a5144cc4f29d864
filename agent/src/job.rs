//! Which job is meant, whether it is held, and what it runs.

use std::fmt;

use pfo_protocol::{
    JobName, JobSelector, JobStatus, JobView, MeasuredBy, PlanStatus, Refusal, RefusalCode, Uid,
};

/// What identifies a job of the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct JobKey {
    /// Whose job it is.
    pub(crate) uid: Uid,
    /// Its name.
    pub(crate) name: JobName,
}

impl JobKey {
    /// The job among those of a status.
    pub(crate) fn status_in<'a>(&self, jobs: &'a [JobStatus]) -> Option<&'a JobStatus> {
        jobs.iter().find(|job| (&job.job, job.uid) == (&self.name, self.uid))
    }

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

/// Checks that no connection holds a job for measuring.
///
/// # Errors
/// If one does.
pub(crate) fn check_free(job: &JobView) -> Result<(), Refusal> {
    let Some(MeasuredBy { uid, pid }) = job.measured_by else { return Ok(()) };
    let (what, remedy) = match pid {
        Some(pid) => (format!("user {uid} (process {pid})"), "try again when that is over"),
        None => (
            format!("a sweep, tune or guard of user {uid}"),
            "try again: a guard compares for some steps; `pfoctl profile pause` ends a sweep, \
             `pfoctl tune JOB --stop` a tune",
        ),
    };
    let message = format!("{what} holds job {} for measuring", job.job);
    Err(Refusal::new(RefusalCode::LimitReached, message, remedy))
}

/// The refusal for a job that this node does not have.
pub(crate) fn no_job(key: &JobKey) -> Refusal {
    let message = format!("no rank of {key} is on this node");
    let remedy = "`pfoctl status` lists the jobs, and says so if the node is drained";
    Refusal::new(RefusalCode::UnknownJob, message, remedy)
}

/// The swap that every rank has taken up and measured, if another swap waits for its step.
pub(crate) fn before_swap(job: &JobView) -> Option<u64> {
    let swap = job.ranks.first()?.swap;
    let is_measured = job.ranks.iter().all(|rank| rank.swap == swap && rank.window.is_some());
    (swap != job.swap && is_measured && job.measured_by.is_none()).then_some(swap)
}

/// The job with the plan that it runs, and not with the one that it changes to at a later step. `pfod`
/// says that plan only in the windows of the status.
pub(crate) fn as_it_runs(job: &JobView, jobs: &[JobStatus]) -> Option<JobView> {
    let swap = before_swap(job)?;
    let status = JobKey::of(job).status_in(jobs)?;
    let plan = status.windows.last().filter(|_| status.swap_at_step.is_some())?.plan.clone();
    Some(JobView { plan, swap, ..job.clone() })
}

/// Whether no rank of a job has yet to take up the newest swap.
pub(crate) fn is_taken_up(job: &JobView) -> bool {
    job.ranks.iter().all(|rank| rank.swap == job.swap)
}

/// The plan that every rank of a job runs, if nobody measures the job.
pub(crate) fn running(job: &JobView) -> Option<&PlanStatus> {
    let runs_it = !job.ranks.is_empty() && is_taken_up(job);
    let is_free = job.measured_by.is_none();
    job.plan.as_ref().filter(|plan| runs_it && is_free && plan.suspended.is_none())
}

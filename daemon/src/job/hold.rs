//! A job held for measuring: while somebody holds it, nobody else changes what it runs. However the hold
//! ends, the job goes back to default clocks at its next step, unless the holder keeps what ran last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use pfo_protocol::{Pid, PlanStatus, Refusal, RefusalCode, Uid};
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::{Job, Jobs, Measurer};

/// How often to try to change a job that is in a swap.
const SWAP_POLL: Duration = Duration::from_millis(5);

static HOLDS: AtomicU64 = AtomicU64::new(0);

/// The right to measure a job, until it is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    jobs: Arc<Jobs>,
    job: Arc<Job>,
    by: Measurer,
    runtime: Handle,
}

impl Hold {
    /// Holds a job for a user. To be called on the runtime, or on a thread of it.
    ///
    /// # Errors
    /// If somebody else holds it.
    fn take(jobs: &Arc<Jobs>, job: Arc<Job>, uid: Uid, pid: Option<Pid>) -> Result<Self, Refusal> {
        let by = Measurer { hold: HOLDS.fetch_add(1, Relaxed), uid, pid };
        {
            let mut members = job.members();
            members.check_free(&job.key.name)?;
            members.held = Some(by);
        }
        job.notice_change();
        tracing::info!(
            uid = uid.0, pid = pid.map(|pid| pid.0), job = %job.key.name,
            "user {uid} holds job {} for measuring", job.key.name
        );
        Ok(Self { jobs: Arc::clone(jobs), job, by, runtime: Handle::current() })
    }

    /// The job.
    pub(crate) fn job(&self) -> &Arc<Job> {
        &self.job
    }

    /// Who holds it.
    pub(crate) fn by(&self) -> Measurer {
        self.by
    }

    /// Ends the hold. With `keep` the job continues with what the last trial ran. Returns what it runs or
    /// changes to.
    ///
    /// # Errors
    /// If the last trial ran one clock for everything, which is only for measuring.
    fn end(self, keep: bool) -> Result<Option<PlanStatus>, Box<(Self, Refusal)>> {
        if !keep {
            return Ok(None);
        }
        match self.job.keep_trial(self.by) {
            Ok(plan) => {
                self.jobs.keep(&self.job);
                Ok(plan)
            }
            Err(refusal) => Err(Box::new((self, refusal))),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let (jobs, job, by) = (Arc::clone(&self.jobs), Arc::clone(&self.job), self.by);
        self.runtime.spawn(async move {
            loop {
                match job.release(by) {
                    Ok(true) => jobs.keep(&job),
                    Ok(false) => {}
                    Err(_) => {
                        sleep(SWAP_POLL).await;
                        continue;
                    }
                }
                break;
            }
            tracing::info!(
                uid = by.uid.0, pid = by.pid.map(|pid| pid.0), job = %job.key.name,
                "user {} no longer holds job {}", by.uid, job.key.name
            );
        });
    }
}

impl Job {
    fn keep_trial(&self, by: Measurer) -> Result<Option<PlanStatus>, Refusal> {
        let mut members = self.members();
        if let Some(plan) = members.plans.current()
            && plan.is_uniform()
        {
            return Err(Refusal::new(
                RefusalCode::NoPlan,
                format!("job {} runs {}, which is only for measuring", self.key.name, plan.label),
                "end the trials without keeping it, and swap to a plan",
            ));
        }
        members.plans.keep_trial();
        members.held.take_if(|holder| *holder == by);
        let kept = members.plans.current().map(|plan| plan.status());
        drop(members);
        self.notice_change();
        Ok(kept)
    }

    /// Brings the job to default clocks, if a trial has left it at others, and releases it. Returns whether
    /// anything changed.
    fn release(&self, by: Measurer) -> Result<bool, Refusal> {
        let mut members = self.members();
        if members.held != Some(by) {
            return Ok(false);
        }
        let change = members.plans.trial().is_some() && members.plans.current().is_some();
        if change {
            self.begin_swap(&mut members, None, 0)?;
        }
        members.held = None;
        drop(members);
        self.notice_change();
        Ok(change)
    }
}

/// The jobs that one connection holds.
#[derive(Debug, Default)]
pub(crate) struct Holds(Vec<Hold>);

impl Holds {
    /// Whether it holds any.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The hold of a job, taken if the connection does not have it yet.
    ///
    /// # Errors
    /// If somebody else holds the job.
    pub(crate) fn take(
        &mut self,
        jobs: &Arc<Jobs>,
        job: Arc<Job>,
        uid: Uid,
        pid: Option<Pid>,
    ) -> Result<&Hold, Refusal> {
        let index = match self.index_of(&job) {
            Some(index) => index,
            None => {
                self.0.push(Hold::take(jobs, job, uid, pid)?);
                self.0.len() - 1
            }
        };
        Ok(&self.0[index])
    }

    fn index_of(&self, job: &Arc<Job>) -> Option<usize> {
        self.0.iter().position(|hold| Arc::ptr_eq(&hold.job, job))
    }

    /// Ends the hold of a job.
    ///
    /// # Errors
    /// If the connection does not hold it, or what it runs cannot be kept.
    pub(crate) fn end(
        &mut self,
        job: &Arc<Job>,
        keep: bool,
    ) -> Result<Option<PlanStatus>, Refusal> {
        let index = self.index_of(job).ok_or_else(|| {
            Refusal::new(
                RefusalCode::UnknownJob,
                format!("this connection does not hold job {} for measuring", job.key.name),
                "run a trial first",
            )
        })?;
        self.0.swap_remove(index).end(keep).map_err(|not_ended| {
            let (hold, refusal) = *not_ended;
            self.0.push(hold);
            refusal
        })
    }
}

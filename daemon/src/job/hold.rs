//! A job held for measuring: only the holder changes what it runs, unless it gives way. However the hold
//! ends, the job returns to default clocks at its next step, or to the plan that was compared, unless the
//! holder keeps what ran last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use pfo_policy::{Caller, Permit};
use pfo_protocol::{MeasuredBy, PlanStatus, Refusal, RefusalCode};
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::{Job, Jobs, Measurer};

/// Retry interval for changing a job that is in a swap.
const SWAP_POLL: Duration = Duration::from_millis(5);

static HOLDS: AtomicU64 = AtomicU64::new(0);

/// The right to measure a job, until it is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    jobs: Arc<Jobs>,
    pub(crate) job: Arc<Job>,
    /// The holder.
    pub(crate) by: Measurer,
    /// Who asked for it.
    pub(crate) caller: Caller,
    runtime: Handle,
}

impl Hold {
    /// Holds a job for a user. Call it on the runtime, or on a thread of it.
    ///
    /// # Errors
    /// If another holder has it.
    fn take(
        jobs: &Arc<Jobs>,
        job: Arc<Job>,
        permit: &Permit,
        gives_way: bool,
    ) -> Result<Self, Refusal> {
        let by = MeasuredBy { uid: permit.uid(), pid: permit.waiting_pid() };
        let by = Measurer { hold: HOLDS.fetch_add(1, Relaxed), by, gives_way };
        {
            let mut members = job.members();
            members.check_free(&job.key.name, true)?;
            members.held = Some(by);
        }
        job.notice_change();
        let caller = permit.caller().clone();
        log(&caller, &job, "holds");
        Ok(Self { jobs: Arc::clone(jobs), job, by, caller, runtime: Handle::current() })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let (jobs, job, by) = (Arc::clone(&self.jobs), Arc::clone(&self.job), self.by);
        let caller = self.caller.clone();
        self.runtime.spawn(async move {
            while job.release(by).is_err() {
                sleep(SWAP_POLL).await;
            }
            jobs.keep(&job);
            log(&caller, &job, "no longer holds");
        });
    }
}

fn log(user: &Caller, job: &Job, what: &str) {
    tracing::info!(
        uid = user.peer.uid.0, pid = user.peer.pid.0, job = %job.key.name,
        door = user.agent.map(|_| "agent"), via_pid = user.agent.map(|pid| pid.0),
        "{user} {what} job {} for measuring", job.key.name
    );
}

impl Job {
    /// Makes the job continue with what the last trial ran. Returns that.
    ///
    /// # Errors
    /// If the hold is over, or the last trial ran one clock for everything, which is only for measuring.
    fn keep_trial(&self, by: Measurer) -> Result<Option<PlanStatus>, Refusal> {
        let mut members = self.members();
        members.check_held(&self.key.name, by)?;
        if let Some(plan) = members.plans.current()
            && plan.is_for_measuring()
        {
            let (name, label) = (&self.key.name, &plan.label);
            let message = format!("job {name} runs {label}, which is only for measuring");
            let remedy = "end the trials without keeping it, and swap to a plan";
            return Err(Refusal::new(RefusalCode::NoPlan, message, remedy));
        }
        members.plans.keep_trial();
        members.held = None;
        let kept = members.plans.current().map(|plan| plan.status());
        drop(members);
        self.notice_change();
        Ok(kept)
    }

    /// Returns the job to default clocks, or to the plan that was compared, if a trial has left it at
    /// others, and releases it.
    fn release(&self, by: Measurer) -> Result<(), Refusal> {
        let mut members = self.members();
        if members.held != Some(by) {
            return Ok(());
        }
        // Ranks may have joined since.
        let plan = members.plans.before_trial().filter(|plan| members.check(plan).is_ok());
        if members.plans.trial().is_some() && members.plans.current() != plan.as_ref() {
            self.begin_swap(&mut members, plan, None)?;
        }
        members.plans.keep_trial();
        members.held = None;
        drop(members);
        self.notice_change();
        Ok(())
    }
}

/// The jobs that one connection holds.
#[derive(Debug, Default)]
pub(crate) struct Holds(Vec<Hold>);

impl Holds {
    /// Whether the connection holds any job.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The hold of a job, taken if the connection does not have it yet.
    ///
    /// # Errors
    /// If another holder has the job.
    pub(crate) fn take(
        &mut self,
        jobs: &Arc<Jobs>,
        job: Arc<Job>,
        permit: &Permit,
        gives_way: bool,
    ) -> Result<&Hold, Refusal> {
        let index = self.index_of(&job).unwrap_or(self.0.len());
        if index == self.0.len() {
            self.0.push(Hold::take(jobs, job, permit, gives_way)?);
        }
        Ok(&self.0[index])
    }

    fn index_of(&self, job: &Arc<Job>) -> Option<usize> {
        self.0.iter().position(|hold| Arc::ptr_eq(&hold.job, job))
    }

    /// Ends the hold of a job. With `keep` the job continues with what the last trial ran. Returns
    /// what the job runs or changes to.
    ///
    /// # Errors
    /// If the connection does not hold it, or what it runs cannot be kept.
    pub(crate) fn end(
        &mut self,
        job: &Arc<Job>,
        keep: bool,
    ) -> Result<Option<PlanStatus>, Refusal> {
        let index = self.index_of(job).ok_or_else(|| {
            let name = &job.key.name;
            let message = format!("this connection does not hold job {name} for measuring");
            Refusal::new(RefusalCode::UnknownJob, message, "run a trial first")
        })?;
        let Hold { jobs, job, by, .. } = &self.0[index];
        let kept = if keep { job.keep_trial(*by)? } else { None };
        jobs.keep(job);
        self.0.swap_remove(index);
        Ok(kept)
    }
}

#[cfg(test)]
mod tests {
    use pfo_policy::{Action, Authority, Config};
    use pfo_protocol::{Pid, SwapTarget, TrialRun, Uid};
    use pfo_service::{Door, NodeAccounts, Peer};
    use tempfile::TempDir;
    use tokio::runtime::Builder;
    use tokio::task::yield_now;

    use super::super::example::{member, table};
    use super::super::{JobKey, jobs_in};
    use super::*;

    fn permit(uid: u32, is_waiting: bool) -> Permit {
        let config = Config::parse("[[rule]]\nusers = ['*']", "pfod.toml".as_ref()).unwrap();
        let (uid, person) = (Uid(uid), Uid(uid));
        let peer = Peer { uid, person, pid: Pid(3), groups: Vec::new(), cgroups: Vec::new() };
        let caller = Caller { is_waiting, ..Caller::new(peer, Door::Users) };
        Authority::new(&config, "node", &NodeAccounts).permit(&caller, Action::SeeStatus).unwrap()
    }

    fn jobs() -> (TempDir, Arc<Jobs>, Arc<Job>) {
        let directory = tempfile::tempdir().unwrap();
        let jobs = jobs_in(directory.path());
        let job = jobs.find_or_create(JobKey { uid: Uid(7), name: "j".parse().unwrap() }, 1);
        (directory, Arc::new(jobs), job)
    }

    fn run(job: &Job, run: TrialRun) {
        let plan = job.fit(run, usize::MAX).unwrap();
        let mut members = job.members();
        job.begin_swap(&mut members, plan, None).unwrap();
        members.plans.begin_trial(None);
    }

    fn plan() -> TrialRun {
        TrialRun::Plan { label: "trial".into(), table: table(&[[900, 900]]) }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    async fn until_free(job: &Job) {
        while job.members().held.is_some() {
            yield_now().await;
        }
    }

    #[test]
    fn while_somebody_holds_a_job_nobody_else_changes_what_it_runs() {
        let (_directory, jobs, job) = jobs();
        block_on(async {
            let mut holds = Holds::default();
            holds.take(&jobs, Arc::clone(&job), &permit(7, true), false).unwrap();
            let by = holds.take(&jobs, Arc::clone(&job), &permit(7, true), false).unwrap().by;
            assert_eq!(job.members().held, Some(by), "the connection holds it already");
            let refusal = job.swap(SwapTarget::DefaultClocks, (None, None), 0).unwrap_err();
            assert_eq!(refusal.message, "user 7 (process 3) holds job j for measuring");
            let mut others = Holds::default();
            let refusal =
                others.take(&jobs, Arc::clone(&job), &permit(0, false), false).unwrap_err();
            assert_eq!(refusal.code, RefusalCode::LimitReached);
            assert!(others.is_empty() && !holds.is_empty());
            drop(holds);
            until_free(&job).await;
            assert!(others.take(&jobs, Arc::clone(&job), &permit(0, false), false).is_ok());
            let refusal = job.swap(SwapTarget::DefaultClocks, (None, None), 0).unwrap_err();
            assert!(refusal.message.starts_with("user 0 (pfo-agent) holds"), "{refusal}");
        });
    }

    #[test]
    fn a_connection_that_ends_brings_its_job_to_default_clocks() {
        let (_directory, jobs, job) = jobs();
        block_on(async {
            let mut holds = Holds::default();
            holds.take(&jobs, Arc::clone(&job), &permit(7, true), false).unwrap();
            run(&job, plan());
            drop(holds);
            until_free(&job).await;
            assert!(job.members().plans.current().is_none());
            assert!(job.members().plans.trial().is_none());
        });
    }

    #[test]
    fn a_hold_ends_only_after_the_swap_that_is_under_way() {
        let (_directory, jobs, job) = jobs();
        let rank = member(0, 0);
        job.join(rank.clone()).unwrap();
        block_on(async {
            let mut holds = Holds::default();
            holds.take(&jobs, Arc::clone(&job), &permit(7, true), false).unwrap();
            run(&job, plan());
            rank.session.progress.begin_step(0);
            drop(holds);
            sleep(SWAP_POLL * 3).await;
            assert!(job.members().held.is_some());
            rank.session.progress.swap.store(1, Relaxed);
            until_free(&job).await;
            assert!(job.members().plans.current().is_none());
        });
    }

    #[test]
    fn a_trial_that_is_kept_stays_and_one_clock_for_everything_is_not_kept() {
        let (_directory, jobs, job) = jobs();
        block_on(async {
            let mut holds = Holds::default();
            let unknown = holds.end(&job, true).unwrap_err();
            assert_eq!(unknown.code, RefusalCode::UnknownJob);
            holds.take(&jobs, Arc::clone(&job), &permit(7, true), false).unwrap();
            run(&job, TrialRun::Uniform(pfo_protocol::Mhz(900)));
            assert!(holds.end(&job, true).unwrap_err().message.contains("only for measuring"));
            assert!(job.members().held.is_some(), "it is held on");
            run(&job, plan());
            let kept = holds.end(&job, true).unwrap().unwrap();
            assert_eq!(kept.label, "trial");
            until_free(&job).await;
            let current = job.members().plans.current().map(|plan| plan.label.clone());
            assert_eq!(current.as_deref(), Some("trial"));
        });
    }
}

//! The guards of the jobs that this node can steer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pfo_fleet::Guard;
use pfo_protocol::{GuardStatus, JobView, Refusal, RefusalCode};
use pfo_service::People;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::budget::Budgets;
use crate::guard::runner::{Allowed, JobGuard};
use crate::job::JobKey;
use crate::pfod::Asker;
use crate::settings::InForce;
use crate::steer::{Steer, Steering, allow_slowdown};
use crate::straggler::Stragglers;

/// Guards that one person may have.
const MOST_PER_PERSON: usize = 64;

/// How often to look at the jobs.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What guards need to measure jobs, and to decide.
#[derive(Debug)]
pub(crate) struct Guards {
    pub(crate) steering: Arc<Steering>,
    pub(crate) people: Arc<People>,
    pub(crate) stragglers: Arc<Stragglers>,
    pub(crate) settings: Arc<InForce>,
    pub(crate) budgets: Arc<Budgets>,
}

impl Guards {
    /// Guards a job, in place of an earlier guard, or guards it no longer.
    ///
    /// # Errors
    /// If the person has too many, or it cannot be kept.
    pub(crate) async fn set(
        &self,
        by: Asker,
        job: &JobView,
        max_slowdown: Option<f64>,
    ) -> Result<Option<GuardStatus>, Refusal> {
        if max_slowdown.is_some() {
            self.check_room(&JobKey::of(job)).await?;
        }
        allow_slowdown(&*self.steering.of(job), by, max_slowdown).await?;
        Ok(max_slowdown.map(|max_slowdown| GuardStatus { max_slowdown, ..GuardStatus::default() }))
    }

    async fn check_room(&self, key: &JobKey) -> Result<(), Refusal> {
        let standings = self.steering.standings(None).await;
        let is_own = |other: &JobKey| self.people.are_one(key.uid, other.uid);
        let guarded = standings.iter().filter(|(_, standing)| standing.guard.is_some());
        let own = guarded.filter(|(other, _)| *other != key && is_own(other)).count();
        if own < MOST_PER_PERSON {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalCode::LimitReached,
            format!("user {} has guards on {own} jobs", key.uid),
            "end one with `pfoctl plan guard JOB --off`",
        ))
    }

    /// Guards jobs for as long as the agent runs.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut guarding: BTreeMap<JobKey, JoinHandle<()>> = BTreeMap::new();
        loop {
            // Guards of jobs over several nodes stand in the store.
            if self.steering.fleet.is_none() {
                self.steering.standings.until_guarded().await;
            }
            sleep(LOOK_EVERY).await;
            guarding.retain(|_, task| !task.is_finished());
            let Ok(jobs) = self.steering.questions.jobs().await else { continue };
            for view in &jobs {
                let key = JobKey::of(view);
                if guarding.contains_key(&key) {
                    continue;
                }
                let job = self.steering.of(view);
                if is_guarded(&*job).await {
                    let guard = Arc::clone(&self).guard(key.clone());
                    guarding.insert(key, tokio::spawn(guard));
                }
            }
        }
    }

    /// Guards one job for as long as that is for this node.
    async fn guard(self: Arc<Self>, key: JobKey) {
        let began = Instant::now();
        let mut guard = JobGuard::new(Arc::clone(&self.stragglers));
        loop {
            if let Ok(view) = self.steering.questions.job(&key).await {
                let Some(view) = view else { return };
                let share = self.settings.now().config.guard.share();
                let in_budget = || self.budgets.binds(&key);
                let allowed = Allowed { share, in_budget: &in_budget };
                if !guard.look(&*self.steering.of(&view), allowed, began.elapsed()).await {
                    return;
                }
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// Whether it is for this node to compare what a job runs.
async fn is_guarded(job: &dyn Steer) -> bool {
    match job.guard().await {
        Ok(Some(guard)) => job.is_for_this_node(&guard.by_node).await.unwrap_or(false),
        _ => false,
    }
}

/// A guard, for status.
pub(crate) fn status_of(guard: &Guard) -> GuardStatus {
    let measured = guard.slowdowns.len();
    GuardStatus {
        max_slowdown: guard.max_slowdown,
        slowdown: (measured > 0).then(|| guard.slowdowns.iter().sum::<f64>() / measured as f64),
        compared_at_step: guard.compared_at,
        corrected: guard.corrected,
        given_up: guard.given_up,
    }
}

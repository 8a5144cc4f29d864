//! What each job of this node runs for good, and what stands beside that: in memory, and on disk where
//! the next agent needs it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pfo_fleet::{Guard, Run, Standing};
use pfo_protocol::{JobView, Refusal, Uid};
use pfo_service::{blocking, lock};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::fleet::AllSlow;
use crate::job::JobKey;
use crate::refusal::not_written;
use crate::steer::here::file::{StandingFiles, StandingRecord};
use crate::straggler::Labelled;

/// How long what stands is kept for a job without ranks: trainers reconnect, and restart.
const FORGET_AFTER: Duration = Duration::from_secs(15 * 60);

/// The guards, straggler answers and budgets of the jobs of this node.
#[derive(Debug)]
pub(crate) struct Standings {
    jobs: Mutex<BTreeMap<JobKey, Arc<JobStanding>>>,
    files: StandingFiles,
    /// The guard, straggler answer or budget of a job has changed.
    changed: Notify,
}

/// That of one job.
#[derive(Debug, Default)]
pub(super) struct JobStanding {
    /// Held by the one that changes what the job runs, or compares it.
    pub(super) changing: Arc<tokio::sync::Mutex<()>>,
    /// How many users wait to change what the job runs: a comparison ends.
    waiting: watch::Sender<u32>,
    state: Mutex<State>,
}

/// What is known of a job.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) record: StandingRecord,
    /// Whether what it runs was seen since the agent began.
    pub(super) is_seen: bool,
    pub(super) slow: AllSlow,
    left: Option<Instant>,
}

/// A user who waits to change what a job runs.
pub(super) struct Waiting<'a>(&'a watch::Sender<u32>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|users| *users = users.saturating_sub(1));
    }
}

impl JobStanding {
    /// Ends a comparison, also one between two of its turns, for as long as the result lives.
    pub(super) fn wait_for_change(&self) -> Waiting<'_> {
        self.waiting.send_modify(|users| *users = users.saturating_add(1));
        Waiting(&self.waiting)
    }

    /// Waits until a user waits.
    pub(super) async fn until_wanted(&self) {
        // It fails only if the sender is gone, which is here.
        let _ = self.waiting.subscribe().wait_for(|users| *users > 0).await;
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A plan that the job may have to run again.
    pub(super) fn kept_plan(&self, run: &Run) -> Option<Labelled> {
        let state = self.state();
        let kept = state.record.plans.iter().find(|(kept, _)| kept == run);
        kept.map(|(_, plan)| plan.clone())
    }

    pub(super) fn keep_plan(&self, run: &Run, plan: Labelled) {
        let mut state = self.state();
        if !state.record.plans.iter().any(|(kept, _)| kept == run) {
            state.record.plans.push((run.clone(), plan));
        }
    }
}

impl Standings {
    /// Those below the directory of what does not outlive the node's boot.
    pub(crate) fn under(runtime: &Path) -> Self {
        let files = StandingFiles::under(runtime);
        Self { jobs: Mutex::default(), files, changed: Notify::new() }
    }

    /// Continues with what an earlier agent left. Reads files.
    pub(crate) fn restore(&self) {
        for (key, record) in self.files.read() {
            let state = Mutex::new(State { record, ..State::default() });
            let job = JobStanding { state, ..JobStanding::default() };
            lock(&self.jobs).insert(key, Arc::new(job));
        }
    }

    pub(super) fn of(&self, key: &JobKey) -> Arc<JobStanding> {
        Arc::clone(lock(&self.jobs).entry(key.clone()).or_default())
    }

    /// The guard of what a job runs.
    pub(super) fn guard(&self, key: &JobKey) -> Option<Guard> {
        let known = lock(&self.jobs).get(key).cloned()?;
        let state = known.state();
        state.record.standing.guard.clone()
    }

    /// Waits until a plan has a guard: an agent that guards nothing does not wake up.
    pub(crate) async fn until_guarded(&self) {
        let is_guarded = |job: &Arc<JobStanding>| job.state().record.standing.guard.is_some();
        while !lock(&self.jobs).values().any(is_guarded) {
            self.changed.notified().await;
        }
    }

    /// Writes what the next agent needs of a job.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) async fn keep(&self, key: &JobKey, job: &JobStanding) -> Result<(), Refusal> {
        let record = {
            let mut state = job.state();
            state.record.drop_plans();
            state.record.clone()
        };
        self.changed.notify_one();
        let (files, of) = (self.files.clone(), key.clone());
        let written = blocking(move || files.write(&of, &record)).await?;
        written.map_err(|error| not_written("what stands beside the plan", &error))
    }

    /// The same after something has happened, whether or not it can be written.
    pub(super) async fn keep_if_possible(&self, key: &JobKey, job: &JobStanding) {
        if let Err(why) = self.keep(key, job).await {
            tracing::warn!(
                uid = key.uid.0, job = %key.name,
                "a restart of the agent will not know the guard and the straggler of {key}: {why}"
            );
        }
    }

    /// Looks which jobs are there, and forgets those that left long ago. Returns those of the others that
    /// have something beside their plan.
    pub(in crate::steer) fn see(&self, views: &[JobView]) -> Vec<JobKey> {
        let there = |key: &JobKey| {
            let mut ranks = views.iter().filter(|view| !view.ranks.is_empty());
            ranks.any(|view| JobKey::of(view) == *key)
        };
        let (mut present, mut forgotten) = (Vec::new(), Vec::new());
        lock(&self.jobs).retain(|key, job| {
            let mut state = job.state();
            if there(key) {
                state.left = None;
                if !state.record.is_empty() {
                    present.push(key.clone());
                }
                return true;
            }
            let left = *state.left.get_or_insert_with(Instant::now);
            let is_kept = !state.record.is_empty() && left.elapsed() < FORGET_AFTER;
            if !is_kept && !state.record.is_empty() {
                forgotten.push(key.clone());
            }
            is_kept
        });
        for key in forgotten {
            tracing::info!(
                uid = key.uid.0, job = %key.name,
                "forgot the guard and the straggler of {key}: its last rank left 15 minutes ago"
            );
            let _ = self.files.write(&key, &StandingRecord::default());
        }
        present
    }

    /// Those of one user or of all.
    pub(crate) fn all(&self, only_of: Option<Uid>) -> BTreeMap<JobKey, Standing> {
        let jobs = lock(&self.jobs);
        let shown = jobs.iter().filter(|(key, _)| only_of.is_none_or(|uid| uid == key.uid));
        let standing = |job: &JobStanding| job.state().record.standing.clone();
        let shown = shown.map(|(key, job)| (key.clone(), standing(job)));
        shown.filter(|(_, standing)| *standing != Standing::default()).collect()
    }

    /// What a job ran before the straggler that it runs a plan for, if it does; none within for default
    /// clocks.
    pub(crate) fn before_straggler(&self, key: &JobKey) -> Option<Option<Labelled>> {
        let known = lock(&self.jobs).get(key).cloned()?;
        let before = known.state().record.standing.straggler.as_ref()?.before.clone();
        Some(known.kept_plan(&before))
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    #[tokio::test]
    async fn a_user_who_came_between_two_turns_ends_the_comparison_until_the_change_is_made() {
        let job = JobStanding::default();
        let (one, another) = (job.wait_for_change(), job.wait_for_change());
        drop(one);
        job.until_wanted().await;
        drop(another);
        tokio::select! {
            biased;
            () = job.until_wanted() => panic!("nobody waits any more"),
            () = ready(()) => {}
        }
    }
}

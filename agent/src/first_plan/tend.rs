//! Seeing to it that `pfod` has the plan of every job that is not there, and what became of it when the
//! job came.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pfo_protocol::{FirstPlanState, JobView, Refusal, RefusalCode};
use pfo_service::blocking;
use tokio::time::timeout;

use crate::first_plan::kept::{FirstPlans, Kept, Whole};
use crate::job::JobKey;
use crate::journal;
use crate::pfod::{Asker, PfodError};
use crate::straggler::Labelled;

/// How long a job that has left continues with what it ran, if it is back: its connections, or `pfod`,
/// may have been away for a moment.
const LEFT_FOR_GOOD: Duration = Duration::from_secs(60);

/// How often `pfod` is asked whether it has a plan. It forgets that of a job without ranks 15 minutes
/// after it was asked last.
const ASK_EVERY: Duration = Duration::from_secs(5 * 60);

/// How often jobs are looked at, if none changes.
const LOOK_EVERY: Duration = Duration::from_secs(20);

impl FirstPlans {
    /// A job has changed, or `pfod` is back.
    pub(crate) fn see(&self) {
        if !self.kept().is_empty() {
            self.changed.notify_one();
        }
    }

    /// Tends every plan for as long as the agent runs.
    pub(crate) async fn run(self: &Arc<Self>) {
        loop {
            if !self.kept().is_empty() {
                self.tend_all().await;
            }
            let _ = timeout(LOOK_EVERY, self.changed.notified()).await;
        }
    }

    async fn tend_all(self: &Arc<Self>) {
        // What `pfod` does not say now it says in a moment.
        let Ok(jobs) = self.means.questions.jobs().await else { return };
        let keys: Vec<_> = self.kept().keys().cloned().collect();
        for key in keys {
            let job = jobs.iter().find(|job| JobKey::of(job) == key);
            match job.filter(|job| !job.ranks.is_empty()) {
                Some(job) => {
                    self.note_presence(&key, job);
                    self.tell_all_nodes(&key, job);
                }
                None => self.tend(&key).await,
            }
        }
    }

    /// The job is not on this node: `pfod` has to have its plan.
    async fn tend(&self, key: &JobKey) {
        let _turn = self.turns.take(key.uid).await;
        if !self.is_due(key) {
            return;
        }
        let plan = match self.plan_of(key).await {
            Ok(Some(plan)) => plan,
            Ok(None) => return,
            Err(refusal) => return self.note(key, FirstPlanState::Refused(refusal.message)),
        };
        if self.spans_nodes(&plan).await {
            return;
        }
        // Asked anew: a rank may have brought another plan since the jobs were looked at.
        let Ok((left, table)) = self.runs(key).await else { return };
        if left.as_ref().is_some_and(|job| !job.ranks.is_empty()) {
            return;
        }
        let runs = left.as_ref().and_then(|job| job.plan.as_ref());
        let is_sound =
            runs.is_some_and(|runs| runs.suspended.is_none() && runs.label == plan.label);
        let has_it = is_sound && table.as_ref() == Some(&plan.table);
        if !has_it && left.is_some() && !self.has_left_for_good(key) {
            return;
        }
        if !has_it {
            // The owner has to be allowed what the plan does.
            let owner = Asker { uid: key.uid, pid: None, administrator: false };
            match self.hand_over(owner, key, &plan).await {
                Ok(_) => {}
                Err(PfodError::Away(_)) => return,
                Err(PfodError::Refused(refusal)) => {
                    return self.note(key, FirstPlanState::Refused(refusal.message));
                }
            }
        }
        if let Some(kept) = self.kept().get_mut(key) {
            kept.handed_over = Some(Instant::now());
            // Why the last run did not begin with it stays until the next one does.
            if !matches!(kept.state, FirstPlanState::Refused(_)) {
                kept.state = FirstPlanState::Ready;
            }
        }
    }

    /// Whether it is time to ask `pfod` whether it has the plan.
    fn is_due(&self, key: &JobKey) -> bool {
        let mut plans = self.kept();
        let Some(kept) = plans.get_mut(key) else { return false };
        kept.whole = Whole::ToAsk;
        kept.absent_since.get_or_insert_with(Instant::now);
        kept.handed_over.is_none_or(|handed_over| handed_over.elapsed() >= ASK_EVERY)
    }

    /// Whether nobody comes back to what the job ran.
    fn has_left_for_good(&self, key: &JobKey) -> bool {
        let since = self.kept().get(key).and_then(|kept| kept.absent_since);
        since.is_some_and(|since| since.elapsed() >= LEFT_FOR_GOOD)
    }

    /// A rank has brought another plan, and is about to come.
    pub(super) fn wait_for_rank(&self, key: &JobKey) {
        if let Some(kept) = self.kept().get_mut(key) {
            (kept.absent_since, kept.handed_over) = (Some(Instant::now()), None);
        }
    }

    /// The job is on this node: whether it began with the plan.
    fn note_presence(&self, key: &JobKey, job: &JobView) {
        let state = {
            let mut plans = self.kept();
            let Some(kept) = plans.get_mut(key) else { return };
            (kept.absent_since, kept.handed_over) = (None, None);
            state_of(kept, job)
        };
        self.note(key, state);
    }

    /// Notes what became of a plan, and reports it once if the job does not begin with it.
    pub(super) fn note(&self, key: &JobKey, state: FirstPlanState) {
        let mut plans = self.kept();
        let Some(kept) = plans.get_mut(key).filter(|kept| kept.state != state) else { return };
        if let FirstPlanState::Refused(why) = &state {
            tracing::warn!(
                name: journal::FIRST_PLAN_REFUSED,
                uid = key.uid.0, job = %key.name,
                "{key} does not run plan {}, which is kept for it, and trains at default clocks: {why}",
                kept.label
            );
        }
        kept.state = state;
    }

    /// The plan that is kept for a job.
    ///
    /// # Errors
    /// If its file cannot be read any more.
    pub(super) async fn plan_of(&self, key: &JobKey) -> Result<Option<Labelled>, Refusal> {
        if !self.kept().contains_key(key) {
            return Ok(None);
        }
        let (files, of) = (self.means.files.clone(), key.clone());
        let record = blocking(move || files.read(&of)).await?.map_err(|why| {
            let message = format!("the plan that is kept for {key} cannot be read: {why}");
            Refusal::new(RefusalCode::NoPlan, message, "load it again")
        });
        Ok(Some(record?.plan))
    }
}

/// What became of a plan whose job is on this node.
fn state_of(kept: &Kept, job: &JobView) -> FirstPlanState {
    let began = job.plan.as_ref().filter(|plan| plan.label == kept.label);
    match began.map(|plan| plan.suspended.clone()) {
        Some(Some(why)) => FirstPlanState::Refused(why),
        Some(None) => FirstPlanState::Begun,
        // It began with the plan, and was swapped to something else since.
        None if kept.state == FirstPlanState::Begun => FirstPlanState::Begun,
        None => match &kept.state {
            FirstPlanState::Refused(why) => FirstPlanState::Refused(why.clone()),
            _ => FirstPlanState::NextRun,
        },
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::PlanStatus;

    use super::super::file::{FirstPlanFiles, FirstPlanRecord};
    use super::super::kept::tests::{first_plans, key, labelled};
    use super::*;
    use crate::straggler::tests::job as example_job;

    fn running(label: &str, suspended: Option<&str>) -> JobView {
        let plan = PlanStatus {
            number: 1,
            label: label.into(),
            predicted_time_s: None,
            predicted_energy_j: None,
            suspended: suspended.map(Into::into),
            power_limits_w: Vec::new(),
        };
        JobView { plan: Some(plan), ..example_job(2) }
    }

    fn kept_plans(directory: &std::path::Path) -> (FirstPlans, JobKey) {
        let key = key(7, "j");
        let (uid, job) = (key.uid, key.name.clone());
        let record = FirstPlanRecord { uid, job, loaded_unix_s: 9, plan: labelled(2, 900) };
        FirstPlanFiles::under(directory).write(record).unwrap();
        let plans = first_plans(directory);
        plans.restore();
        (plans, key)
    }

    #[test]
    fn what_a_job_began_with_is_told_from_what_it_was_swapped_to() {
        let directory = tempfile::tempdir().unwrap();
        let (plans, key) = kept_plans(directory.path());
        let state = |job: &JobView| {
            plans.note_presence(&key, job);
            plans.statuses(None)[&key].state.clone()
        };
        assert_eq!(state(&running("other", None)), FirstPlanState::NextRun);
        assert_eq!(state(&running("p", None)), FirstPlanState::Begun);
        assert_eq!(state(&running("other", None)), FirstPlanState::Begun);
        let refused = FirstPlanState::Refused("it does not fit".into());
        assert_eq!(state(&running("p", Some("it does not fit"))), refused);
        assert_eq!(state(&running("other", None)), refused);
    }

    #[test]
    fn the_next_agent_asks_all_nodes_as_its_own_only_in_the_jobs_next_run() {
        let directory = tempfile::tempdir().unwrap();
        let (plans, key) = kept_plans(directory.path());
        let whole = |plans: &FirstPlans| plans.kept()[&key].whole;
        assert_eq!(whole(&plans), Whole::MayBeAsked, "the agent before may have asked");
        plans.note_presence(&key, &example_job(2));
        assert_eq!(whole(&plans), Whole::MayBeAsked);
        assert!(plans.is_due(&key), "the job has left");
        assert_eq!(whole(&plans), Whole::ToAsk);
    }

    #[test]
    fn a_job_that_left_a_moment_ago_keeps_what_it_ran() {
        let directory = tempfile::tempdir().unwrap();
        let (plans, key) = kept_plans(directory.path());
        let due = |plans: &FirstPlans| (plans.is_due(&key), plans.has_left_for_good(&key));
        assert_eq!(due(&plans), (true, false), "pfod is asked at once, and told later");
        let long_ago = Instant::now().checked_sub(LEFT_FOR_GOOD);
        plans.kept().get_mut(&key).unwrap().absent_since = long_ago;
        assert_eq!(due(&plans), (true, true));
        plans.kept().get_mut(&key).unwrap().handed_over = Some(Instant::now());
        assert_eq!(due(&plans), (false, true));
        plans.wait_for_rank(&key);
        assert_eq!(due(&plans), (true, false));
    }
}

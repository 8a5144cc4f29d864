//! Stragglers of jobs that have ranks on other nodes. What such a job ran before stands in the store
//! beside what it runs, so that it can be brought back from any of its nodes.

use pfo_fleet::{Answered, Run, Standing, Terms, Watch};
use pfo_planner::Straggler;
use pfo_protocol::{FleetSwapped, FrontierStatus, JobView, Refusal, RefusalCode, Uid};

use crate::fleet::{AllSlow, Attempts, Change, Fleet, Stands, Unchanged, next_step};
use crate::job::JobKey;
use crate::straggler::Labelled;
use crate::straggler::frontier::JobFrontier;
use crate::straggler::jobs::Stragglers;

/// What stands for the plan for a straggler, in place of what stands for another one.
fn standing(stands: &Stands, job: &JobView, straggler: Option<Answered>) -> Standing {
    let guard = stands.standing.guard.as_ref().map(|guard| guard.anew(next_step(job)));
    Standing { guard, straggler, ..stands.standing.clone() }
}

/// What the job runs by itself.
fn own_run(stands: &Stands) -> Run {
    let answered = stands.standing.straggler.as_ref();
    answered.map_or(&stands.run, |answered| &answered.before).clone()
}

impl Stragglers {
    /// Has all of a job run the plan that takes a straggler's time.
    ///
    /// # Errors
    /// If no frontier is loaded for it, its plan does not fit, or the nodes do not agree on it.
    pub(crate) async fn answer_whole(
        &self,
        fleet: &Fleet,
        (by_uid, job): (Uid, &JobView),
        straggler: Straggler,
        wait: bool,
    ) -> Result<FleetSwapped, Refusal> {
        let known = self.find_whole(fleet, job).await?;
        let _changing = known.changing.lock().await;
        let plan = self.made_for(&known, straggler).await?;
        let attempts = Attempts::begin();
        loop {
            let stands = fleet.known_to_stand(&known.key).await?;
            let (factor, before) = (straggler.factor(), own_run(&stands));
            let answered = Answered { factor, before, found: Default::default() };
            let planned = (plan.clone(), answered);
            match self.run_whole(fleet, (by_uid, job), &stands, planned, wait).await {
                Ok(swapped) => return Ok(swapped),
                Err(why) => attempts.after(why).await?,
            }
        }
    }

    /// Has all of a job run what it ran before a straggler.
    ///
    /// # Errors
    /// If it runs a plan for none, or the nodes do not agree on it.
    pub(crate) async fn end_whole(
        &self,
        fleet: &Fleet,
        (by_uid, job): (Uid, &JobView),
        wait: bool,
    ) -> Result<FleetSwapped, Refusal> {
        let attempts = Attempts::begin();
        loop {
            match self.end_whole_now(fleet, (by_uid, job), wait).await {
                Ok(swapped) => return Ok(swapped),
                Err(why) => attempts.after(why).await?,
            }
        }
    }

    async fn end_whole_now(
        &self,
        fleet: &Fleet,
        (by_uid, job): (Uid, &JobView),
        wait: bool,
    ) -> Result<FleetSwapped, Unchanged> {
        let key = JobKey::of(job);
        let stands = fleet.known_to_stand(&key).await?;
        let answered = stands.standing.straggler.clone().ok_or_else(|| {
            let message = format!("job {} runs a plan for no straggler", job.job);
            Refusal::new(RefusalCode::NoPlan, message, "see `pfoctl status`")
        })?;
        let standing = Some(standing(&stands, job, None));
        let terms = Terms { after: Some(stands.number), standing, ..Terms::default() };
        fleet.change(&key, Change { run: Some(answered.before), by_uid, terms, wait }).await
    }

    /// Makes the swap that slow stages call for, if any does, as for a job of one node. None if there is
    /// nothing to swap.
    ///
    /// # Errors
    /// If the frontier has no plan for it, or the nodes do not agree on it.
    pub(crate) async fn answer_slow_whole(
        &self,
        fleet: &Fleet,
        job: &JobView,
        slow: &AllSlow,
    ) -> Result<Option<FleetSwapped>, Refusal> {
        let known = &self.find_whole(fleet, job).await?;
        known.note(slow.conditions.clone());
        let Ok(_changing) = known.changing.try_lock() else { return Ok(None) };
        let stands = fleet.known_to_stand(&known.key).await?;
        let asked = (known.key.uid, job);
        let is_answered = match &stands.standing.straggler {
            // That is left to the user who reported it.
            Some(answered) if answered.found.is_empty() => return Ok(None),
            answered => answered.is_some(),
        };
        let before = own_run(&stands);
        let Some(own) = fleet.plan_of(&known.key, &before).await? else { return Ok(None) };
        let (stages, conditions) = (slow.shares(), slow.conditions.clone());
        let make = move |frontier: &JobFrontier| {
            frontier.plan_for_slow_now(&own.table, &stages, &conditions)
        };
        match self.make(known, make).await? {
            Some((straggler, made)) => {
                let plan = made.said(&known.key);
                known.note_answer();
                let (factor, found) = (straggler.factor(), slow.stages.clone());
                let answered = (plan, Answered { factor, before, found });
                Ok(Some(self.run_whole(fleet, asked, &stands, answered, false).await?))
            }
            None if is_answered => Ok(Some(self.end_whole_now(fleet, asked, false).await?)),
            None => Ok(None),
        }
    }

    async fn run_whole(
        &self,
        fleet: &Fleet,
        (by_uid, job): (Uid, &JobView),
        stands: &Stands,
        (Labelled { label, table }, answered): (Labelled, Answered),
        wait: bool,
    ) -> Result<FleetSwapped, Unchanged> {
        let key = JobKey::of(job);
        let run = Some(fleet.publish(&key, job, label, &table).await?);
        let standing = Some(standing(stands, job, Some(answered)));
        let terms = Terms { after: Some(stands.number), standing, ..Terms::default() };
        fleet.change(&key, Change { run, by_uid, terms, wait }).await
    }

    /// Sets whether slow stages of a job are answered by this node.
    ///
    /// # Errors
    /// If no frontier is loaded for it, or the nodes do not agree on it.
    pub(crate) async fn set_auto_whole(
        &self,
        fleet: &Fleet,
        (by_uid, job): (Uid, &JobView),
        on: bool,
    ) -> Result<FrontierStatus, Refusal> {
        let attempts = Attempts::begin();
        loop {
            match self.set_auto_whole_now(fleet, (by_uid, job), on).await {
                Ok(status) => return Ok(status),
                Err(why) => attempts.after(why).await?,
            }
        }
    }

    async fn set_auto_whole_now(
        &self,
        fleet: &Fleet,
        (by_uid, job): (Uid, &JobView),
        on: bool,
    ) -> Result<FrontierStatus, Unchanged> {
        let known = self.find_whole(fleet, job).await?;
        let stands = fleet.known_to_stand(&known.key).await?;
        let watch = match on {
            true => {
                let profile = fleet.publish_profile(&known.key, known.profile()).await?;
                Some(Watch { by_node: fleet.name().clone(), profile })
            }
            false => None,
        };
        let status = FrontierStatus { auto: on, ..known.status() };
        if watch == stands.standing.watch {
            return Ok(status);
        }
        // Without the watch nobody would bring the job back.
        let found = stands.standing.straggler.as_ref();
        let ends = !on && found.is_some_and(|answered| !answered.found.is_empty());
        let (run, beside) = if ends {
            (own_run(&stands), standing(&stands, job, None))
        } else {
            (stands.run.clone(), stands.standing.clone())
        };
        let standing = Some(Standing { watch, ..beside });
        let terms = Terms { after: Some(stands.number), standing, ..Terms::default() };
        let change = Change { run: Some(run), by_uid, terms, wait: false };
        fleet.change(&known.key, change).await?;
        Ok(status)
    }
}

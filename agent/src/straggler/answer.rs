//! Has a job run the plan that takes a straggler's time, and afterwards what it ran before. That stands
//! beside what the job runs, so that any agent of the job brings it back.

use pfo_fleet::{Answered, Run, Standing, Watch};
use pfo_planner::Straggler;
use pfo_protocol::{ClockTable, FrontierStatus, JobView, Refusal, RefusalCode};

use crate::fleet::AllSlow;
use crate::pfod::Asker;
use crate::steer::{Attempts, Change, Stands, Steer, SteerError, Swapped, next_step, owner};
use crate::straggler::frontier::JobFrontier;
use crate::straggler::jobs::{FrontierJob, Stragglers};
use crate::straggler::table::Labelled;

/// What stands for the plan for a straggler, in place of what stands for another one.
fn standing(stands: &Stands, straggler: Option<Answered>) -> Standing {
    let step = next_step(&stands.view);
    let guard = stands.standing.guard.as_ref().map(|guard| guard.anew(step));
    Standing { guard, straggler, ..stands.standing.clone() }
}

/// What the job runs by itself.
fn own_run(stands: &Stands) -> Run {
    let answered = stands.standing.straggler.as_ref();
    answered.map_or(&stands.run, |answered| &answered.before).clone()
}

/// Whose change it is, and whether that waits until every rank has changed.
type Request = (Asker, bool);

impl Stragglers {
    /// Has a job run the plan that takes a straggler's time.
    ///
    /// # Errors
    /// If no frontier is loaded for it, or it cannot run the plan.
    pub(crate) async fn answer(
        &self,
        job: &dyn Steer,
        view: &JobView,
        straggler: Straggler,
        request: Request,
    ) -> Result<Swapped, Refusal> {
        let known = self.find(job, view).await?;
        let _changing = known.changing.lock().await;
        let plan = self.made_for(&known, straggler).await?;
        let attempts = Attempts::begin();
        loop {
            let stands = job.stands().await?;
            let (factor, before) = (straggler.factor(), own_run(&stands));
            let answered = Answered { factor, before, found: Default::default() };
            let planned = (plan.clone(), answered);
            match self.run_for_straggler(job, stands, planned, request).await {
                Ok(swapped) => return Ok(swapped),
                Err(why) => attempts.after(why).await?,
            }
        }
    }

    /// The plan that takes a straggler's time, as the job runs now.
    ///
    /// # Errors
    /// If it does not fit.
    async fn made_for(
        &self,
        known: &FrontierJob,
        straggler: Straggler,
    ) -> Result<Labelled, Refusal> {
        let conditions = known.conditions();
        if conditions.is_empty() {
            return self.make(known, move |frontier| frontier.plan_for(straggler)).await;
        }
        let make = move |frontier: &JobFrontier| frontier.plan_for_now(straggler, &conditions);
        Ok(self.make(known, make).await?.said(&known.key))
    }

    /// Has a job run what it ran before a straggler.
    ///
    /// # Errors
    /// If it runs a plan for none, or cannot run that any more.
    pub(crate) async fn end(&self, job: &dyn Steer, request: Request) -> Result<Swapped, Refusal> {
        let attempts = Attempts::begin();
        loop {
            match self.end_now(job, request).await {
                Ok(swapped) => return Ok(swapped),
                Err(why) => attempts.after(why).await?,
            }
        }
    }

    async fn end_now(&self, job: &dyn Steer, (by, wait): Request) -> Result<Swapped, SteerError> {
        let stands = job.stands().await?;
        let answered = stands.standing.straggler.clone().ok_or_else(|| {
            let message = format!("job {} runs a plan for no straggler", job.key().name);
            Refusal::new(RefusalCode::NoPlan, message, "see `pfoctl status`")
        })?;
        let (run, standing, after) = (answered.before, standing(&stands, None), stands.number);
        job.change(Change { by, run, standing, after, wait }).await
    }

    /// Makes the swap that slow stages call for, if any does: to a plan for what is measured now, or
    /// back. A straggler that a user reported is left to that user. None if there is nothing to swap.
    ///
    /// # Errors
    /// If the frontier has no plan for it, or the job cannot run that.
    pub(crate) async fn answer_slow(
        &self,
        job: &dyn Steer,
        view: &JobView,
        slow: &AllSlow,
    ) -> Result<Option<Swapped>, SteerError> {
        let known = &self.find(job, view).await?;
        known.note(slow.conditions.clone());
        let Ok(_changing) = known.changing.try_lock() else { return Ok(None) };
        let stands = job.stands().await?;
        let request = (owner(job.key()), false);
        let is_answered = match &stands.standing.straggler {
            // That is left to the user who reported it.
            Some(answered) if answered.found.is_empty() => return Ok(None),
            answered => answered.is_some(),
        };
        let before = own_run(&stands);
        let Some(own) = job.plan_of(&before).await? else { return Ok(None) };
        let (stages, conditions) = (slow.shares(), slow.conditions.clone());
        let make = move |frontier: &JobFrontier| {
            frontier.plan_for_slow_now(&own.table, &stages, &conditions)
        };
        match self.make(known, make).await? {
            Some((straggler, made)) => {
                let plan = made.said(&known.key);
                known.note_answer();
                let (factor, found) = (straggler.factor(), slow.stages.clone());
                let planned = (plan, Answered { factor, before, found });
                Ok(Some(self.run_for_straggler(job, stands, planned, request).await?))
            }
            None if is_answered => Ok(Some(self.end_now(job, request).await?)),
            None => Ok(None),
        }
    }

    async fn run_for_straggler(
        &self,
        job: &dyn Steer,
        stands: Stands,
        (plan, answered): (Labelled, Answered),
        (by, wait): Request,
    ) -> Result<Swapped, SteerError> {
        let run = job.publish(plan).await?;
        let standing = standing(&stands, Some(answered));
        job.change(Change { by, run, standing, after: stands.number, wait }).await
    }

    /// A faster plan for a job whose own, with this table, makes steps longer than allowed, by these
    /// shares of a step at default clocks.
    ///
    /// # Errors
    /// If its frontier has no faster plan for the job.
    pub(crate) async fn corrected(
        &self,
        known: &FrontierJob,
        own: ClockTable,
        figures: [f64; 2],
    ) -> Result<Labelled, Refusal> {
        let conditions = known.conditions();
        let make = move |frontier: &JobFrontier| frontier.corrected(&own, figures, &conditions);
        Ok(self.make(known, make).await?.said(&known.key))
    }

    /// Sets whether slow stages of a job are answered by this node.
    ///
    /// # Errors
    /// If no frontier is loaded for it, or that cannot be kept.
    pub(crate) async fn set_auto(
        &self,
        job: &dyn Steer,
        view: &JobView,
        (by, on): (Asker, bool),
    ) -> Result<FrontierStatus, Refusal> {
        let attempts = Attempts::begin();
        loop {
            match self.set_auto_now(job, view, (by, on)).await {
                Ok(status) => return Ok(status),
                Err(why) => attempts.after(why).await?,
            }
        }
    }

    async fn set_auto_now(
        &self,
        job: &dyn Steer,
        view: &JobView,
        (by, on): (Asker, bool),
    ) -> Result<FrontierStatus, SteerError> {
        let known = self.find(job, view).await?;
        let stands = job.stands().await?;
        let watch = match on {
            true => {
                let profile = job.publish_profile(known.profile()).await?;
                Some(Watch { by_node: job.node().clone(), profile })
            }
            false => None,
        };
        let straggler = stands.standing.straggler.as_ref().map(|answered| answered.factor);
        let status = FrontierStatus { auto: on, straggler, ..known.status() };
        if watch == stands.standing.watch {
            return Ok(status);
        }
        // Without the watch nobody would bring the job back.
        let found = stands.standing.straggler.as_ref();
        let ends = !on && found.is_some_and(|answered| !answered.found.is_empty());
        let (run, beside) = if ends {
            (own_run(&stands), standing(&stands, None))
        } else {
            (stands.run.clone(), stands.standing.clone())
        };
        let standing = Standing { watch, ..beside };
        let change = Change { by, run, standing, after: stands.number, wait: false };
        job.change(change).await?;
        Ok(status)
    }
}

//! Swapping a job to the plan that takes a straggler's time, and back.
//!
//! What the job ran before is on disk before the swap is asked for: an agent that dies in between
//! knows it.

use std::sync::Arc;

use pfo_planner::Straggler;
use pfo_protocol::{
    ClockTable, JobView, PlanStatus, Refusal, RefusalCode, Request, Response, SwapTarget, Swapped,
};

use crate::job::JobKey;
use crate::pfod::{Asker, PfodError, unexpected};
use crate::straggler::SlowStages;
use crate::straggler::files::Answered;
use crate::straggler::frontier::JobFrontier;
use crate::straggler::jobs::{FrontierJob, Stragglers};
use crate::straggler::table::Labelled;

/// A swap to ask for.
struct Change {
    /// The straggler that the job runs a plan for from then on.
    straggler: Option<Answered>,
    target: SwapTarget,
    /// Answer only when every rank has changed.
    wait: bool,
}

impl Stragglers {
    /// Swaps to the plan that takes a straggler's time.
    ///
    /// # Errors
    /// If no frontier is loaded, its plan does not fit, or `pfod` refuses the swap.
    pub(crate) async fn answer(
        &self,
        asker: Asker,
        job: &JobView,
        straggler: Straggler,
        wait: bool,
    ) -> Result<Swapped, Refusal> {
        let known = self.find(job)?;
        let _changing = known.changing.lock().await;
        let before = match known.straggler() {
            Some(answered) => answered.before,
            None => self.running(&known.key).await?,
        };
        let plan = self.made_for(&known, straggler).await?;
        let (factor, found) = (straggler.factor(), SlowStages::new());
        let change = Change::to(plan, Answered::now(factor, before, found), wait);
        Ok(self.swap(asker, &known, change).await?)
    }

    /// The plan that takes a straggler's time, as the job runs now.
    ///
    /// # Errors
    /// If it does not fit.
    pub(super) async fn made_for(
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

    /// Swaps back to what the job ran before the straggler.
    ///
    /// # Errors
    /// If it runs a plan for none, or `pfod` refuses the swap.
    pub(crate) async fn end(
        &self,
        asker: Asker,
        job: &JobView,
        wait: bool,
    ) -> Result<Swapped, Refusal> {
        let none = || {
            let message = format!("job {} runs a plan for no straggler", job.job);
            Refusal::new(RefusalCode::NoPlan, message, "see `pfoctl status`")
        };
        let known = self.of(job).ok_or_else(none)?;
        let _changing = known.changing.lock().await;
        let answered = known.straggler().ok_or_else(none)?;
        Ok(self.swap(asker, &known, Change::back(answered.before, wait)).await?)
    }

    /// Makes the swap that slow stages call for, if any does: to a plan for what is measured now, or
    /// back. A straggler that a user reported is left to that user. None if there is
    /// nothing to swap, or another swap is under way.
    ///
    /// # Errors
    /// If the frontier has no plan for it, or `pfod` refuses the swap.
    pub(crate) async fn answer_slow_stages(
        &self,
        known: &Arc<FrontierJob>,
        slow: &SlowStages,
    ) -> Result<Option<Swapped>, PfodError> {
        let Ok(_changing) = known.changing.try_lock() else { return Ok(None) };
        let answered = known.straggler();
        if answered.as_ref().is_some_and(|answered| answered.found.is_empty()) {
            return Ok(None);
        }
        let own = match &answered {
            Some(answered) => answered.before.clone(),
            None => self.running(&known.key).await?,
        };
        let Some(own) = own else { return Ok(None) };
        let (table, stages, conditions) = (own.table.clone(), slow.clone(), known.conditions());
        let make =
            move |frontier: &JobFrontier| frontier.plan_for_slow_now(&table, &stages, &conditions);
        let made = self.make(known, make).await?;
        let change = match made {
            Some((straggler, made)) => {
                let plan = made.said(&known.key);
                known.note_answer();
                let answered = Answered::now(straggler.factor(), Some(own), slow.clone());
                Change::to(plan, answered, false)
            }
            None if answered.is_some() => Change::back(Some(own), false),
            None => return Ok(None),
        };
        let asker = Asker { uid: known.key.uid, pid: None, administrator: false };
        self.swap(asker, known, change).await.map(Some)
    }

    /// A faster plan for a job whose own, with this table, makes steps longer than allowed, by these
    /// shares of a step at default clocks.
    ///
    /// # Errors
    /// If no frontier is loaded, or it has no faster plan for the job.
    pub(crate) async fn corrected(
        &self,
        key: &JobKey,
        own: ClockTable,
        figures: [f64; 2],
    ) -> Result<Labelled, Refusal> {
        let known = self.of_key(key)?;
        let conditions = known.conditions();
        let make = move |frontier: &JobFrontier| frontier.corrected(&own, figures, &conditions);
        Ok(self.make(&known, make).await?.said(key))
    }

    /// What a job runs now; none at default clocks and for plans without a clock table.
    async fn running(&self, key: &JobKey) -> Result<Option<Labelled>, PfodError> {
        let plan = self.questions.job(key).await?.and_then(|job| job.plan);
        let Some(PlanStatus { label, .. }) = plan else { return Ok(None) };
        let table = self.questions.plan(key.selector()).await?;
        Ok(table.map(|table| Labelled { label, table }))
    }

    async fn swap(
        &self,
        asker: Asker,
        job: &Arc<FrontierJob>,
        change: Change,
    ) -> Result<Swapped, PfodError> {
        let former = job.straggler();
        if change.straggler.is_some() {
            job.set_straggler(change.straggler.clone());
            self.keep(job).await;
        }
        let swapped = self.ask_for(asker, job, change.target, change.wait).await;
        match &swapped {
            Ok(Swapped { plan, .. }) => {
                let plan = plan.as_ref().map(|plan| plan.number);
                job.set_straggler(change.straggler.map(|answered| Answered { plan, ..answered }));
            }
            Err(PfodError::Refused(_)) => job.set_straggler(former),
            // It may have taken place. The next look at the job's plan shows it.
            Err(PfodError::Away(_)) => {}
        }
        self.keep(job).await;
        swapped
    }

    async fn ask_for(
        &self,
        asker: Asker,
        job: &FrontierJob,
        target: SwapTarget,
        wait: bool,
    ) -> Result<Swapped, PfodError> {
        let mut connection = self.pfod.on_behalf(asker).await?;
        let job = job.key.selector();
        let request = Request::PlanSwap { job, target, at_step: None, after: None, wait };
        let answer = if wait {
            connection.ask_patiently(request).await?
        } else {
            connection.ask(request).await?
        };
        match answer {
            Response::Swapped(swapped) => Ok(swapped),
            other => Err(unexpected(&other)),
        }
    }
}

impl Answered {
    fn now(factor: f64, before: Option<Labelled>, found: SlowStages) -> Self {
        Self { factor, before, found, label: String::new(), plan: None }
    }
}

impl Change {
    fn to(Labelled { label, table }: Labelled, answered: Answered, wait: bool) -> Self {
        let answered = Answered { label: label.clone(), ..answered };
        Self { straggler: Some(answered), target: SwapTarget::Table { label, table }, wait }
    }

    fn back(before: Option<Labelled>, wait: bool) -> Self {
        let target = before.map_or(SwapTarget::DefaultClocks, |Labelled { label, table }| {
            SwapTarget::Table { label, table }
        });
        Self { straggler: None, target, wait }
    }
}

//! A job all of whose ranks are on this node, through its `pfod`.

mod comparison;
mod file;
mod hold;
mod standing;

use std::sync::{Arc, Mutex};

use pfo_fleet::{Digest, Guard, Node, Run, Standing};
use pfo_planner::{Conditions, Profile};
use pfo_protocol::{JobView, PlanStatus, Refusal, RefusalCode, Request, Response, SwapTarget};
use pfo_service::lock;
use pfo_store::Note;
use tokio::sync::OwnedMutexGuard;

use crate::fleet::{AllSlow, Members, Noted, member_of, run_of};
use crate::job::{JobKey, no_job};
use crate::pfod::{Asker, unexpected};
use crate::steer::here::comparison::ComparisonHere;
use crate::steer::here::file::{NextStanding, StandingRecord};
use crate::steer::here::hold::HoldHere;
use crate::steer::here::standing::{JobStanding, State};
use crate::steer::{
    Change, Comparison, Doing, Hold, Stands, Steer, SteerError, Steering, SwapRequest, Swapped,
    WholeJob, allow_slowdown, next_step,
};
use crate::straggler::{Labelled, SlowStages};

pub(crate) use self::standing::Standings;

/// Steps at default clocks that a comparison takes which is broken off.
const SPENT: u64 = 4;

/// The hand on a job of this node.
#[derive(Clone, Debug)]
pub(super) struct Here {
    steering: Arc<Steering>,
    job: JobView,
    /// The same, until it was looked at or changed.
    fresh: Arc<Mutex<Option<JobView>>>,
    key: JobKey,
    node: Node,
    standing: Arc<JobStanding>,
}

impl Here {
    pub(super) fn of(steering: &Arc<Steering>, job: &JobView) -> Self {
        let key = JobKey::of(job);
        let standing = steering.standings.of(&key);
        let fresh = Arc::new(Mutex::new(Some(job.clone())));
        let (steering, job) = (Arc::clone(steering), job.clone());
        Self { steering, job, fresh, key, node: Node::alone(), standing }
    }

    fn standings(&self) -> &Standings {
        &self.steering.standings
    }

    async fn keep(&self) -> Result<(), SteerError> {
        Ok(self.standings().keep(&self.key, &self.standing).await?)
    }

    async fn view(&self) -> Result<JobView, SteerError> {
        if let Some(fresh) = lock(&self.fresh).take() {
            return Ok(fresh);
        }
        let job = self.steering.questions.job(&self.key).await?;
        job.ok_or_else(|| no_job(&self.key).into())
    }

    async fn request_swap(
        &self,
        by: Asker,
        (target, at_step, after): (SwapTarget, Option<u64>, Option<u64>),
        wait: bool,
    ) -> Result<pfo_protocol::Swapped, SteerError> {
        lock(&self.fresh).take();
        let mut connection = self.steering.pfod.on_behalf(by).await?;
        let job = self.key.selector();
        let request = Request::PlanSwap { job, target, at_step, after, wait };
        let answer = if wait {
            connection.ask_patiently(request).await?
        } else {
            connection.ask(request).await?
        };
        match answer {
            Response::Swapped(swapped) => Ok(swapped),
            other => Err(unexpected(&other).into()),
        }
    }

    /// A plan that the job may have to run again, or runs.
    async fn plan(&self, run: &Run) -> Result<Option<Labelled>, SteerError> {
        let Run::Plan(cut) = run else { return Ok(None) };
        if let Some(plan) = self.standing.kept_plan(run) {
            return Ok(Some(plan));
        }
        let table = self.steering.questions.plan(self.key.selector()).await?;
        let plan = table.map(|table| Labelled { label: cut.label.clone(), table });
        let plan = plan.filter(|plan| run_of(plan) == *run);
        plan.map(Some).ok_or_else(|| changed(&self.key))
    }

    /// The right to change what the job runs, as long as nothing else has; and its newest swap.
    async fn changing(&self, number: u64) -> Result<(OwnedMutexGuard<()>, u64), SteerError> {
        let changing = Arc::clone(&self.standing.changing).lock_owned().await;
        let view = self.view().await?;
        self.bring_up_to_date(&view).await?;
        if self.standing.state().record.number != number {
            return Err(changed(&self.key));
        }
        Ok((changing, view.swap))
    }

    async fn stands_now(&self) -> Result<Stands, SteerError> {
        let view = self.view().await?;
        // While the agent changes it, what it ran before counts.
        if let Ok(_changing) = self.standing.changing.try_lock() {
            self.bring_up_to_date(&view).await?;
        }
        let state = self.standing.state();
        let StandingRecord { number, run, standing, comparing, .. } = state.record.clone();
        let in_trial = comparing || view.measured_by.is_some();
        Ok(Stands { view, number, step: 0, in_trial, run, standing })
    }

    async fn change_now(&self, change: Change) -> Result<Swapped, SteerError> {
        let Change { by, run, standing, after, wait } = change;
        if self.note_standing(&run, &standing, after)? {
            self.keep().await?;
            let view = self.view().await?;
            let (step, ranks) = (next_step(&view), view.ranks.len() as u32);
            let swapped = pfo_protocol::Swapped { plan: view.plan, step, ranks, changed: ranks };
            return Ok(Swapped::Here(swapped));
        }
        let _waiting = by.pid.is_some().then(|| self.standing.wait_for_change());
        let (_changing, swap) = self.changing(after).await?;
        self.swap_to(by, (run, standing), swap, wait).await
    }

    /// Takes note of what stands beside the plan from now on. False if the job has to change its plan,
    /// too.
    fn note_standing(
        &self,
        run: &Run,
        standing: &Standing,
        after: u64,
    ) -> Result<bool, SteerError> {
        let mut state = self.standing.state();
        if state.record.number != after {
            return Err(changed(&self.key));
        }
        if state.record.run != *run {
            return Ok(false);
        }
        state.record.standing = standing.clone();
        state.record.number = after.saturating_add(1);
        Ok(true)
    }

    /// What the job changes to is on disk before the swap: an agent that dies in between knows it.
    async fn swap_to(
        &self,
        by: Asker,
        (run, standing): (Run, Standing),
        after: u64,
        wait: bool,
    ) -> Result<Swapped, SteerError> {
        let target = match self.plan(&run).await? {
            Some(Labelled { label, table }) => SwapTarget::Table { label, table },
            None => target_of(&run),
        };
        let before = self.standing.state().record.run.clone();
        if standing.straggler.as_ref().is_some_and(|answered| answered.before == before)
            && let Some(plan) = self.plan(&before).await?
        {
            self.standing.keep_plan(&before, plan);
        }
        let next = NextStanding { run, standing };
        self.standing.state().record.next = Some(next.clone());
        self.keep().await?;
        let swapped = self.request_swap(by, (target, None, Some(after)), wait).await;
        match &swapped {
            Ok(swapped) => {
                let plan = swapped.plan.as_ref().map(|plan| plan.number);
                self.standing.state().take_up(next, plan);
            }
            Err(SteerError::Away(_)) => {}
            Err(_) => self.standing.state().record.next = None,
        }
        self.standings().keep_if_possible(&self.key, &self.standing).await;
        let is_refused = matches!(swapped, Err(SteerError::Refused(_)));
        if is_refused && self.view().await?.swap != after {
            return Err(changed(&self.key));
        }
        swapped.map(Swapped::Here)
    }

    /// Finds out what the job runs, and brings what stands beside it up to date. The caller holds
    /// `changing`.
    async fn bring_up_to_date(&self, view: &JobView) -> Result<(), SteerError> {
        if view.measured_by.is_some() {
            return Ok(());
        }
        let record = self.standing.state().record.clone();
        if record.comparing {
            return self.break_off().await;
        }
        let number = |view: &JobView| view.plan.as_ref().map(|plan| plan.number);
        let is_as_known = |view: &JobView| {
            let is_seen = self.standing.state().is_seen;
            is_seen && record.next.is_none() && number(view) == record.plan
        };
        if is_as_known(view) {
            return Ok(());
        }
        // The view may be older than the agent's own last change, and the agent changes nothing now.
        let Some(view) = self.steering.questions.job(&self.key).await? else { return Ok(()) };
        if view.measured_by.is_some() || is_as_known(&view) {
            return Ok(());
        }
        let run = match &view.plan {
            Some(plan) => self.run_of_plan(plan).await?,
            None => Run::DefaultClocks,
        };
        self.standing.state().see(run, number(&view), &view);
        self.standings().keep_if_possible(&self.key, &self.standing).await;
        Ok(())
    }

    async fn run_of_plan(&self, plan: &PlanStatus) -> Result<Run, SteerError> {
        let label = plan.label.clone();
        if !plan.power_limits_w.is_empty() {
            return Ok(Run::PowerLimits { label, limits_w: plan.power_limits_w.clone() });
        }
        let table = self.steering.questions.plan(self.key.selector()).await?;
        Ok(match table {
            Some(table) => run_of(&Labelled { label, table }),
            // One without a table cannot be run again, and is like no other.
            None => Run::PowerLimits { label, limits_w: Vec::new() },
        })
    }

    /// A comparison came to nothing; it is paid for, too.
    async fn break_off(&self) -> Result<(), SteerError> {
        {
            let StandingRecord { standing, comparing, .. } = &mut self.standing.state().record;
            standing.guard = standing.guard.take().map(|guard| guard.after(SPENT, None));
            *comparing = false;
        }
        self.standings().keep_if_possible(&self.key, &self.standing).await;
        Ok(())
    }
}

impl State {
    /// The job has changed.
    fn take_up(&mut self, NextStanding { run, standing }: NextStanding, plan: Option<u32>) {
        let record = &mut self.record;
        (record.run, record.standing, record.plan, record.next) = (run, standing, plan, None);
        record.number = record.number.saturating_add(1);
    }

    /// Takes note of what the job was seen to run.
    fn see(&mut self, run: Run, plan: Option<u32>, view: &JobView) {
        self.is_seen = true;
        if let Some(next) = self.record.next.take_if(|next| next.run == run) {
            return self.take_up(next, plan);
        }
        (self.record.next, self.record.plan) = (None, plan);
        if run != self.record.run {
            let standing = self.record.standing.for_another(next_step(view));
            self.take_up(NextStanding { run, standing }, plan);
        }
    }
}

impl Steer for Here {
    fn key(&self) -> &JobKey {
        &self.key
    }

    fn look(&self) -> Doing<'_, WholeJob> {
        Box::pin(async {
            let view = self.view().await?;
            let members = alone(&view);
            Ok(WholeJob { view, members })
        })
    }

    fn stands(&self) -> Doing<'_, Stands> {
        Box::pin(self.stands_now())
    }

    fn guard(&self) -> Doing<'_, Option<Guard>> {
        Box::pin(async { Ok(self.standings().guard(&self.key)) })
    }

    fn plan_of<'a>(&'a self, run: &'a Run) -> Doing<'a, Option<Labelled>> {
        Box::pin(self.plan(run))
    }

    fn publish(&self, plan: Labelled) -> Doing<'_, Run> {
        let run = run_of(&plan);
        self.standing.keep_plan(&run, plan);
        Box::pin(async move { Ok(run) })
    }

    fn swap(&self, request: SwapRequest) -> Doing<'_, Swapped> {
        let SwapRequest { by, target, at_step, max_slowdown, wait } = request;
        Box::pin(async move {
            let swapped = self.request_swap(by, (target, at_step, None), wait).await?;
            if let Some(most) = max_slowdown {
                allow_slowdown(self, by, Some(most)).await?;
            }
            Ok(Swapped::Here(swapped))
        })
    }

    fn change(&self, change: Change) -> Doing<'_, Swapped> {
        Box::pin(self.change_now(change))
    }

    fn compare(&self, number: u64) -> Box<dyn Comparison> {
        Box::new(ComparisonHere::of(self.clone(), number))
    }

    fn is_for_this_node<'a>(&'a self, _node: &'a Node) -> Doing<'a, bool> {
        Box::pin(async { Ok(true) })
    }

    fn node(&self) -> &Node {
        &self.node
    }

    fn noted(&self, _note: Note) -> Doing<'_, Option<Noted>> {
        Box::pin(async { Ok(None) })
    }

    fn fetch_noted<'a>(&'a self, _noted: &'a Noted) -> Doing<'a, Vec<u8>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn note(&self, _note: Note, _label: String, _bytes: Vec<u8>) -> Doing<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn publish_profile<'a>(&'a self, _profile: &'a Profile) -> Doing<'a, Vec<Digest>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn fetch_profile<'a>(&'a self, _digests: &'a [Digest]) -> Doing<'a, Profile> {
        Box::pin(async { Err(no_job(&self.key).into()) })
    }

    fn note_slow(&self, stages: &SlowStages, conditions: &Conditions) {
        self.standing.state().slow = AllSlow::of_node(stages, conditions);
    }

    fn all_slow(&self) -> Doing<'_, Option<AllSlow>> {
        let slow = self.standing.state().slow.clone();
        Box::pin(async { Ok(Some(slow)) })
    }

    fn hold(&self, by: Asker) -> Box<dyn Hold> {
        let (steering, job) = (Arc::clone(&self.steering), self.job.clone());
        Box::new(HoldHere { steering, job, by, connection: None })
    }
}

/// This node as the only one of a job; none before the job has a rank.
pub(crate) fn alone(job: &JobView) -> Members {
    member_of(job).map(|member| (Node::alone(), member)).into_iter().collect()
}

/// What `pfod` takes for something without a table.
fn target_of(run: &Run) -> SwapTarget {
    match run {
        Run::Uniform(mhz) => SwapTarget::Uniform(*mhz),
        Run::Replicas(clocks) => SwapTarget::Replicas(clocks.clone()),
        Run::PowerLimits { label, limits_w } if !limits_w.is_empty() => {
            SwapTarget::PowerLimits { label: label.clone(), limits_w: limits_w.clone() }
        }
        Run::DefaultClocks | Run::Plan(_) | Run::PowerLimits { .. } => SwapTarget::DefaultClocks,
    }
}

fn changed(key: &JobKey) -> SteerError {
    let message = format!("what {key} runs has changed, or is just being measured");
    let remedy = "`pfoctl status` shows it; try again in a moment";
    SteerError::Meanwhile(Refusal::new(RefusalCode::LimitReached, message, remedy))
}

#[cfg(test)]
mod tests {
    use pfo_fleet::Answered;

    use super::*;
    use crate::straggler::tests::job as example_job;

    fn plan(label: &str) -> Run {
        let (predicted, stages) = (None, Vec::new());
        Run::Plan(pfo_fleet::PlanCut {
            label: label.into(),
            num_microbatches: 1,
            predicted,
            stages,
        })
    }

    /// A job that runs a plan for a straggler, with a guard.
    fn answered() -> State {
        let straggler = Answered { factor: 1.2, before: plan("own"), found: [].into() };
        let mut guard = Guard::of(0.01, Node::alone(), 3);
        guard.spent = 4;
        let standing =
            Standing { guard: Some(guard), straggler: Some(straggler), ..Standing::default() };
        let mut state = State::default();
        state.take_up(NextStanding { run: plan("slow"), standing }, Some(2));
        state
    }

    #[test]
    fn the_same_plan_under_another_number_changes_nothing_beside_it() {
        let mut state = answered();
        let before = state.record.clone();
        state.see(plan("slow"), Some(7), &example_job(2));
        assert_eq!(state.record, StandingRecord { plan: Some(7), ..before });
    }

    #[test]
    fn a_swap_of_somebody_else_ends_the_straggler_and_begins_the_guard_anew() {
        let mut state = answered();
        state.see(plan("another"), Some(3), &example_job(2));
        let StandingRecord { number, run, standing, .. } = state.record;
        assert_eq!((number, run), (2, plan("another")));
        assert_eq!(standing.straggler, None);
        assert_eq!(standing.guard, Some(Guard::of(0.01, Node::alone(), 0)));
    }

    #[test]
    fn a_swap_that_was_decided_when_the_agent_died_is_taken_up_with_what_stands_beside_it() {
        let next = NextStanding { run: plan("own"), standing: Standing::default() };
        for (seen, number) in [(plan("own"), 2), (plan("slow"), 1)] {
            let mut state = answered();
            state.record.next = Some(next.clone());
            state.see(seen.clone(), Some(3), &example_job(2));
            assert_eq!((state.record.run, state.record.number), (seen.clone(), number));
            assert_eq!(state.record.next, None);
            let is_taken_up = seen == next.run;
            assert_eq!(state.record.standing == Standing::default(), is_taken_up);
        }
    }
}

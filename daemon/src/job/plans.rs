//! The plans of a job: those that it keeps, and the swaps between them.

use std::sync::Arc;

use pfo_planner::Plan;
use pfo_protocol::{Refusal, RefusalCode, SwapTarget};

use super::{Job, KEPT_SWAPS, Member, Members};
use crate::fit::JobPlan;
use crate::misfit::Misfit;
use crate::power_limit::Milliwatts;
use crate::swap::Swap;

/// Stages that may have power limits: status tells them of every plan.
const MOST_LIMITS: usize = 128;

impl Job {
    /// Instructions of all plans that are kept, and what takes as much memory as so many.
    #[must_use]
    pub fn planned_instructions(&self) -> usize {
        let members = self.members();
        let plans = members.swaps.iter().filter_map(|swap| swap.plan.as_ref());
        let before = members.straggler.as_ref().and_then(|straggler| straggler.before.as_ref());
        let plans = plans.chain(&members.loaded).chain(before).map(|plan| plan.instructions());
        plans.chain(members.frontier.as_ref().map(|frontier| frontier.size())).sum()
    }

    /// Checks a plan of at most so many instructions against the job and keeps it for a swap.
    ///
    /// # Errors
    /// If the bytes are not a plan, it is too large, or it does not fit: the first difference.
    pub fn load(&self, label: String, bytes: &[u8], most: usize) -> Result<Arc<JobPlan>, Refusal> {
        let mut members = self.members();
        let plan = self.fit(&mut members, label, bytes, most)?;
        members.loaded = Some(Arc::clone(&plan));
        Ok(plan)
    }

    /// Checks a plan of at most so many instructions against the job.
    ///
    /// # Errors
    /// If the bytes are not a plan, it is too large, or it does not fit: the first difference.
    pub(crate) fn fit(
        &self,
        members: &mut Members,
        label: String,
        bytes: &[u8],
        most: usize,
    ) -> Result<Arc<JobPlan>, Refusal> {
        let plan = Plan::from_json(bytes).map_err(|error| does_not_fit(error.to_string()))?;
        let instructions = plan.num_instructions();
        if instructions > most {
            return Err(Refusal::new(
                RefusalCode::LimitReached,
                format!(
                    "the plan has {instructions} instructions, but the plans that user {} keeps \
                     leave room for {most}",
                    self.key.uid
                ),
                "plans are forgotten a quarter of an hour after the last rank of their job has left",
            ));
        }
        let number = members.plans_made + 1;
        let plan = JobPlan::new(number, label, &plan)
            .and_then(|plan| plan.check_stages(self.pp_degree).map(|()| plan))
            .map_err(|misfit| does_not_fit(misfit.to_string()))?;
        members.check(&plan)?;
        members.plans_made = number;
        Ok(Arc::new(plan))
    }

    /// Checks a power limit for each stage, in watts, against the job.
    ///
    /// # Errors
    /// If they do not fit: the first difference.
    pub(crate) fn fit_power_limits(
        &self,
        members: &mut Members,
        label: String,
        limits_w: &[u32],
    ) -> Result<Arc<JobPlan>, Refusal> {
        if limits_w.len() > MOST_LIMITS {
            return Err(Refusal::new(
                RefusalCode::LimitReached,
                format!("power limits of {} stages are more than {MOST_LIMITS}", limits_w.len()),
                "give jobs of so many stages plans",
            ));
        }
        let number = members.plans_made + 1;
        let limits = limits_w.iter().copied().map(Milliwatts::of_watts).collect();
        let plan = JobPlan::power_limits(number, label, limits);
        let check = |member: &Member| plan.check_granted(&member.shape());
        plan.check_stages(self.pp_degree)
            .and_then(|()| members.ranks.values().try_for_each(check))
            .map_err(|misfit| {
                let remedy = "`pfoctl policy explain` says what is allowed";
                Refusal::new(RefusalCode::PlanDoesNotFit, misfit.to_string(), remedy)
            })?;
        members.plans_made = number;
        Ok(Arc::new(plan))
    }

    /// Suspends the plans whose clocks the ranks may not have any more. Returns their numbers, each with
    /// the first difference.
    pub fn suspend_what_is_not_allowed(&self) -> Vec<(u32, Misfit)> {
        let members = self.members();
        let plans = members.swaps.iter().filter_map(|swap| swap.plan.as_ref());
        let misfit = |plan: &Arc<JobPlan>| {
            let mut shapes = members.ranks.values().map(Member::shape);
            let misfit = shapes.find_map(|shape| plan.check_granted(&shape).err())?;
            plan.suspend(|| format!("the configuration has changed: {misfit}"));
            Some((plan.number, misfit))
        };
        plans.filter_map(misfit).collect()
    }

    /// Begins a swap; every rank takes it up at the step that it names. It replaces a swap whose
    /// step has yet to come.
    ///
    /// # Errors
    /// If there is nothing to swap to, or the ranks are just taking up the last swap.
    pub fn swap(&self, target: &SwapTarget, not_before: u64) -> Result<Arc<Swap>, Refusal> {
        let mut members = self.members();
        let plan = self.target(&members, target)?;
        let swap = self.begin_swap(&mut members, plan, not_before)?;
        if *target == SwapTarget::Loaded {
            members.loaded = None;
        }
        // Whoever swaps knows better what the job is to run.
        members.straggler = None;
        Ok(swap)
    }

    /// What a swap leads to; none is default clocks.
    fn target(
        &self,
        members: &Members,
        target: &SwapTarget,
    ) -> Result<Option<Arc<JobPlan>>, Refusal> {
        let name = &self.key.name;
        let nothing =
            |message: String, remedy: &str| Refusal::new(RefusalCode::NoPlan, message, remedy);
        match target {
            SwapTarget::DefaultClocks => Ok(None),
            SwapTarget::Loaded => members.loaded.clone().map(Some).ok_or_else(|| {
                nothing(format!("no plan is loaded for job {name}"), "give a plan file")
            }),
            SwapTarget::Previous => {
                let swaps = &members.swaps;
                let previous = swaps.len().checked_sub(2).and_then(|index| swaps.get(index));
                if swaps.is_empty() {
                    let message = format!("job {name} has run no plan that could be rolled back");
                    return Err(nothing(message, "see `pfoctl status`"));
                }
                Ok(previous.and_then(|swap| swap.plan.clone()))
            }
        }
    }

    /// Begins a swap to this plan.
    ///
    /// # Errors
    /// If it does not fit, somebody holds the job for measuring, or the ranks are just taking up the last
    /// swap.
    pub(crate) fn begin_swap(
        &self,
        members: &mut Members,
        plan: Option<Arc<JobPlan>>,
        not_before: u64,
    ) -> Result<Arc<Swap>, Refusal> {
        members.check_free(&self.key.name)?;
        self.swap_while_held(members, plan, not_before)
    }

    /// Begins a swap to this plan, whoever holds the job.
    ///
    /// # Errors
    /// If it does not fit, or the ranks are just taking up the last swap.
    pub(crate) fn swap_while_held(
        &self,
        members: &mut Members,
        plan: Option<Arc<JobPlan>>,
        not_before: u64,
    ) -> Result<Arc<Swap>, Refusal> {
        let name = &self.key.name;
        let lost = |member: &&Member| !member.session.progress.knows_step();
        if let Some(member) = members.ranks.values().find(lost) {
            let rank = member.session.holder.rank;
            return Err(Refusal::new(
                RefusalCode::LimitReached,
                format!("rank {rank} of job {name} has begun no step since pfod was restarted"),
                "try again after its next step, or with --wait",
            ));
        }
        let under_way = members.swaps.back().filter(|swap| !swap.is_complete()).cloned();
        let taking_place = |swap: &Swap| {
            let (done, all) = swap.taken_up();
            let step = swap.step();
            Refusal::new(
                RefusalCode::LimitReached,
                format!(
                    "job {name} is in a swap at step {step}: {done} of {all} ranks have changed"
                ),
                "try again after that step",
            )
        };
        if let Some(last) = under_way.as_deref()
            && !last.is_replaceable()
        {
            return Err(taking_place(last));
        }
        // Ranks may have come since the plan was loaded.
        plan.as_deref().map_or(Ok(()), |plan| members.check(plan))?;
        let number = members.swaps.back().map_or(0, |swap| swap.number) + 1;
        let ranks = members.ranks.values().map(|m| Arc::clone(&m.session.progress)).collect();
        let swap = Swap::new(number, plan, not_before, ranks).replacing(under_way.clone());
        let swap = Arc::new(swap);
        self.newest_swap.store(Some(Arc::clone(&swap)));
        if swap.came_too_late()
            && let Some(last) = under_way
        {
            let refusal = taking_place(&last);
            self.newest_swap.store(Some(last));
            return Err(refusal);
        }
        if under_way.is_some() {
            members.swaps.pop_back();
        }
        members.forget_trial();
        members.swaps.push_back(Arc::clone(&swap));
        if members.swaps.len() > KEPT_SWAPS
            && let Some(former) = members.swaps.pop_front()
        {
            members.remember_name(&former);
        }
        Ok(swap)
    }
}

pub(crate) fn does_not_fit(why: String) -> Refusal {
    let remedy = "make a plan for this job with `pfoctl plan optimize` and `pfoctl plan export`";
    Refusal::new(RefusalCode::PlanDoesNotFit, why, remedy)
}

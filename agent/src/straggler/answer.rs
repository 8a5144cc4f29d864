//! What a job runs while a straggler makes it wait: the plan of its frontier that takes the straggler's
//! time, and afterwards again what it ran before.

use std::collections::BTreeMap;
use std::sync::Arc;

use pfo_planner::Straggler;
use pfo_protocol::{FrontierStatus, Refusal, RefusalCode};

use crate::fit::JobPlan;
use crate::job::Job;
use crate::swap::Swap;

/// The stages whose instructions take longer than they should, each with the share by which they do.
pub(crate) type SlowStages = BTreeMap<u32, f64>;

/// A straggler that the job runs a plan for.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    /// How slow it is.
    pub(crate) straggler: Straggler,
    /// What the job ran before; none is default clocks.
    pub(crate) before: Option<Arc<JobPlan>>,
    /// The stages that the daemon found slow by itself; none if somebody told it of the straggler.
    pub(crate) found: SlowStages,
}

impl Job {
    /// Begins a swap to the plan that takes a straggler's time.
    ///
    /// # Errors
    /// If no frontier is loaded, its plan does not fit, or the ranks are just taking up another swap.
    pub(crate) fn answer_straggler(&self, straggler: Straggler) -> Result<Arc<Swap>, Refusal> {
        let mut members = self.members();
        let frontier = members.frontier.clone().ok_or_else(|| self.no_frontier())?;
        let number = members.plans_made + 1;
        let plan = frontier.plan_for(straggler, number)?;
        let before = match &members.straggler {
            Some(answered) => answered.before.clone(),
            None => members.current().cloned(),
        };
        let swap = self.begin_swap(&mut members, Some(Arc::new(plan)), 0)?;
        members.plans_made = number;
        members.straggler = Some(Answered { straggler, before, found: SlowStages::new() });
        Ok(swap)
    }

    /// Begins the swap that slow stages call for, if any does: to the plan in which all others take their
    /// time, or back. A straggler that somebody told of is left to whoever did.
    ///
    /// # Errors
    /// If the frontier has no plan for it, or the ranks are just taking up another swap.
    pub(crate) fn answer_slow_stages(&self, slow: &SlowStages) -> Result<Option<Arc<Swap>>, Refusal> {
        let mut members = self.members();
        let answered = members.straggler.clone();
        if answered.as_ref().is_some_and(|answered| answered.found.is_empty()) {
            return Ok(None);
        }
        let own = match &answered {
            Some(answered) => answered.before.clone(),
            None => members.current().cloned(),
        };
        let (Some(own), Some(frontier)) = (own, members.frontier.clone()) else {
            return Ok(None);
        };
        let number = members.plans_made + 1;
        match frontier.plan_for_slow(&own, slow, number)? {
            Some((straggler, plan)) => {
                let swap = self.begin_swap(&mut members, Some(Arc::new(plan)), 0)?;
                members.plans_made = number;
                let (before, found) = (Some(own), slow.clone());
                members.straggler = Some(Answered { straggler, before, found });
                Ok(Some(swap))
            }
            None if answered.is_some() => {
                let swap = self.begin_swap(&mut members, Some(own), 0)?;
                members.straggler = None;
                Ok(Some(swap))
            }
            None => Ok(None),
        }
    }

    fn no_frontier(&self) -> Refusal {
        Refusal::new(
            RefusalCode::NoPlan,
            format!("no frontier is loaded for job {}", self.key.name),
            "load the file that `pfoctl plan optimize` wrote with `pfoctl plan load`",
        )
    }

    /// Says whether the daemon is to answer slow stages by itself.
    ///
    /// # Errors
    /// If no frontier is loaded.
    pub(crate) fn answer_by_itself(&self, on: bool) -> Result<FrontierStatus, Refusal> {
        let mut members = self.members();
        members.auto = on;
        members.frontier_status().ok_or_else(|| {
            members.auto = false;
            self.no_frontier()
        })
    }

    /// Begins a swap back to what the job ran before the straggler.
    ///
    /// # Errors
    /// If it runs a plan for none, or the ranks are just taking up another swap.
    pub(crate) fn straggler_is_over(&self) -> Result<Arc<Swap>, Refusal> {
        let mut members = self.members();
        let answered = members.straggler.clone().ok_or_else(|| {
            let message = format!("job {} runs a plan for no straggler", self.key.name);
            Refusal::new(RefusalCode::NoPlan, message, "see `pfoctl status`")
        })?;
        let swap = self.begin_swap(&mut members, answered.before, 0)?;
        members.straggler = None;
        Ok(swap)
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::SwapTarget;

    use super::*;
    use crate::job::JobKey;
    use crate::job_frontier::tests::{frontier, frontier_of};

    fn straggler(factor: f64) -> Straggler {
        Straggler::new(factor).unwrap()
    }

    fn job() -> Job {
        let job = Job::new(JobKey { uid: 7, name: "j".parse().unwrap() }, 1);
        job.load_frontier("f".into(), &frontier(1), 1000).unwrap();
        job
    }

    fn predicted_s(swap: &Swap) -> Option<f64> {
        swap.plan.as_ref()?.status().predicted_time_s
    }

    #[test]
    fn a_job_takes_the_time_of_a_straggler_and_no_more_than_is_of_use() {
        let job = job();
        for (factor, time_s) in [(1.0, 2.0), (1.1, 2.2), (1.3, 2.4), (9.0, 3.0)] {
            let swap = job.answer_straggler(straggler(factor)).unwrap();
            assert_eq!(predicted_s(&swap), Some(time_s), "{factor}");
        }
        let label = job.members().current().unwrap().label.clone();
        assert_eq!(label, "f at 9x");
    }

    #[test]
    fn afterwards_the_job_runs_what_it_ran_before_the_first_straggler() {
        let job = job();
        let before = job.answer_straggler(straggler(1.25)).unwrap();
        // As if somebody had chosen that plan.
        job.members().straggler = None;
        job.answer_straggler(straggler(1.5)).unwrap();
        job.answer_straggler(straggler(1.1)).unwrap();
        let after = job.straggler_is_over().unwrap();
        assert_eq!(
            after.plan.as_ref().map(|plan| plan.number),
            before.plan.as_ref().map(|plan| plan.number)
        );
        assert!(job.straggler_is_over().unwrap_err().message.contains("no straggler"));
    }

    #[test]
    fn a_job_at_default_clocks_returns_to_them() {
        let job = job();
        job.answer_straggler(straggler(1.5)).unwrap();
        assert!(job.straggler_is_over().unwrap().plan.is_none());
    }

    fn slow(share: f64) -> SlowStages {
        SlowStages::from([(1, share)])
    }

    fn clocks(swap: &Swap) -> Vec<Vec<u32>> {
        let stages = swap.plan.as_ref().unwrap().stages().iter();
        stages.map(|stage| stage.iter().map(|planned| planned.mhz.0).collect()).collect()
    }

    #[test]
    fn other_stages_take_the_time_of_a_slow_one_which_keeps_its_clocks_until_it_is_over() {
        let job = Job::new(JobKey { uid: 7, name: "j".parse().unwrap() }, 2);
        job.load_frontier("f".into(), &frontier_of(2, 8), 10_000).unwrap();
        let before = job.answer_straggler(Straggler::NONE).unwrap();
        job.members().straggler = None;
        assert!(job.answer_slow_stages(&slow(0.0)).unwrap().is_none(), "nobody waits");
        let sum = |clocks: &[u32]| clocks.iter().sum::<u32>();
        let mut last = sum(&clocks(&before)[0]);
        for share in [0.5, 1.0] {
            let answer = job.answer_slow_stages(&slow(share)).unwrap().unwrap();
            let answered = job.members().straggler.clone().unwrap();
            assert!(answered.straggler > Straggler::NONE, "{answered:?}");
            let [first, second] = &clocks(&answer)[..] else { panic!() };
            assert_eq!(second, &clocks(&before)[1]);
            assert!(sum(first) <= last, "{first:?}");
            last = sum(first);
        }
        assert!(last < sum(&clocks(&before)[0]));
        let over = job.answer_slow_stages(&SlowStages::new()).unwrap().unwrap();
        assert_eq!(clocks(&over), clocks(&before));
        assert!(job.members().straggler.is_none());
        assert!(job.answer_slow_stages(&SlowStages::new()).unwrap().is_none());
    }

    #[test]
    fn where_every_instruction_is_waited_for_nobody_takes_a_slow_stages_time() {
        let job = Job::new(JobKey { uid: 7, name: "j".parse().unwrap() }, 2);
        job.load_frontier("f".into(), &frontier_of(2, 1), 2000).unwrap();
        job.answer_straggler(Straggler::NONE).unwrap();
        job.members().straggler = None;
        assert!(job.answer_slow_stages(&slow(1.0)).unwrap().is_none());
    }

    #[test]
    fn a_straggler_that_somebody_told_of_is_left_alone() {
        let job = job();
        job.answer_straggler(straggler(1.5)).unwrap();
        let slow = SlowStages::from([(0, 1.0)]);
        assert!(job.answer_slow_stages(&slow).unwrap().is_none());
        assert_eq!(job.members().straggler.as_ref().unwrap().straggler, straggler(1.5));
    }

    #[test]
    fn whoever_swaps_to_something_else_ends_it() {
        let job = job();
        job.answer_straggler(straggler(1.5)).unwrap();
        job.swap(&SwapTarget::DefaultClocks, 0).unwrap();
        assert!(job.straggler_is_over().is_err());
    }

    #[test]
    fn without_a_frontier_nothing_can_be_done_for_a_straggler() {
        let job = Job::new(JobKey { uid: 7, name: "j".parse().unwrap() }, 1);
        let refusal = job.answer_straggler(straggler(1.5)).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::NoPlan);
        assert!(refusal.remedy.contains("plan load"), "{refusal}");
    }
}

//! What a job runs while a straggler makes it wait: the plan of its frontier that takes the straggler's
//! time, and afterwards again what it ran before.

use std::sync::Arc;

use pfo_planner::Straggler;
use pfo_protocol::{Refusal, RefusalCode};

use crate::fit::JobPlan;
use crate::job::Job;
use crate::swap::Swap;

/// A straggler that the job runs a plan for.
#[derive(Clone, Debug)]
pub struct Answered {
    /// How slow it is.
    pub straggler: Straggler,
    /// What the job ran before; none is default clocks.
    pub before: Option<Arc<JobPlan>>,
}

impl Job {
    /// Begins a swap to the plan that takes a straggler's time.
    ///
    /// # Errors
    /// If no frontier is loaded, its plan does not fit, or the ranks are just taking up another swap.
    pub fn answer_straggler(&self, straggler: Straggler) -> Result<Arc<Swap>, Refusal> {
        let mut members = self.members();
        let frontier = members.frontier.clone().ok_or_else(|| {
            Refusal::new(
                RefusalCode::NoPlan,
                format!("no frontier is loaded for job {}", self.key.name),
                "load the file that `pfoctl plan optimize` wrote with `pfoctl plan load`",
            )
        })?;
        let number = members.plans_made + 1;
        let plan = frontier.plan_for(straggler, number)?;
        let before = match &members.straggler {
            Some(answered) => answered.before.clone(),
            None => members.current().cloned(),
        };
        let swap = self.begin_swap(&mut members, Some(Arc::new(plan)), 0)?;
        members.plans_made = number;
        members.straggler = Some(Answered { straggler, before });
        Ok(swap)
    }

    /// Begins a swap back to what the job ran before the straggler.
    ///
    /// # Errors
    /// If it runs a plan for none, or the ranks are just taking up another swap.
    pub fn straggler_is_over(&self) -> Result<Arc<Swap>, Refusal> {
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
    use crate::job_frontier::tests::frontier;

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

//! The plans of a job: the one that waits for a swap, and those of the last swaps.

use std::collections::VecDeque;
use std::sync::Arc;

use pfo_protocol::{PlanStatus, Refusal, RefusalCode};

use super::job_plan::JobPlan;
use super::swap::Swap;

/// The last swap, for a rollback the one before it, and a trial.
const KEPT_SWAPS: usize = 3;

/// Labels of the plans of older swaps, for their measured windows.
const KEPT_NAMES: usize = 32;

/// The plans of one job.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    loaded: Option<Arc<JobPlan>>,
    /// Oldest first; the last one is the newest.
    swaps: VecDeque<Arc<Swap>>,
    /// The numbers of earlier swaps, and the labels of their plans.
    former: VecDeque<(u64, Option<PlanStatus>)>,
    made: u32,
    /// If the newest swap began a trial: what the job returns to when the trials end; `Some(None)` is
    /// default clocks.
    trial: Option<Option<Arc<JobPlan>>>,
}

impl Plans {
    /// The plans of a job that an earlier daemon knew; `swaps` are the last ones.
    pub(crate) fn of_earlier_daemon(swaps: VecDeque<Arc<Swap>>) -> Self {
        let numbers = swaps.iter().filter_map(|swap| Some(swap.plan.as_ref()?.number));
        let mut plans = Self { made: numbers.max().unwrap_or(0), ..Self::default() };
        swaps.into_iter().for_each(|swap| plans.push(swap, false));
        plans
    }

    /// A number for another plan.
    pub(crate) fn next_number(&mut self) -> u32 {
        self.made = self.made.wrapping_add(1);
        self.made
    }

    /// Keeps a plan for a swap.
    pub(crate) fn load(&mut self, plan: Arc<JobPlan>) {
        self.loaded = Some(plan);
    }

    /// The plan that waits for a swap.
    pub(crate) fn loaded(&self) -> Option<&Arc<JobPlan>> {
        self.loaded.as_ref()
    }

    /// Marks that plan as in use. Another one that was loaded since stays.
    pub(crate) fn unload(&mut self, plan: &JobPlan) {
        self.loaded.take_if(|loaded| **loaded == *plan);
    }

    /// The plan of the newest swap; `None` is default clocks.
    pub(crate) fn current(&self) -> Option<&Arc<JobPlan>> {
        self.swaps.back().and_then(|swap| swap.plan.as_ref())
    }

    /// The plan before the current one; `Some(None)` is default clocks. `None` if there was no swap
    /// yet.
    pub(crate) fn previous(&self) -> Option<Option<Arc<JobPlan>>> {
        let (trial, now) = (self.trial(), self.before_trial());
        let mut settled = self.swaps.iter().rev().filter(|swap| Some(swap.number) != trial);
        let before = settled.find(|swap| swap.plan != now);
        (!self.swaps.is_empty()).then(|| before.and_then(|swap| swap.plan.clone()))
    }

    /// The last swaps, oldest first.
    pub(crate) fn swaps(&self) -> impl DoubleEndedIterator<Item = &Arc<Swap>> {
        self.swaps.iter()
    }

    /// The number of the newest swap, 0 before the first one.
    pub(crate) fn newest_number(&self) -> u64 {
        self.swaps.back().map_or(0, |swap| swap.number)
    }

    /// The newest swap, if some ranks have yet to change.
    pub(crate) fn under_way(&self) -> Option<&Arc<Swap>> {
        self.swaps.back().filter(|swap| !swap.is_complete())
    }

    /// The newest swap, if some ranks have changed, or are about to, and others not yet.
    pub(crate) fn half_done(&self) -> Option<&Arc<Swap>> {
        self.under_way().filter(|swap| !swap.is_replaceable())
    }

    /// Makes a swap the newest one. With `replaces_newest` no rank has taken the newest one up so
    /// far.
    pub(crate) fn push(&mut self, swap: Arc<Swap>, replaces_newest: bool) {
        let (number, trial) = (self.newest_number(), self.trial.take());
        if replaces_newest {
            self.swaps.pop_back();
        } else {
            // A rollback leads to what ran before the trials, and to another plan.
            self.forget_newest_if(|_| trial.is_some());
        }
        if let Some(before @ Some(_)) = trial
            && self.current() != before.as_ref()
        {
            self.swaps.push_back(Arc::new(Swap::decided(number, before, 0, Vec::new())));
        }
        self.forget_newest_if(|newest| newest.plan == swap.plan);
        self.swaps.push_back(swap);
        if self.swaps.len() > KEPT_SWAPS
            && let Some(former) = self.swaps.pop_front()
        {
            self.remember_name(&former);
        }
    }

    fn forget_newest_if(&mut self, is_it: impl Fn(&Swap) -> bool) {
        if let Some(former) = self.swaps.pop_back_if(|newest| is_it(newest)) {
            self.remember_name(&former);
        }
    }

    fn remember_name(&mut self, swap: &Swap) {
        self.former.push_back((swap.number, swap.plan.as_ref().map(|plan| plan.status())));
        if self.former.len() > KEPT_NAMES {
            self.former.pop_front();
        }
    }

    /// Checks that nobody has begun another swap after this one.
    pub(crate) fn check_newest(&self, after: Option<u64>) -> Result<(), Refusal> {
        let newest = self.newest_number();
        let Some(after) = after.filter(|after| *after != newest) else { return Ok(()) };
        let message =
            format!("the newest swap of the job is number {newest}, and no longer {after}");
        Err(Refusal::new(RefusalCode::LimitReached, message, "look at the job again"))
    }

    /// What the job ran after the swap of that number; 0 is the time before the first. `Some(None)`
    /// is default clocks, and `None` a swap that is no longer known.
    pub(crate) fn ran_after(&self, number: u64) -> Option<Option<PlanStatus>> {
        let swap = self.swaps.iter().find(|swap| swap.number == number);
        let swap = swap.map(|swap| swap.plan.as_ref().map(|plan| plan.status()));
        let former = || self.former.iter().find(|(former, _)| *former == number);
        let known = swap.or_else(|| former().map(|(_, status)| status.clone()));
        known.or_else(|| (number == 0).then_some(None))
    }

    /// Marks that the newest swap began a trial, after which the job returns to what it ran `before`.
    pub(crate) fn begin_trial(&mut self, before: Option<Arc<JobPlan>>) {
        self.trial = Some(before);
    }

    /// The number of the swap that began a trial.
    pub(crate) fn trial(&self) -> Option<u64> {
        self.trial.as_ref().map(|_| self.newest_number())
    }

    /// What the job returns to after a trial, or runs if there is none.
    pub(crate) fn before_trial(&self) -> Option<Arc<JobPlan>> {
        self.trial.as_ref().map_or(self.current(), Option::as_ref).cloned()
    }

    /// Makes what the last trial ran what the job runs from now on.
    pub(crate) fn keep_trial(&mut self) {
        self.trial = None;
    }

    /// The units of all plans that are kept.
    pub(crate) fn num_units(&self) -> usize {
        let plans = self.swaps.iter().filter_map(|swap| swap.plan.as_ref()).chain(&self.loaded);
        plans.map(|plan| plan.instructions()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::example::table;
    use super::*;
    use crate::lease::Progress;

    fn plan(number: u32) -> Arc<JobPlan> {
        let label = format!("p{number}");
        Arc::new(JobPlan::new(number, label, table(&[[900, 900]])))
    }

    fn swap(number: u32) -> Arc<Swap> {
        Arc::new(Swap::decided(number.into(), Some(plan(number)), 0, Vec::new()))
    }

    fn after(swaps: std::ops::RangeInclusive<u32>) -> Plans {
        let mut plans = Plans::default();
        swaps.for_each(|number| plans.push(swap(number), false));
        plans
    }

    const DEFAULT_CLOCKS: Option<Option<PlanStatus>> = Some(None);
    const FORGOTTEN: Option<Option<PlanStatus>> = None;

    fn ran(number: u32) -> Option<Option<PlanStatus>> {
        Some(Some(plan(number).status()))
    }

    #[test]
    fn the_time_before_any_swap_is_one_of_default_clocks() {
        assert_eq!(Plans::default().ran_after(0), DEFAULT_CLOCKS);
        assert_eq!(after(1..=40).ran_after(0), DEFAULT_CLOCKS);
    }

    #[test]
    fn what_ran_after_a_swap_is_known_by_its_name_until_it_is_forgotten() {
        let newest = 40;
        let plans = after(1..=newest);
        let known = newest - (KEPT_SWAPS + KEPT_NAMES) as u32;
        for number in 1..=known {
            assert_eq!(plans.ran_after(number.into()), FORGOTTEN, "{number}");
        }
        for number in known + 1..=newest {
            assert_eq!(plans.ran_after(number.into()), ran(number), "{number}");
        }
        assert_eq!(plans.ran_after(u64::from(newest) + 1), FORGOTTEN);
        assert_eq!(plans.ran_after(u64::MAX), FORGOTTEN);
    }

    #[test]
    fn a_swap_to_default_clocks_is_known_as_one_and_not_as_forgotten() {
        let mut plans = Plans::default();
        plans.push(Arc::new(Swap::decided(1, None, 0, Vec::new())), false);
        assert_eq!(plans.ran_after(1), DEFAULT_CLOCKS);
        (2..=5).for_each(|number| plans.push(swap(number), false));
        assert_eq!(plans.ran_after(1), DEFAULT_CLOCKS);
    }

    #[test]
    fn what_an_earlier_daemon_ran_before_its_last_swaps_is_forgotten() {
        let plans = Plans::of_earlier_daemon([swap(8), swap(9)].into());
        assert_eq!((plans.ran_after(8), plans.ran_after(7)), (ran(8), FORGOTTEN));
    }

    #[test]
    fn the_rollback_after_trials_leads_to_what_ran_before_them() {
        let mut plans = after(1..=1);
        for number in 2..=4 {
            plans.push(swap(number), false);
            plans.begin_trial(None);
        }
        assert_eq!(plans.trial(), Some(4));
        plans.push(swap(5), false);
        assert_eq!(plans.trial(), None);
        assert_eq!(plans.previous().flatten().map(|plan| plan.number), Some(1));
        assert_eq!(plans.ran_after(3), ran(3), "trials are measured, too");
    }

    #[test]
    fn a_trial_that_is_kept_is_what_a_rollback_leads_to() {
        let mut plans = after(1..=1);
        plans.push(swap(2), false);
        plans.begin_trial(None);
        plans.keep_trial();
        plans.push(swap(3), false);
        assert_eq!(plans.previous().flatten().map(|plan| plan.number), Some(2));
    }

    #[test]
    fn in_a_comparison_a_rollback_leads_to_what_ran_before_the_compared_plan() {
        // The plan itself, and then default clocks, are turns of the comparison.
        let mut plans = after(1..=2);
        plans.push(again(3, 2), false);
        plans.begin_trial(Some(plan(2)));
        let previous = |plans: &Plans| plans.previous().flatten().map(|plan| plan.number);
        assert_eq!(previous(&plans), Some(1));
        plans.push(Arc::new(Swap::decided(4, None, 0, Vec::new())), false);
        plans.begin_trial(Some(plan(2)));
        assert_eq!(previous(&plans), Some(1));
        assert_eq!(plans.before_trial(), Some(plan(2)));
        // A user changes to default clocks, and back.
        plans.push(Arc::new(Swap::decided(5, None, 0, Vec::new())), false);
        assert_eq!(previous(&plans), Some(2));
    }

    #[test]
    fn a_job_whose_first_plan_is_compared_goes_back_to_default_clocks_and_to_the_plan() {
        let mut plans = after(1..=1);
        plans.push(again(2, 1), false);
        plans.begin_trial(Some(plan(1)));
        assert_eq!(plans.previous(), Some(None));
        plans.push(Arc::new(Swap::decided(3, None, 0, Vec::new())), false);
        assert_eq!(plans.previous().flatten(), Some(plan(1)));
    }

    /// A swap to the plan of another swap, as a guard goes back to it after a comparison.
    fn again(number: u32, of: u32) -> Arc<Swap> {
        let again = JobPlan::new(number, format!("p{of}"), table(&[[900, 900]]));
        Arc::new(Swap::decided(number.into(), Some(Arc::new(again)), 0, Vec::new()))
    }

    #[test]
    fn the_comparisons_of_a_guard_change_nothing_about_what_a_rollback_leads_to() {
        let mut plans = after(1..=2);
        for turn in 0..3 {
            plans.push(Arc::new(Swap::decided(10 + 2 * turn, None, 0, Vec::new())), false);
            plans.begin_trial(None);
            plans.push(again(11 + 2 * turn as u32, 2), false);
            assert_eq!(plans.current().map(|plan| plan.number), Some(11 + 2 * turn as u32));
            assert_eq!(plans.previous().flatten().map(|plan| plan.number), Some(1), "{turn}");
        }
    }

    #[test]
    fn a_swap_that_waits_and_is_taken_back_is_no_plan_to_roll_back_to() {
        let mut plans = after(1..=2);
        let waiting = vec![Arc::new(Progress::default())];
        plans.push(Arc::new(Swap::decided(3, Some(plan(3)), 100_000, waiting)), false);
        plans.push(again(4, 2), true);
        assert_eq!(plans.previous().flatten().map(|plan| plan.number), Some(1));
        assert_eq!(plans.ran_after(2).flatten().map(|plan| plan.label), Some("p2".to_owned()));
    }

    #[test]
    fn a_swap_that_is_replaced_leaves_neither_a_plan_nor_a_name() {
        let mut plans = after(1..=1);
        let waiting = vec![Arc::new(Progress::default())];
        plans.push(Arc::new(Swap::decided(2, Some(plan(2)), 50, waiting)), false);
        assert_eq!(plans.under_way().map(|swap| swap.number), Some(2));
        plans.push(swap(3), true);
        assert_eq!((plans.ran_after(2), plans.swaps().count()), (FORGOTTEN, 2));
        assert_eq!(plans.previous().flatten().map(|plan| plan.number), Some(1));
        assert!(plans.under_way().is_none());
    }

    #[test]
    fn the_units_of_every_plan_that_is_kept_are_counted() {
        let mut plans = after(1..=40);
        assert_eq!(plans.num_units(), KEPT_SWAPS * 2);
        let loaded = plan(41);
        plans.load(Arc::clone(&loaded));
        assert_eq!(plans.num_units(), (KEPT_SWAPS + 1) * 2);
        plans.unload(&loaded);
        assert_eq!(plans.num_units(), KEPT_SWAPS * 2);
    }

    #[test]
    fn a_table_that_was_loaded_before_waits_no_more_once_it_runs() {
        let mut plans = Plans::default();
        plans.load(plan(1));
        plans.unload(&plan(1));
        assert!(plans.loaded().is_none());
    }

    #[test]
    fn a_plan_that_is_loaded_while_another_is_swapped_to_stays_loaded() {
        let (swapped_to, newer) = (plan(1), plan(2));
        let mut plans = Plans::default();
        plans.load(Arc::clone(&swapped_to));
        plans.load(Arc::clone(&newer));
        plans.unload(&swapped_to);
        assert_eq!(plans.loaded().map(|plan| plan.number), Some(2));
    }

    #[test]
    fn the_number_of_a_plan_after_the_last_possible_one_does_no_harm() {
        let last = Swap::decided(1, Some(plan(u32::MAX)), 0, Vec::new());
        let mut plans = Plans::of_earlier_daemon([Arc::new(last)].into());
        assert_eq!(plans.next_number(), 0);
        assert_eq!(plans.next_number(), 1);
    }
}

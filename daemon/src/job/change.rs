//! Changing what a job runs: plans are checked before the job is locked, and a swap begins at a
//! step that no rank has begun.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pfo_keeper::only_observes;
use pfo_protocol::{
    ClockTable, Milliwatts, Refusal, RefusalCode, SwapTarget, TrialRun, check_label,
};

use super::job_plan::JobPlan;
use super::misfit::Misfit;
use super::{Job, Member, Members, Swap, does_not_fit};

/// Stages that may have power limits: status lists them for every plan.
const MOST_LIMITS: usize = 128;

/// Why nothing is measured, or promised, that only a clock or a limit that is set could show.
pub(crate) fn observed() -> Refusal {
    let remedy = "start it with [driver] mode = \"control\", and without --observe";
    Refusal::new(RefusalCode::NotAuthorized, "pfod only observes, and sets nothing", remedy)
}

/// The name of a plan, wherever it is shown: where nothing is set, it is followed as if it were.
fn as_if(label: String) -> String {
    if only_observes() { format!("as if: {label}") } else { label }
}

impl Job {
    /// Checks a plan of at most `most` units against the job and keeps it for a swap.
    pub(crate) fn load(
        &self,
        label: String,
        table: ClockTable,
        most: usize,
    ) -> Result<Arc<JobPlan>, Refusal> {
        let plan = self.fit_table(label, table, most)?;
        self.members().plans.load(Arc::clone(&plan));
        self.notice_change();
        Ok(plan)
    }

    /// Checks what the job is to run against it; `None` is default clocks.
    pub(crate) fn fit(&self, run: TrialRun, most: usize) -> Result<Option<Arc<JobPlan>>, Refusal> {
        let plan = match run {
            TrialRun::DefaultClocks => return Ok(None),
            _ if only_observes() => return Err(observed()),
            TrialRun::Plan { label, table } => self.fit_table(label, table, most)?,
            TrialRun::Uniform(mhz) => self.checked(|number| JobPlan::uniform(number, vec![mhz]))?,
            TrialRun::Replicas(clocks) => {
                self.checked(|number| JobPlan::uniform(number, clocks))?
            }
            TrialRun::FreeMemory => self.checked(JobPlan::free_memory)?,
            TrialRun::PowerLimits { label, limits_w } => {
                check_label(&label)?;
                if limits_w.len() > MOST_LIMITS {
                    let stages = limits_w.len();
                    let message =
                        format!("power limits of {stages} stages are more than {MOST_LIMITS}");
                    let remedy = "give a job of this many stages a plan";
                    return Err(Refusal::new(RefusalCode::LimitReached, message, remedy));
                }
                let limits = limits_w.into_iter().map(Milliwatts::of_watts).collect();
                self.checked(|number| JobPlan::power_limits(number, label, limits))?
            }
        };
        Ok(Some(plan))
    }

    /// Checks a plan of at most `most` units against the job.
    pub(crate) fn fit_table(
        &self,
        label: String,
        table: ClockTable,
        most: usize,
    ) -> Result<Arc<JobPlan>, Refusal> {
        check_label(&label)?;
        self.check_room(table.num_units(), most)?;
        self.checked(|number| JobPlan::new(number, as_if(label), table))
    }

    /// A plan that is checked against the job, without holding its lock.
    fn checked(&self, make: impl FnOnce(u32) -> JobPlan) -> Result<Arc<JobPlan>, Refusal> {
        let (ranks, number) = {
            let mut members = self.members();
            (members.ranks().cloned().collect::<Vec<_>>(), members.plans.next_number())
        };
        let plan = make(number);
        plan.check_stages(self.pp_degree)
            .and_then(|()| ranks.iter().try_for_each(|rank| plan.check_rank(rank)))
            .map_err(|misfit| does_not_fit(&plan, &misfit))?;
        Ok(Arc::new(plan))
    }

    fn check_room(&self, units: usize, most: usize) -> Result<(), Refusal> {
        if units <= most {
            return Ok(());
        }
        let uid = self.key.uid;
        let message = format!(
            "the plan has {units} instructions, but the plans that user {uid} keeps leave room for {most}"
        );
        let remedy =
            "plans are forgotten a quarter of an hour after the last rank of their job has left";
        Err(Refusal::new(RefusalCode::LimitReached, message, remedy))
    }

    /// Suspends the plans whose clocks the ranks may no longer have. Returns their numbers, each
    /// with the first difference.
    pub(crate) fn suspend_what_is_not_allowed(&self) -> Vec<(u32, Misfit)> {
        let members = self.members();
        let plans = members.plans.swaps().filter_map(|swap| swap.plan.as_ref());
        let misfit = |plan: &Arc<JobPlan>| {
            let misfit = members.ranks().find_map(|rank| plan.check_granted(rank).err())?;
            plan.suspend(|| format!("the configuration has changed: {misfit}"));
            Some((plan.number, misfit))
        };
        plans.filter_map(misfit).collect()
    }

    /// Begins a swap; every rank changes at the step that the swap names, which is `at` if it is
    /// given. It replaces a swap whose step has yet to come. A plan in `target` has at most `most`
    /// units. If `after` is given, that still has to be the newest swap.
    pub(crate) fn swap(
        &self,
        target: SwapTarget,
        (at, after): (Option<u64>, Option<u64>),
        most: usize,
    ) -> Result<Arc<Swap>, Refusal> {
        let plan = match target {
            SwapTarget::DefaultClocks => None,
            SwapTarget::Loaded => Some(self.loaded()?),
            SwapTarget::Previous => self.previous()?,
            SwapTarget::Table { label, table } => Some(self.fit_table(label, table, most)?),
            SwapTarget::Uniform(mhz) => self.fit(TrialRun::Uniform(mhz), most)?,
            SwapTarget::Replicas(clocks) => self.fit(TrialRun::Replicas(clocks), most)?,
            SwapTarget::PowerLimits { label, limits_w } => {
                self.fit(TrialRun::PowerLimits { label, limits_w }, most)?
            }
        };
        let mut members = self.members();
        members.check_free(&self.key.name, at.is_none())?;
        members.plans.check_newest(after)?;
        let swap = self.begin_swap(&mut members, plan, at)?;
        members.held = None;
        if let Some(plan) = &swap.plan {
            members.plans.unload(plan);
            // A restart ends it, and no rollback leads to it.
            if plan.is_for_measuring() {
                members.plans.begin_trial(None);
            }
        }
        Ok(swap)
    }

    fn loaded(&self) -> Result<Arc<JobPlan>, Refusal> {
        self.members().plans.loaded().cloned().ok_or_else(|| {
            let message = format!("no plan is loaded for job {}", self.key.name);
            Refusal::new(RefusalCode::NoPlan, message, "give a plan file")
        })
    }

    fn previous(&self) -> Result<Option<Arc<JobPlan>>, Refusal> {
        self.members().plans.previous().ok_or_else(|| {
            let message =
                format!("job {} has run no plan that could be rolled back", self.key.name);
            Refusal::new(RefusalCode::NoPlan, message, "see `pfoctl status`")
        })
    }

    /// Begins a swap to a plan, even while the job is held for measuring; the caller has checked
    /// that this is allowed.
    pub(crate) fn begin_swap(
        &self,
        members: &mut Members,
        plan: Option<Arc<JobPlan>>,
        at: Option<u64>,
    ) -> Result<Arc<Swap>, Refusal> {
        self.check_steps_known(members)?;
        if let Some(last) = members.plans.half_done() {
            return Err(self.taking_place(last));
        }
        let under_way = members.plans.under_way().cloned();
        // Ranks may have joined since the plan was checked.
        plan.as_deref().map_or(Ok(()), |plan| members.check(plan))?;
        let number = members.plans.newest_number().saturating_add(1);
        let ranks = members.ranks().map(|m| Arc::clone(&m.session.progress)).collect();
        let mut swap = Swap::new(number, plan, at, ranks);
        let last = self.newest_swap.load_full();
        if let Some(last) = &last {
            swap = swap.after(last, under_way.is_some());
        }
        let swap = Arc::new(swap);
        self.newest_swap.store(Some(Arc::clone(&swap)));
        if swap.came_too_late() {
            self.newest_swap.store(last);
            return Err(match (at, swap.next_step()) {
                (Some(at), next) if at < next => self.past(at, next),
                _ => self.taking_place(under_way.as_deref().unwrap_or(&swap)),
            });
        }
        members.plans.push(Arc::clone(&swap), under_way.is_some());
        under_way.inspect(|replaced| replaced.replaced.store(true, Relaxed));
        self.notice_change();
        Ok(swap)
    }

    fn check_steps_known(&self, members: &Members) -> Result<(), Refusal> {
        let is_unknown = |member: &&Member| !member.session.progress.knows_step();
        let Some(member) = members.ranks().find(is_unknown) else { return Ok(()) };
        let (rank, name) = (member.session.holder.rank, &self.key.name);
        let message =
            format!("rank {rank} of job {name} has begun no step since pfod was restarted");
        let remedy = "try again after its next step, or with --wait";
        Err(Refusal::new(RefusalCode::LimitReached, message, remedy))
    }

    fn past(&self, at: u64, next: u64) -> Refusal {
        let message = format!("a rank of job {} has begun step {at} already", self.key.name);
        let remedy = format!("give a step later than {next}, or leave the step to pfod");
        Refusal::new(RefusalCode::LimitReached, message, remedy)
    }

    fn taking_place(&self, swap: &Swap) -> Refusal {
        let ((done, all), step, name) = (swap.taken_up(), swap.step(), &self.key.name);
        let message =
            format!("job {name} is in a swap at step {step}: {done} of {all} ranks have changed");
        Refusal::new(RefusalCode::LimitReached, message, "try again after that step")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::TryLockError;
    use std::sync::atomic::Ordering::Relaxed;

    use pfo_protocol::{Mhz, PlannedUnit, Rank};

    use super::super::example::{B0, F0, job, member, table};
    use super::*;
    use crate::lease::example_grant;

    fn to_table(label: &str, mhz: u32) -> SwapTarget {
        SwapTarget::Table { label: label.into(), table: table(&[[mhz, mhz]]) }
    }

    fn refused<T>(result: Result<T, Refusal>) -> Refusal {
        result.err().unwrap()
    }

    #[test]
    fn a_swap_to_a_table_leaves_the_loaded_plan_where_it_is() {
        let job = job("j", 1);
        job.load("loaded".into(), table(&[[900, 900]]), usize::MAX).unwrap();
        let swap = job.swap(to_table("table", 1200), (None, None), usize::MAX).unwrap();
        assert_eq!(swap.plan.as_ref().unwrap().label, "table");
        let label = job.members().plans.loaded().map(|plan| plan.label.clone());
        assert_eq!(label.as_deref(), Some("loaded"));
        let swap = job.swap(SwapTarget::Loaded, (None, None), usize::MAX).unwrap();
        assert_eq!(swap.plan.as_ref().unwrap().label, "loaded");
        assert!(job.members().plans.loaded().is_none());
    }

    #[test]
    fn a_swap_after_one_that_is_not_the_newest_any_more_is_refused() {
        let job = job("j", 1);
        let swap = |after| job.swap(to_table("t", 900), (None, Some(after)), usize::MAX);
        assert_eq!(swap(0).unwrap().number, 1);
        let refusal = refused(swap(0));
        assert_eq!(refusal.code, RefusalCode::LimitReached);
        assert!(refusal.message.contains("number 1, and no longer 0"), "{}", refusal.message);
        assert_eq!(job.members().plans.newest_number(), 1);
        assert_eq!(swap(1).unwrap().number, 2);
        assert_eq!(refused(swap(u64::MAX)).code, RefusalCode::LimitReached);
    }

    #[test]
    fn a_plan_that_is_refused_changes_nothing() {
        let job = job("j", 1);
        job.join(member(0, 0)).unwrap();
        job.load("loaded".into(), table(&[[900, 900]]), usize::MAX).unwrap();
        assert_eq!(
            refused(job.swap(to_table("t", 1000), (None, None), 9)).code,
            RefusalCode::PlanDoesNotFit
        );
        assert!(job.load("t".into(), table(&[[1000, 900]]), usize::MAX).is_err());
        assert!(job.load("t".into(), table(&[[900, 900]; 2]), usize::MAX).is_err());
        let members = job.members();
        assert_eq!(members.plans.loaded().map(|plan| plan.label.as_str()), Some("loaded"));
        assert!(members.plans.swaps().next().is_none());
    }

    #[test]
    fn the_job_is_not_locked_while_a_plan_is_checked() {
        let job = Arc::new(job("j", 1));
        job.join(member(0, 0)).unwrap();
        // A step that differs only in its last instruction takes a while to compare.
        let units = 1 << 20;
        let mut ran = vec![F0; units];
        ran[units - 1] = B0;
        let rank = job.members().rank(Rank(0)).unwrap().clone();
        rank.session.progress.ran.store(Some(Arc::new(ran)));
        let planned = PlannedUnit { unit: F0, mhz: Mhz(900), wait_mhz: None };
        let table = ClockTable::new(1, None, vec![vec![planned; units]]).unwrap();
        let (checked, checking) = (Arc::clone(&job), Arc::clone(&job));
        let check = std::thread::spawn(move || {
            for _ in 0..8 {
                refused(checking.fit_table("t".into(), table.clone(), usize::MAX));
            }
        });
        let (mut locked, mut tried) = (0u32, 0u32);
        while !check.is_finished() {
            tried += 1;
            locked +=
                u32::from(matches!(checked.members.try_lock(), Err(TryLockError::WouldBlock)));
            std::thread::yield_now();
        }
        check.join().unwrap();
        assert!(locked <= tried / 2, "locked in {locked} of {tried} looks");
    }

    #[test]
    fn a_plan_beyond_the_room_of_its_user_is_refused_with_both_numbers() {
        let refusal = refused(job("j", 1).load("p".into(), table(&[[900, 900]]), 1));
        assert_eq!(refusal.code, RefusalCode::LimitReached);
        assert!(refusal.message.starts_with("the plan has 2 instructions"), "{refusal}");
        assert!(refusal.message.ends_with("user 7 keeps leave room for 1"), "{refusal}");
        assert!(job("j", 1).swap(to_table("t", 900), (None, None), 2).is_ok());
    }

    #[test]
    fn power_limits_of_more_stages_than_status_should_show_are_refused() {
        let job = job("j", 129);
        let limits =
            |number| TrialRun::PowerLimits { label: "z".into(), limits_w: vec![200; number] };
        let refused = |number| refused(job.fit(limits(number), usize::MAX)).message;
        assert_eq!(refused(129), "power limits of 129 stages are more than 128");
        assert_eq!(refused(128), "the plan has 128 stages, the job 129");
    }

    #[test]
    fn the_largest_power_limit_of_a_peer_is_refused_and_no_more() {
        let job = job("j", 1);
        job.join(member(0, 0)).unwrap();
        let limits = TrialRun::PowerLimits { label: "z".into(), limits_w: vec![u32::MAX] };
        assert_eq!(refused(job.fit(limits, usize::MAX)).code, RefusalCode::PlanDoesNotFit);
    }

    #[test]
    fn every_way_to_name_a_plan_checks_its_label() {
        let (job, label) = (job("j", 1), "a\u{202e}b");
        let table = || table(&[[900, 900]]);
        let limits = TrialRun::PowerLimits { label: label.into(), limits_w: vec![200] };
        let refusals = [
            refused(job.load(label.into(), table(), usize::MAX)),
            refused(job.swap(to_table(label, 900), (None, None), usize::MAX)),
            refused(job.fit_table(label.into(), table(), usize::MAX)),
            refused(job.fit(limits, usize::MAX)),
        ];
        for refusal in refusals {
            assert!(refusal.message.contains("is not one line of text"), "{refusal}");
        }
    }

    #[test]
    fn plans_whose_clocks_are_not_allowed_any_more_are_suspended_and_no_others() {
        let job = job("j", 1);
        let rank = member(0, 0);
        job.join(rank.clone()).unwrap();
        for mhz in [900, 1200] {
            let swap = job.swap(to_table(&mhz.to_string(), mhz), (None, None), usize::MAX).unwrap();
            rank.session.progress.swap.store(swap.number, Relaxed);
        }
        assert!(job.suspend_what_is_not_allowed().is_empty());
        rank.session.grant.store(Arc::new(example_grant("max_mhz = 1000")));
        let suspended = job.suspend_what_is_not_allowed();
        assert_eq!(suspended.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [2]);
        let members = job.members();
        let is_suspended = |swap: &Arc<Swap>| swap.plan.as_ref().unwrap().is_suspended();
        assert_eq!(members.plans.swaps().map(is_suspended).collect::<Vec<_>>(), [false, true]);
    }
}

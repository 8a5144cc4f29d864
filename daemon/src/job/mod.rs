//! A job: its ranks on this node, what they run, and how all of them change at one step.

mod change;
mod changes;
#[cfg(test)]
mod example;
mod file;
mod hold;
mod job_plan;
mod jobs;
mod members;
mod misfit;
mod past;
mod plans;
mod record;
mod swap;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use pfo_protocol::{JobName, Refusal, RefusalCode, Uid};
use pfo_service::lock;
use serde::{Deserialize, Serialize};

pub(crate) use self::change::observed;
pub(crate) use self::changes::Changes;
#[cfg(test)]
pub(crate) use self::example::{member as example_member, session as example_session};
pub(crate) use self::file::JobFiles;
#[cfg(feature = "fuzzing")]
pub(crate) use self::file::parse_job;
pub(crate) use self::hold::{Hold, Holds};
pub(crate) use self::job_plan::{JobPlan, StageClocks, StageSequence};
pub(crate) use self::jobs::Jobs;
#[cfg(test)]
pub(crate) use self::jobs::jobs_in;
pub(crate) use self::members::{Measurer, Member, Members};
use self::misfit::Misfit;
pub(crate) use self::plans::Plans;
pub(crate) use self::swap::Swap;
use crate::lease::Session;

/// The key of a job: jobs of different users may have the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct JobKey {
    /// The owner of the job.
    pub uid: Uid,
    pub name: JobName,
}

/// The part of a job that is on this node.
#[derive(Debug)]
pub(crate) struct Job {
    /// The owner and the name of the job.
    pub key: JobKey,
    /// The number of pipeline stages, on all nodes.
    pub pp_degree: u32,
    newest_swap: ArcSwapOption<Swap>,
    members: Mutex<Members>,
    changes: Changes,
}

impl Job {
    /// A job without ranks.
    pub(crate) fn new(key: JobKey, pp_degree: u32, changes: Changes) -> Self {
        let (newest_swap, members) = (ArcSwapOption::empty(), Mutex::default());
        Self { key, pp_degree, newest_swap, members, changes }
    }

    /// A job that an earlier daemon knew, without ranks since `since`.
    pub(crate) fn of_earlier_daemon(
        key: JobKey,
        pp_degree: u32,
        plans: Plans,
        since: Instant,
    ) -> Self {
        let newest_swap = ArcSwapOption::new(plans.swaps().next_back().cloned());
        let members = Mutex::new(Members::without_ranks(plans, since));
        Self { newest_swap, members, ..Self::new(key, pp_degree, Changes::default()) }
    }

    /// The same job, whose changes count among these.
    pub(crate) fn counted_by(self, changes: Changes) -> Self {
        Self { changes, ..self }
    }

    /// The newest swap, for the thread of a rank: no lock, no allocation.
    pub(crate) fn newest_swap(&self) -> arc_swap::Guard<Option<Arc<Swap>>> {
        self.newest_swap.load()
    }

    /// Everything that administration sees. Never held across a call of the driver.
    pub(crate) fn members(&self) -> MutexGuard<'_, Members> {
        lock(&self.members)
    }

    /// Notifies the agent that the job changed.
    pub(crate) fn notice_change(&self) {
        self.changes.notice();
    }

    /// Whether the step of every rank is known.
    pub(crate) fn knows_steps(&self) -> bool {
        self.members().ranks().all(|member| member.session.progress.knows_step())
    }

    /// Adds a rank. Returns the swap that it takes up with its first step: a rank that joins late
    /// gets the job's plan, or what ran before it if the other ranks have yet to change, or itself: all of
    /// them may have come back since the swap was made.
    pub(crate) fn join(&self, member: Member) -> Result<Option<Arc<Swap>>, Refusal> {
        let position = &member.hello.position;
        let (rank, name) = (position.rank, &self.key.name);
        let mut members = self.members();
        // Checked even if the other ranks have left since the lookup: the job's plans are still
        // theirs.
        if position.pp_degree != self.pp_degree {
            let (its, others) = (position.pp_degree, self.pp_degree);
            let message = format!(
                "rank {rank} says that job {name} has {its} stages, its other ranks say {others}"
            );
            let remedy = "end ranks of an earlier run, give all one pp_degree, or rename the job";
            return Err(Refusal::new(RefusalCode::RankConflict, message, remedy));
        }
        if let Some(other) = members.rank(rank) {
            let pid = other.session.holder.pid;
            let message = format!("rank {rank} of job {name} is process {pid} already");
            let remedy = "give every rank its own number, and every job its own name";
            return Err(Refusal::new(RefusalCode::RankConflict, message, remedy));
        }
        if let Some(plan) = members.plans.current() {
            let fits = plan.check_stages(self.pp_degree).and_then(|()| plan.check_rank(&member));
            if members.begins_anew(&member) {
                plan.resume();
            }
            if let Err(misfit) = fits {
                plan.suspend(|| format!("it does not fit a rank that came later: {misfit}"));
            }
        }
        let next_step = member.hello.next_step;
        members.add(member);
        let takes = |swap: &&Arc<Swap>| swap.is_complete() && !swap.is_to_come(next_step);
        let complete = members.plans.swaps().rev().find(takes).cloned();
        drop(members);
        self.notice_change();
        Ok(complete)
    }

    /// Removes a rank whose session has ended.
    pub(crate) fn leave(&self, session: &Session) {
        self.members().remove(session);
        self.notice_change();
    }
}

fn does_not_fit(plan: &JobPlan, why: &Misfit) -> Refusal {
    let remedy = match plan.has_power_limits() {
        true => "`pfoctl policy explain` shows what is allowed",
        false => "make a plan for this job with `pfoctl plan optimize` and `pfoctl plan export`",
    };
    Refusal::new(RefusalCode::PlanDoesNotFit, why.to_string(), remedy)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use pfo_protocol::{Rank, SwapTarget};

    use super::example::{job, member, table};
    use super::*;

    fn load(job: &Job, mhz: u32) -> Result<Arc<JobPlan>, Refusal> {
        job.load(format!("{mhz}"), table(&[[mhz, mhz]]), usize::MAX)
    }

    fn swap(job: &Job, target: SwapTarget, at: Option<u64>) -> Result<Arc<Swap>, Refusal> {
        job.swap(target, (at, None), usize::MAX)
    }

    #[test]
    fn a_rank_number_is_given_once() {
        let job = job("j", 1);
        job.join(member(0, 0)).unwrap();
        let refusal = job.join(member(0, 0)).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::RankConflict);
        job.join(member(1, 0)).unwrap();
    }

    #[test]
    fn a_rank_that_says_another_number_of_stages_is_refused_even_without_other_ranks() {
        let refusal = job("j", 2).join(member(0, 0)).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::RankConflict);
        assert!(refusal.message.contains("job j has 1 stages, its other ranks say 2"), "{refusal}");
    }

    #[test]
    fn a_swap_whose_step_has_yet_to_come_is_replaced_and_leaves_no_trace() {
        let job = job("j", 1);
        job.join(member(0, 0)).unwrap();
        for (mhz, step) in [(900, 100), (1200, 99), (900, 300)] {
            load(&job, mhz).unwrap();
            assert_eq!(swap(&job, SwapTarget::Loaded, Some(step)).unwrap().step(), step);
        }
        assert_eq!(job.members().plans.current().unwrap().label, "900");
        let back = swap(&job, SwapTarget::Previous, None).unwrap();
        let swaps = job.members().plans.swaps().count();
        assert_eq!((back.plan.is_none(), back.step(), swaps), (true, 0, 1));
    }

    #[test]
    fn a_swap_to_a_step_that_is_past_is_refused_and_what_was_before_counts_on() {
        let job = job("j", 1);
        job.join(member(0, 0)).unwrap();
        job.join(member(1, 0)).unwrap();
        let progress = |rank| Arc::clone(&job.members().rank(Rank(rank)).unwrap().session.progress);
        progress(0).begin_step(3);
        progress(1).begin_step(5);
        for at in [0, 4, 5] {
            let refusal = swap(&job, SwapTarget::DefaultClocks, Some(at)).unwrap_err();
            let expected = format!("a rank of job j has begun step {at} already");
            assert_eq!((refusal.code, refusal.message), (RefusalCode::LimitReached, expected));
            assert!(refusal.remedy.starts_with("give a step later than 6"), "{}", refusal.remedy);
            assert!(job.newest_swap().is_none());
        }
        load(&job, 900).unwrap();
        assert_eq!(swap(&job, SwapTarget::Loaded, Some(6)).unwrap().step(), 6);
        progress(0).begin_step(6);
        progress(1).begin_step(6);
        (0..2).for_each(|rank| progress(rank).swap.store(1, Relaxed));
        swap(&job, SwapTarget::DefaultClocks, Some(6)).unwrap_err();
        assert_eq!(job.newest_swap().as_ref().unwrap().number, 1);
        assert_eq!(job.members().plans.current().unwrap().label, "900");
    }

    #[test]
    fn a_swap_under_way_is_finished_before_the_next_one() {
        let job = job("j", 1);
        let rank = member(0, 0);
        job.join(rank.clone()).unwrap();
        load(&job, 900).unwrap();
        let first = swap(&job, SwapTarget::Loaded, None).unwrap();
        rank.session.progress.begin_step(0);
        let refusal = swap(&job, SwapTarget::DefaultClocks, None).unwrap_err();
        assert!(refusal.message.contains("0 of 1 ranks have changed"), "{refusal}");
        rank.session.progress.swap.store(first.number, Relaxed);
        assert!(swap(&job, SwapTarget::DefaultClocks, None).is_ok());
    }

    #[test]
    fn a_swap_to_the_last_steps_that_can_be_numbered_is_replaced_like_any_other() {
        for last in [u64::MAX, u64::MAX - 1] {
            let job = job("j", 1);
            job.join(member(0, 0)).unwrap();
            swap(&job, SwapTarget::DefaultClocks, Some(last)).unwrap();
            load(&job, 900).unwrap();
            swap(&job, SwapTarget::Loaded, Some(last)).unwrap();
            assert_eq!(swap(&job, SwapTarget::DefaultClocks, Some(3)).unwrap().step(), 3);
        }
    }

    #[test]
    fn a_rank_whose_step_is_not_known_yet_keeps_the_job_from_a_swap() {
        let job = job("j", 1);
        let rank = member(0, 0);
        rank.session.progress.forget_step();
        job.join(rank.clone()).unwrap();
        let refusal = swap(&job, SwapTarget::DefaultClocks, None).unwrap_err();
        assert!(refusal.message.contains("rank 0 of job j has begun no step"), "{refusal}");
        rank.session.progress.begin_step(6);
        assert_eq!(swap(&job, SwapTarget::DefaultClocks, None).unwrap().step(), 7);
    }

    #[test]
    fn a_rollback_leads_to_what_ran_before() {
        let job = job("j", 1);
        let refusal = swap(&job, SwapTarget::Previous, None).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::NoPlan);
        for mhz in [900, 1200] {
            load(&job, mhz).unwrap();
            swap(&job, SwapTarget::Loaded, None).unwrap();
        }
        let back = swap(&job, SwapTarget::Previous, None).unwrap();
        assert_eq!(back.plan.as_ref().unwrap().label, "900");
        let refusal = swap(&job, SwapTarget::Loaded, None).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::NoPlan);
    }

    #[test]
    fn a_loaded_plan_is_checked_again_against_ranks_that_came_since() {
        let job = job("j", 1);
        load(&job, 1000).unwrap();
        job.join(member(0, 0)).unwrap();
        let refusal = swap(&job, SwapTarget::Loaded, None).unwrap_err();
        assert!(refusal.message.contains("1000 MHz"), "{refusal}");
    }

    #[test]
    fn a_late_rank_finds_the_plan_in_use_unless_the_others_have_yet_to_change() {
        let job = job("j", 1);
        let early = member(0, 0);
        job.join(early.clone()).unwrap();
        load(&job, 900).unwrap();
        let swap = swap(&job, SwapTarget::Loaded, Some(5)).unwrap();
        let late = member(1, 0);
        assert!(job.join(late.clone()).unwrap().is_none());
        job.leave(&late.session);
        early.session.progress.swap.store(swap.number, Relaxed);
        assert_eq!(job.join(member(1, 0)).unwrap().map(|swap| swap.number), Some(1));
    }

    #[test]
    fn ranks_that_come_back_before_the_step_of_a_swap_wait_for_it_and_those_that_begin_anew_do_not()
    {
        let job = job("j", 1);
        let early = member(0, 0);
        job.join(early.clone()).unwrap();
        let joins = |next_step| {
            let rank = member(0, next_step);
            let takes = job.join(rank.clone()).unwrap().map(|swap| swap.number);
            job.leave(&rank.session);
            takes
        };
        load(&job, 900).unwrap();
        swap(&job, SwapTarget::Loaded, None).unwrap();
        early.session.progress.swap.store(1, Relaxed);
        load(&job, 210).unwrap();
        swap(&job, SwapTarget::Loaded, Some(50)).unwrap();
        early.session.progress.ended.store(true, Relaxed);
        job.leave(&early.session);
        assert_eq!([30, 49, 50, 51, 0].map(joins), [1, 1, 2, 2, 2].map(Some));
        early.session.progress.swap.store(2, Relaxed);
        assert_eq!(joins(30), Some(2), "it has taken place: the job goes on from an earlier step");
    }

    #[test]
    fn a_late_rank_that_the_plan_does_not_fit_suspends_it() {
        let job = job("j", 1);
        load(&job, 1000).unwrap();
        let swap = swap(&job, SwapTarget::Loaded, None).unwrap();
        job.join(member(0, 0)).unwrap();
        let why = swap.plan.as_ref().unwrap().status().suspended.unwrap();
        assert!(why.contains("1000 MHz"), "{why}");
    }

    #[test]
    fn a_plan_that_did_not_fit_runs_again_when_the_job_starts_anew_with_ranks_that_it_fits() {
        let job = job("j", 1);
        load(&job, 900).unwrap();
        let swap = swap(&job, SwapTarget::Loaded, None).unwrap();
        let plan = swap.plan.as_ref().unwrap();
        plan.suspend(|| "it does not fit a rank that came later: …".into());
        for (next_step, is_suspended) in [(3, true), (0, false)] {
            let rank = member(0, next_step);
            job.join(rank.clone()).unwrap();
            assert_eq!(plan.is_suspended(), is_suspended, "a rank that goes on at {next_step}");
            job.leave(&rank.session);
        }
        job.join(member(0, 0)).unwrap();
        plan.suspend(|| "it does not fit a rank that came later: …".into());
        job.join(member(1, 0)).unwrap();
        assert!(plan.is_suspended(), "the rank that it does not fit is still there");
    }

    #[test]
    fn what_a_job_measured_is_forgotten_when_it_starts_anew() {
        let job = job("j", 1);
        for (next_step, kept_j) in [(0, 0.0), (3, 5.0), (0, 0.0)] {
            let rank = member(0, next_step);
            job.join(rank.clone()).unwrap();
            assert_eq!(job.members().past.energy_j(), Some(kept_j), "next step {next_step}");
            let mut measured = (**rank.session.progress.measured.load()).clone();
            measured.counter_reads(Some(0.0));
            measured.counter_reads(Some(5.0));
            rank.session.progress.measured.store(Arc::new(measured));
            job.leave(&rank.session);
        }
    }

    #[test]
    fn every_change_of_a_job_is_noticed() {
        let changes = Changes::default();
        let job = job("j", 1).counted_by(changes.clone());
        let mut watch = changes.subscribe();
        let mut noticed = |what: &str, change: &dyn Fn()| {
            change();
            assert!(watch.has_changed().unwrap(), "{what}");
            watch.mark_unchanged();
        };
        let rank = member(0, 0);
        noticed("join", &|| drop(job.join(rank.clone()).unwrap()));
        noticed("load", &|| drop(load(&job, 900).unwrap()));
        noticed("swap", &|| drop(swap(&job, SwapTarget::Loaded, None).unwrap()));
        noticed("leave", &|| job.leave(&rank.session));
    }
}

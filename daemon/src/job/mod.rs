//! A job: its ranks on this node, and what administration knows of it.

mod plans;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use pfo_protocol::{DriftStatus, Hello, JobName, PlanStatus, Refusal, RefusalCode};

use crate::fit::{JobPlan, RankShape};
use crate::gpu::GpuFacts;
use crate::job_frontier::JobFrontier;
use crate::lease::Session;
use crate::measure::RankWindows;
use crate::stage_times::StageTimes;
use crate::straggler::Answered;
use crate::swap::Swap;

pub(crate) use plans::does_not_fit;

/// The last swap and, for a rollback, the one before it.
pub const KEPT_SWAPS: usize = 2;

/// What the plans of older swaps were called, for their measured windows.
const KEPT_NAMES: usize = 16;

/// Ranks that have left whose measurements are kept.
const KEPT_RANKS: usize = 1024;

/// Jobs of different users may have the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobKey {
    /// Whose job.
    pub uid: u32,
    /// Its name.
    pub name: JobName,
}

/// One rank of a job on this node.
#[derive(Clone, Debug)]
pub struct Member {
    /// What it said of itself.
    pub hello: Hello,
    /// Its session.
    pub session: Arc<Session>,
    /// Its GPU.
    pub gpu: Arc<GpuFacts>,
}

impl Member {
    /// What plans have to fit.
    #[must_use]
    pub fn shape(&self) -> RankShape {
        RankShape {
            rank: self.hello.position.rank,
            stage: self.hello.position.pp_rank,
            num_microbatches: self.hello.num_microbatches,
            ran: self.session.progress.ran.load_full(),
            gpu: Arc::clone(&self.gpu),
            grant: self.session.grant.load_full(),
        }
    }
}

/// The parts of a job that administration changes.
#[derive(Debug, Default)]
pub struct Members {
    /// The ranks on this node.
    pub ranks: BTreeMap<u32, Member>,
    /// The plan that waits for a swap.
    pub loaded: Option<Arc<JobPlan>>,
    /// The frontier whose plans answer a straggler.
    pub frontier: Option<Arc<JobFrontier>>,
    /// The straggler that the job runs a plan for.
    pub straggler: Option<Answered>,
    /// Whether the daemon answers ranks that it finds slow.
    pub auto: bool,
    /// The ranks whose instructions take longer than they should, each with the share by which they do.
    pub slow: BTreeMap<u32, f64>,
    /// How far what is measured is from what the plan predicts, if it is too far.
    pub drift: Option<DriftStatus>,
    /// The last swaps, oldest first; the last one is the newest.
    pub swaps: VecDeque<Arc<Swap>>,
    /// The numbers of those before, and what their plans were called.
    pub former: VecDeque<(u64, Option<PlanStatus>)>,
    /// When the first rank came from which on all is measured.
    pub measured_since: Option<Instant>,
    /// Joules of the sessions that have ended.
    pub ended_energy_j: f64,
    /// What the ranks measured in sessions that have ended.
    pub ended_windows: BTreeMap<u32, RankWindows>,
    /// Since when no rank is left.
    pub empty_since: Option<Instant>,
    /// Who holds the job for measuring.
    pub measured_by: Option<Measurer>,
    /// The number of the swap that began a trial; it is what the job runs only until the trials end.
    pub trial: Option<u64>,
    /// The number of the last plan.
    pub plans_made: u32,
}

/// Somebody who holds a job for measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurer {
    /// Tells the holds of the daemon apart.
    pub hold: u64,
    /// The user.
    pub uid: u32,
    /// The process; none for a sweep, which goes on without one.
    pub pid: Option<u32>,
}

impl Members {
    /// Checks a plan against every rank that is there now.
    pub(crate) fn check(&self, plan: &JobPlan) -> Result<(), Refusal> {
        let check = |member: &Member| plan.check_rank(&member.shape());
        self.ranks.values().try_for_each(check).map_err(|misfit| does_not_fit(misfit.to_string()))
    }

    /// Checks that nobody holds the job for measuring.
    pub(crate) fn check_free(&self, job: &JobName) -> Result<(), Refusal> {
        let Some(Measurer { uid, pid, .. }) = self.measured_by else { return Ok(()) };
        let (what, remedy) = match pid {
            Some(pid) => (format!("user {uid} (process {pid})"), "try again when that is over"),
            None => (
                format!("a sweep that user {uid} began"),
                "`pfoctl profile pause` or `stop` ends that",
            ),
        };
        Err(Refusal::new(
            RefusalCode::LimitReached,
            format!("{what} holds job {job} for measuring"),
            remedy,
        ))
    }

    /// A rollback leads to what ran before the trials.
    fn forget_trial(&mut self) {
        if let Some(trial) = self.trial.take()
            && self.swaps.back().is_some_and(|swap| swap.number == trial)
            && let Some(former) = self.swaps.pop_back()
        {
            self.remember_name(&former);
        }
    }

    fn remember_name(&mut self, swap: &Swap) {
        self.former.push_back((swap.number, swap.plan.as_ref().map(|plan| plan.status())));
        if self.former.len() > KEPT_NAMES {
            self.former.pop_front();
        }
    }

    /// The plan that the newest swap brought; none is default clocks.
    #[must_use]
    pub fn current(&self) -> Option<&Arc<JobPlan>> {
        self.swaps.back().and_then(|swap| swap.plan.as_ref())
    }
}

/// A job, as far as it is on this node.
#[derive(Debug)]
pub struct Job {
    /// Whose job it is, and its name.
    pub key: JobKey,
    /// The number of pipeline stages, on all nodes.
    pub pp_degree: u32,
    newest_swap: ArcSwapOption<Swap>,
    times: ArcSwapOption<Vec<Arc<StageTimes>>>,
    members: Mutex<Members>,
}

impl Job {
    /// A job without ranks.
    #[must_use]
    pub fn new(key: JobKey, pp_degree: u32) -> Self {
        Self {
            key,
            pp_degree,
            newest_swap: ArcSwapOption::empty(),
            times: ArcSwapOption::empty(),
            members: Mutex::default(),
        }
    }

    /// A job that an earlier daemon knew, without ranks `since` then; `swaps` are the last ones.
    #[must_use]
    pub fn again(key: JobKey, pp_degree: u32, swaps: VecDeque<Arc<Swap>>, since: Instant) -> Self {
        let numbers = swaps.iter().filter_map(|swap| Some(swap.plan.as_ref()?.number));
        let plans_made = numbers.max().unwrap_or(0);
        let newest_swap = ArcSwapOption::new(swaps.back().cloned());
        let members = Members { swaps, empty_since: Some(since), plans_made, ..Members::default() };
        Self { newest_swap, members: Mutex::new(members), ..Self::new(key, pp_degree) }
    }

    /// The newest swap, for the thread of a rank: no lock, no allocation.
    #[must_use]
    pub fn newest_swap(&self) -> arc_swap::Guard<Option<Arc<Swap>>> {
        self.newest_swap.load()
    }

    /// What the instructions of every stage should take, for the thread of a rank: no lock, no allocation.
    #[must_use]
    pub fn times(&self) -> arc_swap::Guard<Option<Arc<Vec<Arc<StageTimes>>>>> {
        self.times.load()
    }

    /// Says what instructions should take.
    pub(crate) fn expect(&self, times: Vec<Arc<StageTimes>>) {
        self.times.store(Some(Arc::new(times)));
    }

    /// Everything that administration sees. Never held across a call of the driver.
    pub fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is known of every rank how far it is.
    #[must_use]
    pub fn knows_steps(&self) -> bool {
        self.members().ranks.values().all(|member| member.session.progress.knows_step())
    }

    /// Adds a rank. Returns the swap that it takes up with its first step: a rank that comes late
    /// finds the job's plan in use, or what ran before it if the others have yet to change.
    ///
    /// # Errors
    /// If the rank is there already or contradicts the others.
    pub fn join(&self, member: Member) -> Result<Option<Arc<Swap>>, Refusal> {
        let position = &member.hello.position;
        let (rank, name) = (position.rank, &self.key.name);
        let mut members = self.members();
        // The others may have left since this job was found for the rank: its plans are theirs still.
        if position.pp_degree != self.pp_degree {
            return Err(Refusal::new(
                RefusalCode::RankConflict,
                format!(
                    "rank {rank} says that job {name} has {} stages, its other ranks say {}",
                    position.pp_degree, self.pp_degree
                ),
                "give every rank the same pp_degree, or another job name",
            ));
        }
        if let Some(other) = members.ranks.get(&rank) {
            return Err(Refusal::new(
                RefusalCode::RankConflict,
                format!(
                    "rank {rank} of job {name} is process {} already",
                    other.session.holder.pid
                ),
                "give every rank its own number, and every job its own name",
            ));
        }
        if let Some(plan) = members.current()
            && let Err(misfit) = plan.check_rank(&member.shape())
        {
            plan.suspend(|| format!("it does not fit a rank that came later: {misfit}"));
        }
        if members.empty_since.take().is_some() && member.hello.next_step == 0 {
            // The job starts anew; what its former run measured is over.
            members.ended_energy_j = 0.0;
            members.ended_windows.clear();
            members.measured_since = None;
        }
        members.measured_since.get_or_insert_with(Instant::now);
        members.ranks.insert(rank, member);
        Ok(members.swaps.iter().rev().find(|swap| swap.is_complete()).cloned())
    }

    /// Takes a rank out whose session is over.
    pub fn leave(&self, session: &Session) {
        let mut members = self.members();
        let measured = session.progress.measured.load();
        members.ended_energy_j += measured.energy_j;
        members.ended_windows.entry(session.holder.rank).or_default().merge(&measured.windows);
        if members.ended_windows.len() > KEPT_RANKS {
            members.ended_windows.pop_first();
        }
        members.ranks.retain(|_, member| member.session.holder.session != session.holder.session);
        if members.ranks.is_empty() {
            members.empty_since = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::Ordering::Relaxed;

    use pfo_protocol::{Holder, RankPosition, SwapTarget};

    use super::*;
    use crate::{gpu, grant};

    fn job() -> Job {
        Job::new(JobKey { uid: 7, name: "j".parse().unwrap() }, 1)
    }

    fn member(rank: u32, next_step: u64) -> Member {
        let holder =
            Holder { job: "j".parse().unwrap(), rank, uid: 7, pid: 1, session: rank.into() };
        let position = RankPosition {
            rank,
            pp_rank: 0,
            dp_rank: rank,
            tp_rank: 0,
            pp_degree: 1,
            dp_degree: 2,
            tp_degree: 1,
        };
        let hello = Hello {
            client: "test".into(),
            job: "j".parse().unwrap(),
            position,
            gpu: "GPU-1".parse().unwrap(),
            num_microbatches: None,
            next_step,
        };
        let session =
            Arc::new(Session::new(holder, grant::example(""), UnixStream::pair().unwrap().0));
        Member { hello, session, gpu: Arc::new(gpu::example()) }
    }

    fn plan(mhz: u32) -> String {
        format!(
            r#"{{"format": "pfo-plan/1", "schedule": "1f1b", "num_stages": 1,
            "num_microbatches": 1, "stages": [{{"stage": 0, "instructions": [
            {{"instruction": "forward", "microbatch": 0, "frequency_mhz": {mhz}}},
            {{"instruction": "backward", "microbatch": 0, "frequency_mhz": {mhz}}}]}}]}}"#
        )
    }

    fn load(job: &Job, mhz: u32) -> Result<Arc<JobPlan>, Refusal> {
        job.load(format!("{mhz}"), plan(mhz).as_bytes(), usize::MAX)
    }

    #[test]
    fn a_rank_number_is_given_once() {
        let job = job();
        job.join(member(0, 0)).unwrap();
        let refusal = job.join(member(0, 0)).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::RankConflict);
        job.join(member(1, 0)).unwrap();
    }

    #[test]
    fn a_swap_whose_step_has_yet_to_come_is_replaced_and_leaves_no_trace() {
        let job = job();
        job.join(member(0, 0)).unwrap();
        for (mhz, step) in [(900, 100), (1200, 100)] {
            load(&job, mhz).unwrap();
            assert_eq!(job.swap(&SwapTarget::Loaded, step).unwrap().step(), 100);
        }
        assert_eq!(job.members().current().unwrap().label, "1200");
        let back = job.swap(&SwapTarget::Previous, 0).unwrap();
        assert_eq!((back.plan.is_none(), back.step(), job.members().swaps.len()), (true, 0, 1));
    }

    #[test]
    fn a_swap_that_was_to_come_later_is_not_put_off_further() {
        let job = job();
        job.join(member(0, 0)).unwrap();
        load(&job, 900).unwrap();
        job.swap(&SwapTarget::Loaded, 100).unwrap();
        let refusal = job.swap(&SwapTarget::DefaultClocks, 101).unwrap_err();
        assert!(refusal.message.contains("in a swap at step 100"), "{refusal}");
        assert_eq!(job.newest_swap().as_ref().unwrap().number, 1);
    }

    #[test]
    fn a_swap_under_way_is_finished_before_the_next_one() {
        let job = job();
        let rank = member(0, 0);
        job.join(rank.clone()).unwrap();
        load(&job, 900).unwrap();
        let first = job.swap(&SwapTarget::Loaded, 0).unwrap();
        rank.session.progress.begin_step(0);
        let refusal = job.swap(&SwapTarget::DefaultClocks, 0).unwrap_err();
        assert!(refusal.message.contains("0 of 1 ranks have changed"), "{refusal}");
        rank.session.progress.swap.store(first.number, Relaxed);
        assert!(job.swap(&SwapTarget::DefaultClocks, 0).is_ok());
    }

    #[test]
    fn power_limits_of_more_stages_than_status_should_tell_are_refused() {
        let job = Job::new(JobKey { uid: 7, name: "j".parse().unwrap() }, 129);
        let fit = |limits: usize| {
            job.fit_power_limits(&mut job.members(), "z".into(), &vec![200; limits])
        };
        let refused = |limits| fit(limits).unwrap_err().message;
        assert_eq!(refused(129), "power limits of 129 stages are more than 128");
        assert_eq!(refused(128), "the plan has 128 stages, the job 129");
    }

    #[test]
    fn a_rollback_leads_to_what_ran_before() {
        let job = job();
        assert_eq!(job.swap(&SwapTarget::Previous, 0).unwrap_err().code, RefusalCode::NoPlan);
        for mhz in [900, 1200] {
            load(&job, mhz).unwrap();
            job.swap(&SwapTarget::Loaded, 0).unwrap();
        }
        let swap = job.swap(&SwapTarget::Previous, 0).unwrap();
        assert_eq!(swap.plan.as_ref().unwrap().label, "900");
        assert_eq!(job.swap(&SwapTarget::Loaded, 0).unwrap_err().code, RefusalCode::NoPlan);
    }

    #[test]
    fn a_loaded_plan_is_checked_again_against_ranks_that_came_since() {
        let job = job();
        load(&job, 1000).unwrap();
        job.join(member(0, 0)).unwrap();
        let refusal = job.swap(&SwapTarget::Loaded, 0).unwrap_err();
        assert!(refusal.message.contains("1000 MHz"), "{refusal}");
    }

    #[test]
    fn a_late_rank_finds_the_plan_in_use_unless_the_others_have_yet_to_change() {
        let job = job();
        let early = member(0, 0);
        job.join(early.clone()).unwrap();
        load(&job, 900).unwrap();
        let swap = job.swap(&SwapTarget::Loaded, 5).unwrap();
        let late = member(1, 0);
        assert!(job.join(late.clone()).unwrap().is_none());
        job.leave(&late.session);
        early.session.progress.swap.store(swap.number, Relaxed);
        assert_eq!(job.join(member(1, 0)).unwrap().map(|swap| swap.number), Some(1));
    }

    #[test]
    fn a_late_rank_that_the_plan_does_not_fit_suspends_it() {
        let job = job();
        load(&job, 1000).unwrap();
        let swap = job.swap(&SwapTarget::Loaded, 0).unwrap();
        job.join(member(0, 0)).unwrap();
        let why = swap.plan.as_ref().unwrap().status().suspended.unwrap();
        assert!(why.contains("1000 MHz"), "{why}");
    }

    #[test]
    fn what_a_job_measured_is_forgotten_when_it_starts_anew() {
        let job = job();
        for (next_step, kept) in [(0, 0.0), (3, 5.0), (0, 0.0)] {
            let rank = member(0, next_step);
            job.join(rank.clone()).unwrap();
            assert_eq!(job.members().ended_energy_j, kept, "next step {next_step}");
            let mut measured = (**rank.session.progress.measured.load()).clone();
            measured.counter_reads(0.0);
            measured.counter_reads(5.0);
            rank.session.progress.measured.store(Arc::new(measured));
            job.leave(&rank.session);
        }
    }
}

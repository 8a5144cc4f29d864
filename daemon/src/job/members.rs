//! The parts of a job that administration sees and changes, under one lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use pfo_keeper::GpuFacts;
use pfo_protocol::{Hello, JobName, MeasuredBy, Rank, Refusal, RefusalCode};

use super::does_not_fit;
use super::job_plan::JobPlan;
use super::past::Past;
use super::plans::Plans;
use crate::lease::Session;

/// One rank of a job on this node.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// What the rank said about itself.
    pub hello: Hello,
    pub session: Arc<Session>,
    pub gpu: Arc<GpuFacts>,
}

/// The holder of a job, for measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Measurer {
    /// Tells the holds of the daemon apart.
    pub hold: u64,
    /// The user, and the process if one waits for the result.
    pub by: MeasuredBy,
    /// Whether it compares in the background: any swap or trial ends the hold.
    pub gives_way: bool,
}

/// The ranks of a job, its plans and what was measured. Never held across a call of the driver.
#[derive(Debug, Default)]
pub(crate) struct Members {
    ranks: BTreeMap<Rank, Member>,
    empty_since: Option<Instant>,
    pub plans: Plans,
    /// What ended sessions measured.
    pub past: Past,
    /// The holder of the job, while it is held for measuring.
    pub held: Option<Measurer>,
}

impl Members {
    /// A job of an earlier daemon, without ranks since then.
    pub(crate) fn without_ranks(plans: Plans, since: Instant) -> Self {
        Self { plans, empty_since: Some(since), ..Self::default() }
    }

    /// The ranks on this node, in the order of their numbers.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = &Member> {
        self.ranks.values()
    }

    pub(crate) fn rank(&self, rank: Rank) -> Option<&Member> {
        self.ranks.get(&rank)
    }

    /// Since when the job has had no rank; `None` if it has one.
    pub(crate) fn empty_since(&self) -> Option<Instant> {
        self.empty_since
    }

    /// Has a job without ranks forgotten later.
    pub(crate) fn renew(&mut self) {
        self.empty_since = self.empty_since.map(|_| Instant::now());
    }

    /// Whether the job has no rank.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Whether the job starts anew with this rank: the first one that returns, at step 0, in a session that
    /// no earlier daemon has begun.
    pub(crate) fn begins_anew(&self, member: &Member) -> bool {
        let is_new = member.session.progress.knows_step();
        self.empty_since.is_some() && member.hello.next_step == 0 && is_new
    }

    /// Adds a rank.
    pub(crate) fn add(&mut self, member: Member) {
        if self.begins_anew(&member) {
            self.past = Past::default();
        }
        self.empty_since = None;
        self.past.begin();
        self.ranks.insert(member.hello.position.rank, member);
    }

    /// Removes the rank of a session that has ended, and keeps what it measured.
    pub(crate) fn remove(&mut self, session: &Session) {
        self.past.add(session.holder.rank, &session.progress.measured.load());
        self.ranks.retain(|_, member| member.session.holder.session != session.holder.session);
        if self.ranks.is_empty() {
            self.empty_since = Some(Instant::now());
        }
    }

    /// Checks a plan against every rank that is in the job now.
    pub(crate) fn check(&self, plan: &JobPlan) -> Result<(), Refusal> {
        let mut ranks = self.ranks();
        let checked = ranks.try_for_each(|rank| {
            plan.check_stages(rank.hello.position.pp_degree).and_then(|()| plan.check_rank(rank))
        });
        checked.map_err(|misfit| does_not_fit(plan, &misfit))
    }

    /// Checks that every rank of the job is on this node.
    pub(crate) fn check_whole(&self, job: &JobName) -> Result<(), Refusal> {
        let here = self.ranks.len();
        let all = self.ranks().next().map_or(0, |member| member.hello.position.ranks());
        if all <= here as u64 {
            return Ok(());
        }
        let message =
            format!("job {job} has {all} ranks, {here} on this node: pfod changes all or none");
        let remedy = "`pfoctl status` names a rank that has lost its GPU; pfo-agent changes all of a \
                      fleet at one step: see whether it runs; `pfoctl plan swap` and `rollback \
                      --this-node-only` change this node alone";
        Err(Refusal::new(RefusalCode::LimitReached, message, remedy))
    }

    /// Checks that the job is not held for measuring, or by a holder that gives way to a change `at_once`.
    pub(crate) fn check_free(&self, job: &JobName, at_once: bool) -> Result<(), Refusal> {
        let held = self.held.filter(|holder| !(holder.gives_way && at_once));
        let Some(Measurer { by: MeasuredBy { uid, pid }, .. }) = held else { return Ok(()) };
        let by = pid.map_or("pfo-agent".to_owned(), |pid| format!("process {pid}"));
        let remedy = "`pfoctl profile pause` ends a sweep, `pfoctl tune JOB --stop` a tune; a guard \
                      compares for some steps, and gives way to a swap without --at-step";
        let message = format!("user {uid} ({by}) holds job {job} for measuring");
        Err(Refusal::new(RefusalCode::LimitReached, message, remedy))
    }

    /// Checks that the holder has the job still.
    pub(crate) fn check_held(&self, job: &JobName, by: Measurer) -> Result<(), Refusal> {
        if self.held == Some(by) {
            return Ok(());
        }
        let message = format!("job {job} is not held for measuring any more");
        Err(Refusal::new(RefusalCode::NoPlan, message, "see `pfoctl status`, and try again"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::example::{job, member};

    #[test]
    fn a_job_is_whole_when_every_rank_that_its_sizes_ask_for_is_here() {
        let job = job("j", 1);
        let whole = || job.members().check_whole(&job.key.name).map_err(|refusal| refusal.message);
        assert_eq!(whole(), Ok(()), "its sizes are not known");
        job.join(member(0, 0)).unwrap();
        let refused = whole().unwrap_err();
        assert!(refused.contains("job j has 2 ranks, 1 on this node"), "{refused}");
        job.join(member(1, 0)).unwrap();
        assert_eq!(whole(), Ok(()));
    }
}

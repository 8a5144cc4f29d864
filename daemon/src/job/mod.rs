//! A job: its ranks on this node, what they run, and how all of them change at one step.

mod change;
mod changes;
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

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use pfo_protocol::{JobName, Refusal, RefusalCode, Uid};

pub(crate) use self::change::Runs;
pub(crate) use self::changes::Changes;
pub(crate) use self::file::JobFiles;
#[cfg(feature = "fuzzing")]
pub(crate) use self::file::parse_job;
pub(crate) use self::hold::{Hold, Holds};
pub(crate) use self::job_plan::{JobPlan, StageClocks, StageSequence};
pub(crate) use self::jobs::Jobs;
pub(crate) use self::members::{Measurer, Member, Members};
use self::misfit::Misfit;
use self::plans::Plans;
pub(crate) use self::plans::Ran;
pub(crate) use self::swap::Swap;
use crate::lease::Session;

/// Jobs of different users may have the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct JobKey {
    /// Whose job.
    pub uid: Uid,
    /// Its name.
    pub name: JobName,
}

/// A job, as far as it is on this node.
#[derive(Debug)]
pub(crate) struct Job {
    /// Whose job it is, and its name.
    pub key: JobKey,
    /// The number of pipeline stages, on all nodes.
    pub pp_degree: u32,
    newest_swap: ArcSwapOption<Swap>,
    members: Mutex<Members>,
    changes: Changes,
}

impl Job {
    /// A job without ranks.
    #[must_use]
    pub(crate) fn new(key: JobKey, pp_degree: u32, changes: Changes) -> Self {
        let (newest_swap, members) = (ArcSwapOption::empty(), Mutex::default());
        Self { key, pp_degree, newest_swap, members, changes }
    }

    /// A job that an earlier daemon knew, without ranks `since` then.
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
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the agent know that the job changed.
    pub(crate) fn notice_change(&self) {
        self.changes.notice();
    }

    /// Whether it is known of every rank how far it is.
    pub(crate) fn knows_steps(&self) -> bool {
        self.members().ranks().all(|member| member.session.progress.knows_step())
    }

    /// Adds a rank. Returns the swap that it takes up with its first step: a rank that comes late
    /// finds the job's plan in use, or what ran before it if the others have yet to change.
    pub(crate) fn join(&self, member: Member) -> Result<Option<Arc<Swap>>, Refusal> {
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
        if let Some(other) = members.rank(rank) {
            return Err(Refusal::new(
                RefusalCode::RankConflict,
                format!(
                    "rank {rank} of job {name} is process {} already",
                    other.session.holder.pid
                ),
                "give every rank its own number, and every job its own name",
            ));
        }
        if let Some(plan) = members.plans.current()
            && let Err(misfit) = plan.check_rank(&member.shape())
        {
            plan.suspend(|| format!("it does not fit a rank that came later: {misfit}"));
        }
        members.add(member);
        let complete = members.plans.swaps().rev().find(|swap| swap.is_complete()).cloned();
        drop(members);
        self.notice_change();
        Ok(complete)
    }

    /// Takes a rank out whose session is over.
    pub(crate) fn leave(&self, session: &Session) {
        self.members().remove(session);
        self.notice_change();
    }
}

fn does_not_fit(why: &Misfit) -> Refusal {
    let remedy = "make a plan for this job with `pfoctl plan optimize` and `pfoctl plan export`";
    Refusal::new(RefusalCode::PlanDoesNotFit, why.to_string(), remedy)
}

//! What of a job outlives the daemon: the plan that its ranks run, and the one before it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pfo_protocol::{
    Chunk, Instruction, JobName, Mhz, Microbatch, PlanStatus, PlannedUnit, Uid, Unit,
};
use pfo_service::now_ns;
use serde::{Deserialize, Deserializer, Serialize};

use super::job_plan::JobPlan;
use super::misfit::Misfit;
use super::plans::Plans;
use super::swap::Swap;
use super::{Job, JobKey};
use crate::lease::Session;

/// A job as the next daemon finds it. Unknown fields are ignored: release 0.1 kept more here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobRecord {
    /// Whose job it is.
    pub uid: Uid,
    /// Its name.
    pub job: JobName,
    pp_degree: u32,
    /// Since when it has had no rank (`CLOCK_MONOTONIC`, ns).
    left_ns: Option<u64>,
    swaps: Vec<SwapRecord>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SwapRecord {
    number: u64,
    step: u64,
    /// Every rank had changed.
    complete: bool,
    plan: Option<PlanRecord>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanRecord {
    status: PlanStatus,
    num_microbatches: u32,
    stages: Vec<Vec<UnitRecord>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct UnitRecord(NamedInstruction, Chunk, Microbatch, Mhz);

/// An instruction by name. Release 0.1 wrote `ForwardBackward` for `forward_backward`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct NamedInstruction(Instruction);

impl<'de> Deserialize<'de> for NamedInstruction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = String::deserialize(deserializer)?;
        let mut name = String::with_capacity(written.len());
        for letter in written.chars() {
            if letter.is_ascii_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

impl JobRecord {
    /// The record of a job, if it has had a plan; with `ending`, of one whose ranks the daemon leaves.
    pub(super) fn of(job: &Job, ending: bool) -> Option<Self> {
        let members = job.members();
        let left = members.empty_since().map(|since| since.elapsed());
        let left = left.or_else(|| ending.then_some(Duration::ZERO));
        let (swaps, trial): (Vec<_>, _) =
            (members.plans.swaps().cloned().collect(), members.plans.trial());
        drop(members);
        // Nobody will measure on: the next daemon brings a job in a trial to default clocks.
        let stays = |swap: &Swap| trial != Some(swap.number);
        (!swaps.is_empty()).then(|| Self {
            uid: job.key.uid,
            job: job.key.name.clone(),
            pp_degree: job.pp_degree,
            left_ns: left.map(|left| now_ns().saturating_sub(left.as_nanos() as u64)),
            swaps: swaps.iter().map(|swap| SwapRecord::of(swap, stays(swap))).collect(),
        })
    }

    /// The key of the job.
    #[must_use]
    pub(crate) fn key(&self) -> JobKey {
        JobKey { uid: self.uid, name: self.job.clone() }
    }

    /// How long the job has had no rank, as far as is known.
    pub(super) fn left_for(&self) -> Duration {
        self.left_ns
            .map_or(Duration::ZERO, |left| Duration::from_nanos(now_ns().saturating_sub(left)))
    }

    /// The job again, for the ranks whose sessions are taken up.
    ///
    /// # Errors
    /// If a plan is none for this job.
    pub(crate) fn restore(self, sessions: &[Arc<Session>]) -> Result<Job, Misfit> {
        let own = |session: &&Arc<Session>| {
            (session.holder.uid, &session.holder.job) == (self.uid, &self.job)
        };
        let ranks: Vec<_> = sessions.iter().filter(own).map(|s| Arc::clone(&s.progress)).collect();
        let swaps = self.swaps.iter().map(|record| {
            let plan = record.plan.as_ref().map(|plan| plan.restore(self.pp_degree));
            let ranks = if record.complete { Vec::new() } else { ranks.clone() };
            Ok(Arc::new(Swap::decided(record.number, plan.transpose()?, record.step, ranks)))
        });
        let plans = Plans::of_earlier_daemon(swaps.collect::<Result<_, _>>()?);
        let since = Instant::now().checked_sub(self.left_for()).unwrap_or_else(Instant::now);
        Ok(Job::of_earlier_daemon(self.key(), self.pp_degree, plans, since))
    }
}

impl SwapRecord {
    fn of(swap: &Swap, with_plan: bool) -> Self {
        Self {
            number: swap.number,
            step: swap.step(),
            complete: swap.is_complete(),
            plan: swap.plan.as_deref().filter(|_| with_plan).map(PlanRecord::of),
        }
    }
}

impl PlanRecord {
    fn of(plan: &JobPlan) -> Self {
        let record = |planned: &PlannedUnit| {
            let Unit { instruction, chunk, microbatch } = planned.unit;
            UnitRecord(NamedInstruction(instruction), chunk, microbatch, planned.mhz)
        };
        Self {
            status: plan.status(),
            num_microbatches: plan.num_microbatches(),
            stages: plan.stages().iter().map(|units| units.iter().map(record).collect()).collect(),
        }
    }

    fn restore(&self, pp_degree: u32) -> Result<Arc<JobPlan>, Misfit> {
        let planned = |&UnitRecord(instruction, chunk, microbatch, mhz): &UnitRecord| PlannedUnit {
            unit: Unit { instruction: instruction.0, chunk, microbatch },
            mhz,
        };
        let stages = self.stages.iter().map(|stage| stage.iter().map(planned).collect()).collect();
        let plan = JobPlan::restored(self.status.clone(), self.num_microbatches, stages)?;
        plan.check_stages(pp_degree)?;
        Ok(Arc::new(plan))
    }
}

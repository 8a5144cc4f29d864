//! What of a job outlives the daemon: the plan that its ranks run, and the one before it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pfo_planner::{Mhz, Straggler};
use pfo_protocol::{Instruction, JobName, PlanStatus, Unit};
use serde::{Deserialize, Serialize};

use crate::fit::{JobPlan, Planned};
use crate::job::{Job, JobKey};
use crate::lease::Session;
use crate::misfit::Misfit;
use crate::monotonic::now_ns;
use crate::straggler::{Answered, SlowStages};
use crate::swap::Swap;

/// Whatever the last daemon had room for: the frontier was checked when it was loaded.
const RESTORED_FRONTIER: usize = usize::MAX;

/// A job as the next daemon finds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRecord {
    /// Whose job it is.
    pub uid: u32,
    /// Its name.
    pub job: JobName,
    pp_degree: u32,
    /// Since when it has had no rank (`CLOCK_MONOTONIC`, ns).
    left_ns: Option<u64>,
    swaps: Vec<SwapRecord>,
    /// What the frontier is called whose bytes are beside this.
    #[serde(default)]
    frontier: Option<String>,
    #[serde(default)]
    straggler: Option<StragglerRecord>,
    #[serde(default)]
    auto: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StragglerRecord {
    factor: f64,
    before: Option<PlanRecord>,
    #[serde(default)]
    found: SlowStages,
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
    stages: Vec<Vec<PlannedRecord>>,
}

/// Instruction, chunk, microbatch, MHz.
type PlannedRecord = (Instruction, u16, u32, u32);

impl JobRecord {
    /// The record of a job, if it has had a plan or a frontier; with `ending`, of one whose ranks the daemon leaves.
    #[must_use]
    pub fn of(job: &Job, ending: bool) -> Option<Self> {
        let members = job.members();
        let left = members.empty_since.map(|since| since.elapsed());
        let left = left.or_else(|| ending.then_some(Duration::ZERO));
        let (swaps, trial) = (members.swaps.clone(), members.trial);
        let frontier = members.frontier.as_ref().map(|frontier| frontier.label.clone());
        let straggler = members.straggler.clone();
        let auto = members.auto;
        drop(members);
        // Nobody will measure on: the next daemon brings a job in a trial to default clocks.
        let stays = |swap: &Swap| trial != Some(swap.number);
        (!swaps.is_empty() || frontier.is_some()).then(|| Self {
            uid: job.key.uid,
            job: job.key.name.clone(),
            pp_degree: job.pp_degree,
            left_ns: left.map(|left| now_ns().saturating_sub(left.as_nanos() as u64)),
            swaps: swaps.iter().map(|swap| SwapRecord::of(swap, stays(swap))).collect(),
            frontier,
            straggler: straggler.as_ref().map(StragglerRecord::of),
            auto,
        })
    }

    /// The key of the job.
    #[must_use]
    pub fn key(&self) -> JobKey {
        JobKey { uid: self.uid, name: self.job.clone() }
    }

    /// How long the job has had no rank, as far as is known.
    #[must_use]
    pub fn left_for(&self) -> Duration {
        self.left_ns
            .map_or(Duration::ZERO, |left| Duration::from_nanos(now_ns().saturating_sub(left)))
    }

    /// The job again, for the ranks whose sessions are taken up, with the bytes of its frontier.
    ///
    /// # Errors
    /// If a plan is none for this job.
    pub fn restore(
        self,
        sessions: &[Arc<Session>],
        frontier: Option<&[u8]>,
    ) -> Result<Job, Misfit> {
        let own = |session: &&Arc<Session>| {
            (session.holder.uid, &session.holder.job) == (self.uid, &self.job)
        };
        let ranks: Vec<_> = sessions.iter().filter(own).map(|s| Arc::clone(&s.progress)).collect();
        let swaps = self.swaps.iter().map(|record| {
            let plan = record.plan.as_ref().map(|plan| plan.restore(self.pp_degree));
            let ranks = if record.complete { Vec::new() } else { ranks.clone() };
            Ok(Arc::new(Swap::decided(record.number, plan.transpose()?, record.step, ranks)))
        });
        let swaps = swaps.collect::<Result<_, _>>()?;
        let since = Instant::now().checked_sub(self.left_for());
        let since = since.unwrap_or_else(Instant::now);
        let job = Job::again(self.key(), self.pp_degree, swaps, since);
        if let Some(label) = self.frontier
            && let Err(refusal) =
                job.load_frontier(label, frontier.unwrap_or_default(), RESTORED_FRONTIER)
        {
            let JobKey { uid, name } = &job.key;
            tracing::warn!(job = %name, uid, "lost the job's frontier: {refusal}");
        }
        let answered = |record: StragglerRecord| record.restore(self.pp_degree);
        job.members().straggler = self.straggler.map(answered).transpose()?.flatten();
        job.members().auto = self.auto;
        Ok(job)
    }
}

impl StragglerRecord {
    fn of(answered: &Answered) -> Self {
        let before = answered.before.as_deref().map(PlanRecord::of);
        Self { factor: answered.straggler.factor(), before, found: answered.found.clone() }
    }

    /// None if it says nothing that could be.
    fn restore(self, pp_degree: u32) -> Result<Option<Answered>, Misfit> {
        let before = self.before.map(|plan| plan.restore(pp_degree)).transpose()?;
        let found = self.found;
        Ok(Straggler::new(self.factor).ok().map(|straggler| Answered { straggler, before, found }))
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
        let record = |planned: &Planned| {
            let Unit { instruction, chunk, microbatch } = planned.unit;
            (instruction, chunk, microbatch, planned.mhz.0)
        };
        let stage = |sequence: &Arc<[Planned]>| sequence.iter().map(record).collect();
        Self {
            status: plan.status(),
            num_microbatches: plan.num_microbatches(),
            stages: plan.stages().iter().map(stage).collect(),
        }
    }

    fn restore(&self, pp_degree: u32) -> Result<Arc<JobPlan>, Misfit> {
        let planned = |&(instruction, chunk, microbatch, mhz): &PlannedRecord| Planned {
            unit: Unit { instruction, chunk, microbatch },
            mhz: Mhz(mhz),
        };
        let stages = self.stages.iter().map(|stage| stage.iter().map(planned).collect()).collect();
        let plan = JobPlan::restored(self.status.clone(), self.num_microbatches, stages)?;
        plan.check_stages(pp_degree)?;
        Ok(Arc::new(plan))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use pfo_protocol::{Holder, SwapTarget};

    use super::*;
    use crate::grant;
    use crate::job_frontier::tests::frontier;

    fn plan(mhz: u32) -> String {
        format!(
            r#"{{"format": "pfo-plan/1", "schedule": "1f1b", "num_stages": 1,
            "num_microbatches": 1, "stages": [{{"stage": 0, "instructions": [
            {{"instruction": "forward", "microbatch": 0, "frequency_mhz": {mhz}}},
            {{"instruction": "backward", "microbatch": 0, "frequency_mhz": 900}}]}}]}}"#
        )
    }

    fn job_after(swaps: &[(u32, u64)]) -> Job {
        let job = Job::new(JobKey { uid: 7, name: "team/j".parse().unwrap() }, 1);
        for (mhz, step) in swaps {
            job.load(format!("{mhz}.json"), plan(*mhz).as_bytes(), usize::MAX).unwrap();
            job.swap(&SwapTarget::Loaded, *step).unwrap();
        }
        job
    }

    fn through_json(record: &JobRecord) -> JobRecord {
        serde_json::from_slice(&serde_json::to_vec(record).unwrap()).unwrap()
    }

    fn labels(job: &Job) -> Vec<(u64, u64, String)> {
        let swaps = job.members().swaps.clone();
        let label = |swap: &Swap| swap.plan.as_ref().unwrap().label.clone();
        swaps.iter().map(|swap| (swap.number, swap.step(), label(swap))).collect()
    }

    #[test]
    fn a_job_that_has_run_no_plan_has_no_record() {
        assert_eq!(JobRecord::of(&job_after(&[]), true), None);
    }

    #[test]
    fn a_job_comes_back_with_its_plan_the_one_before_it_and_nothing_older() {
        let job = job_after(&[(600, 0), (1200, 5), (1410, 9)]);
        let record = through_json(&JobRecord::of(&job, false).unwrap());
        let again = record.restore(&[], None).unwrap();
        assert_eq!(labels(&again), [(2, 5, "1200.json".into()), (3, 9, "1410.json".into())]);
        let current = |job: &Job| Arc::clone(job.members().current().unwrap());
        let (old, new) = (current(&job), current(&again));
        assert_eq!((old.status(), old.stages()), (new.status(), new.stages()));
        assert!(again.members().empty_since.is_some());
    }

    #[test]
    fn a_job_comes_back_with_its_frontier_and_the_straggler_that_it_runs_a_plan_for() {
        let bytes = frontier(1);
        let job = job_after(&[(1410, 0)]);
        job.load_frontier("f".into(), &bytes, 1000).unwrap();
        job.answer_straggler(Straggler::new(1.5).unwrap()).unwrap();
        let record = through_json(&JobRecord::of(&job, false).unwrap());
        let again = record.clone().restore(&[], Some(&bytes)).unwrap();
        assert_eq!(again.members().frontier_status(), job.members().frontier_status());
        let before = again.straggler_is_over().unwrap();
        assert_eq!(before.plan.as_ref().map(|plan| plan.label.as_str()), Some("1410.json"));
        let without = record.restore(&[], None).unwrap();
        assert!(without.members().frontier.is_none());
        assert!(without.straggler_is_over().is_ok());
    }

    #[test]
    fn a_job_with_a_frontier_alone_has_a_record() {
        let job = job_after(&[]);
        job.load_frontier("f".into(), &frontier(1), 1000).unwrap();
        let record = JobRecord::of(&job, true).unwrap();
        assert!(record.restore(&[], Some(&frontier(1))).unwrap().members().frontier.is_some());
    }

    #[test]
    fn a_suspended_plan_stays_suspended() {
        let job = job_after(&[(600, 0)]);
        job.members().current().unwrap().suspend(|| "because".into());
        let again = through_json(&JobRecord::of(&job, false).unwrap()).restore(&[], None).unwrap();
        let status = again.members().current().unwrap().status();
        assert_eq!(status.suspended.as_deref(), Some("because"));
    }

    #[test]
    fn a_record_whose_plan_has_other_stages_than_the_job_is_refused() {
        let mut record = JobRecord::of(&job_after(&[(600, 0)]), false).unwrap();
        record.pp_degree = 2;
        let misfit = record.restore(&[], None).unwrap_err();
        assert_eq!(misfit, Misfit::Stages { plan: 1, job: 2 });
    }

    #[test]
    fn a_swap_that_ranks_have_yet_to_take_up_waits_for_those_that_come_back() {
        let session = |job: &str| {
            let job = job.parse().unwrap();
            let holder = Holder { job, rank: 0, uid: 7, pid: 1, session: 1 };
            Arc::new(Session::new(holder, grant::example(""), UnixStream::pair().unwrap().0))
        };
        let mut record = JobRecord::of(&job_after(&[(600, 0), (1200, 50)]), false).unwrap();
        record.swaps[1].complete = false;
        let sessions = [session("team/j"), session("another")];
        let again = record.restore(&sessions, None).unwrap();
        let swaps = again.members().swaps.clone();
        assert!(swaps[0].is_complete());
        assert_eq!((swaps[1].taken_up(), swaps[1].step()), ((0, 1), 50));
    }

    #[test]
    fn the_time_without_ranks_goes_on_while_there_is_no_daemon() {
        let record = JobRecord::of(&job_after(&[(600, 0)]), true).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(record.left_for() >= Duration::from_millis(20));
        let running = JobRecord::of(&job_after(&[(600, 0)]), false).unwrap();
        assert_eq!(running.left_for(), Duration::ZERO);
    }
}

//! The part of a job that outlives the daemon: the plan that its ranks run, and the one before it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pfo_protocol::{
    Chunk, Instruction, JobName, Mhz, Microbatch, PlanStatus, PlannedUnit, Uid, Unit,
};
use pfo_service::now_ns;
use serde::{Deserialize, Deserializer, Serialize};

use super::job_plan::JobPlan;
use super::plans::Plans;
use super::swap::Swap;
use super::{Job, JobKey};
use crate::lease::Session;

/// A job as the next daemon finds it. Unknown fields are ignored: release 0.1 kept more here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobRecord {
    /// The owner of the job.
    pub uid: Uid,
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
    /// Whether every rank had changed.
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
struct UnitRecord(NamedInstruction, Chunk, Microbatch, Mhz, #[serde(default)] Option<Mhz>);

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
    /// The record of a job, if it has had a plan; with `ending`, of one whose ranks the daemon
    /// leaves.
    pub(super) fn of(job: &Job, ending: bool) -> Option<Self> {
        let members = job.members();
        let left = members.empty_since().map(|since| since.elapsed());
        let left = left.or_else(|| ending.then_some(Duration::ZERO));
        let swaps: Vec<_> = members.plans.swaps().cloned().collect();
        let (trial, before) = (members.plans.trial(), members.plans.before_trial());
        drop(members);
        // Measuring does not continue: the next daemon brings a job in a trial to what it ran before.
        let record = |swap: &Arc<Swap>| {
            let plan = if trial == Some(swap.number) { &before } else { &swap.plan };
            SwapRecord::of(swap, plan.as_deref())
        };
        (!swaps.is_empty()).then(|| Self {
            uid: job.key.uid,
            job: job.key.name.clone(),
            pp_degree: job.pp_degree,
            left_ns: left.map(|left| now_ns().saturating_sub(left.as_nanos() as u64)),
            swaps: swaps.iter().map(record).collect(),
        })
    }

    /// The key of the job.
    pub(crate) fn key(&self) -> JobKey {
        JobKey { uid: self.uid, name: self.job.clone() }
    }

    /// How long the job has had no rank, as far as is known.
    pub(super) fn left_for(&self) -> Duration {
        self.left_ns
            .map_or(Duration::ZERO, |left| Duration::from_nanos(now_ns().saturating_sub(left)))
    }

    /// The job again, for the ranks whose sessions are continued. They suspend a plan that does not fit.
    pub(crate) fn restore(self, sessions: &[Arc<Session>]) -> Job {
        let own = |session: &&Arc<Session>| {
            (session.holder.uid, &session.holder.job) == (self.uid, &self.job)
        };
        let ranks: Vec<_> = sessions.iter().filter(own).map(|s| Arc::clone(&s.progress)).collect();
        let swaps = self.swaps.iter().map(|record| {
            let plan = record.plan.as_ref().map(PlanRecord::restore);
            let ranks = if record.complete { Vec::new() } else { ranks.clone() };
            let swap = Swap::decided(record.number, plan, record.step, ranks);
            Arc::new(swap.recorded(record.complete))
        });
        let plans = Plans::of_earlier_daemon(swaps.collect());
        let since = Instant::now().checked_sub(self.left_for()).unwrap_or_else(Instant::now);
        Job::of_earlier_daemon(self.key(), self.pp_degree, plans, since)
    }
}

impl SwapRecord {
    fn of(swap: &Swap, plan: Option<&JobPlan>) -> Self {
        Self {
            number: swap.number,
            step: swap.step(),
            // Ranks that left before its step have not changed.
            complete: swap.is_complete() && !swap.is_to_come(1),
            plan: plan.map(PlanRecord::of),
        }
    }
}

impl PlanRecord {
    fn of(plan: &JobPlan) -> Self {
        let record = |&PlannedUnit { unit, mhz, wait_mhz }: &PlannedUnit| {
            let kind = NamedInstruction(unit.instruction);
            UnitRecord(kind, unit.chunk, unit.microbatch, mhz, wait_mhz)
        };
        Self {
            status: plan.status(),
            num_microbatches: plan.num_microbatches(),
            stages: plan.stages().iter().map(|units| units.iter().map(record).collect()).collect(),
        }
    }

    fn restore(&self) -> Arc<JobPlan> {
        let planned = |&UnitRecord(kind, chunk, microbatch, mhz, wait_mhz): &UnitRecord| {
            let unit = Unit { instruction: kind.0, chunk, microbatch };
            PlannedUnit { unit, mhz, wait_mhz }
        };
        let stages = self.stages.iter().map(|stage| stage.iter().map(planned).collect()).collect();
        Arc::new(JobPlan::restored(self.status.clone(), self.num_microbatches, stages))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use pfo_protocol::SwapTarget;

    use super::super::Member;
    use super::super::example::{self, session, table};
    use super::*;

    /// As release 0.1 wrote it for a job with a frontier and an answered straggler.
    const RECORD_OF_0_1: &str = r#"{"uid":7,"job":"team/j","pp_degree":1,"left_ns":null,
        "swaps":[
            {"number":4,"step":9,"complete":true,"plan":null},
            {"number":5,"step":120,"complete":false,"plan":{
                "status":{"number":3,"label":"p.json","predicted_time_s":1.5,
                    "predicted_energy_j":200.0,"suspended":null,"power_limits_w":[]},
                "num_microbatches":2,
                "stages":[[["Forward",0,0,900],["Forward",1,1,1005],["ForwardBackward",0,0,1200],
                    ["OptimizerStep",0,0,210]]]}}],
        "frontier":"f.pfo",
        "straggler":{"factor":1.25,"before":{"status":{"number":1,"label":"b","predicted_time_s":null,
            "predicted_energy_j":null,"suspended":null},"num_microbatches":1,
            "stages":[[["Forward",0,0,900]]]},"found":{"3":0.25}},
        "auto":true}"#;

    fn job_after(swaps: &[(u32, u64)]) -> Job {
        let job = example::job("team/j", 1);
        for (mhz, step) in swaps {
            job.load(format!("{mhz}.json"), table(&[[*mhz, 900]]), usize::MAX).unwrap();
            job.swap(SwapTarget::Loaded, (Some(*step), None), 0).unwrap();
        }
        job
    }

    fn through_json(record: &JobRecord) -> JobRecord {
        serde_json::from_slice(&serde_json::to_vec(record).unwrap()).unwrap()
    }

    fn swaps(job: &Job) -> Vec<Arc<Swap>> {
        job.members().plans.swaps().cloned().collect()
    }

    fn current(job: &Job) -> Arc<JobPlan> {
        Arc::clone(job.members().plans.current().unwrap())
    }

    #[test]
    fn a_job_that_has_run_no_plan_has_no_record() {
        assert_eq!(JobRecord::of(&job_after(&[]), true), None);
    }

    #[test]
    fn a_job_comes_back_with_its_plan_the_two_before_it_and_nothing_older() {
        let job = job_after(&[(500, 0), (600, 1), (1200, 5), (1410, 9)]);
        let record = through_json(&JobRecord::of(&job, false).unwrap());
        let again = record.restore(&[]);
        let label = |swap: &Arc<Swap>| swap.plan.as_ref().unwrap().label.clone();
        let found: Vec<_> = swaps(&again).iter().map(|s| (s.number, s.step(), label(s))).collect();
        let kept = [(2, 1, "600.json"), (3, 5, "1200.json"), (4, 9, "1410.json")];
        assert_eq!(found, kept.map(|(number, step, label)| (number, step, label.to_owned())));
        let (old, new) = (current(&job), current(&again));
        assert_eq!((old.status(), old.stages()), (new.status(), new.stages()));
        assert!(again.members().empty_since().is_some());
    }

    #[test]
    fn the_plans_of_a_job_that_comes_back_are_counted_further() {
        let record = JobRecord::of(&job_after(&[(600, 0), (1200, 5)]), false).unwrap();
        let again = record.restore(&[]);
        let plan = again.load("next".into(), table(&[[900, 900]]), usize::MAX).unwrap();
        assert_eq!(plan.number, 3);
        assert_eq!(again.swap(SwapTarget::Loaded, (None, None), 0).unwrap().number, 3);
    }

    #[test]
    fn a_record_of_release_0_1_is_read() {
        let record: JobRecord = serde_json::from_str(RECORD_OF_0_1).unwrap();
        let job = record.restore(&[session("team/j", 0)]);
        let [before, newest] = swaps(&job).try_into().unwrap();
        assert!(before.plan.is_none() && before.is_complete());
        assert_eq!((newest.number, newest.step(), newest.taken_up()), (5, 120, (0, 1)));
        let plan = current(&job);
        let units: Vec<_> = plan.stages()[0].iter().map(|planned| planned.unit).collect();
        assert_eq!(units[1].to_string(), "forward of microbatch 1 of chunk 1");
        assert_eq!(units[2].instruction, Instruction::ForwardBackward);
        assert_eq!(units[3].instruction, Instruction::OptimizerStep);
        assert_eq!(plan.stages()[0][1].mhz, Mhz(1005));
        let status = plan.status();
        assert_eq!((status.number, status.predicted_time_s), (3, Some(1.5)));
    }

    #[test]
    fn every_instruction_is_read_under_its_name_and_as_release_0_1_wrote_it() {
        for instruction in Instruction::ALL {
            let names = [format!("\"{instruction}\""), format!("\"{instruction:?}\"")];
            for name in names {
                let read: NamedInstruction = serde_json::from_str(&name).unwrap();
                assert_eq!(read, NamedInstruction(instruction), "{name}");
            }
        }
        assert!(serde_json::from_str::<NamedInstruction>("\"Sideways\"").is_err());
    }

    #[test]
    fn a_suspended_plan_stays_suspended() {
        let job = job_after(&[(600, 0)]);
        current(&job).suspend(|| "because".into());
        let again = through_json(&JobRecord::of(&job, false).unwrap()).restore(&[]);
        assert_eq!(current(&again).status().suspended.as_deref(), Some("because"));
    }

    #[test]
    fn a_job_in_a_trial_comes_back_at_default_clocks() {
        let job = job_after(&[(600, 0), (1200, 5)]);
        job.members().plans.begin_trial(None);
        let record = through_json(&JobRecord::of(&job, false).unwrap());
        let again = record.restore(&[]);
        assert!(again.members().plans.current().is_none());
        assert_eq!(again.members().plans.newest_number(), 2);
    }

    #[test]
    fn a_plan_of_other_stages_than_the_job_is_suspended_by_the_first_rank() {
        let mut record = JobRecord::of(&job_after(&[(600, 0)]), false).unwrap();
        record.swaps[0].plan.as_mut().unwrap().stages.insert(0, Vec::new());
        let job = record.restore(&[]);
        job.join(example::member(0, 0)).unwrap();
        let why = current(&job).status().suspended.unwrap();
        assert!(why.ends_with("the plan has 2 stages, the job 1"), "{why}");
    }

    #[test]
    fn a_stage_of_another_node_is_left_out_after_a_restart_too() {
        let mut record = JobRecord::of(&job_after(&[(600, 0)]), false).unwrap();
        record.pp_degree = 2;
        record.swaps[0].plan.as_mut().unwrap().stages.insert(0, Vec::new());
        let job = record.clone().restore(&[]);
        let plan = Arc::clone(job.members().plans.current().unwrap());
        assert_eq!(plan.table().unwrap().stages()[0], []);
        assert!(plan.clocks(pfo_protocol::Stage(1), pfo_protocol::DpRank(0)).is_some());
    }

    #[test]
    fn a_swap_that_ranks_have_yet_to_take_up_waits_for_those_that_come_back() {
        let mut record = JobRecord::of(&job_after(&[(600, 0), (1200, 50)]), false).unwrap();
        record.swaps[1].complete = false;
        let sessions = [session("team/j", 0), session("another", 0)];
        let [first, second] = swaps(&record.restore(&sessions)).try_into().unwrap();
        assert!(first.is_complete());
        assert_eq!((second.taken_up(), second.step()), ((0, 1), 50));
    }

    #[test]
    fn a_rank_that_comes_back_by_itself_waits_for_a_swap_that_no_daemon_saw_take_place() {
        for (took, takes) in [(1, 1), (2, 2)] {
            let job = job_after(&[(600, 0)]);
            let rank = Member { session: session("team/j", 0), ..example::member(0, 0) };
            job.join(rank.clone()).unwrap();
            job.load("1200.json".into(), table(&[[1200, 900]]), usize::MAX).unwrap();
            job.swap(SwapTarget::Loaded, (Some(50), None), 0).unwrap();
            rank.session.progress.swap.store(took, Relaxed);
            for has_left in [false, true] {
                rank.session.progress.ended.store(has_left, Relaxed);
                let record = through_json(&JobRecord::of(&job, false).unwrap());
                let again = record.restore(&[]);
                let rank = Member { session: session("team/j", 0), ..example::member(0, 30) };
                let found = again.join(rank).unwrap().map(|swap| swap.number);
                assert_eq!(found, Some(takes), "left: {has_left}");
            }
        }
    }

    #[test]
    fn the_time_without_ranks_passes_while_there_is_no_daemon() {
        let record = JobRecord::of(&job_after(&[(600, 0)]), true).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(record.left_for() >= Duration::from_millis(20));
        let running = JobRecord::of(&job_after(&[(600, 0)]), false).unwrap();
        assert_eq!(running.left_for(), Duration::ZERO);
    }

    #[test]
    fn numbers_at_their_end_make_a_job_all_the_same() {
        let swap = |number, step| SwapRecord { number, step, complete: true, plan: None };
        let record = JobRecord {
            left_ns: Some(u64::MAX),
            swaps: vec![swap(u64::MAX - 1, u64::MAX - 1), swap(u64::MAX, u64::MAX)],
            ..JobRecord::of(&job_after(&[(600, 0)]), true).unwrap()
        };
        let job = through_json(&record).restore(&[session("team/j", 0)]);
        assert_eq!(job.swap(SwapTarget::Previous, (None, None), 0).unwrap().number, u64::MAX);
        assert!(JobRecord::of(&job, true).is_some());
    }
}

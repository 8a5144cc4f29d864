//! The frontier that is loaded for a job: its plans are at hand when a straggler makes the job wait.

use std::sync::Arc;

use pfo_planner::{
    Deadline, Frontier, Measurement, Plan, PlanError, Profile, Room, Straggler, replay,
};
use pfo_protocol::{FrontierStatus, Refusal, RefusalCode};

use crate::fit::JobPlan;
use crate::job::{Job, Members, does_not_fit};
use crate::misfit::Misfit;
use crate::stage_times::StageTimes;
use crate::straggler::SlowStages;

/// What takes as much memory as an instruction of a plan, 16 bytes.
const ROWS: usize = 1;
const PLANNED: usize = 16;
/// How many instructions of a plan take as much memory as one of the step that a frontier is for.
const INSTRUCTION: usize = 16;

/// A step that takes longer by no more than this share takes no longer.
const NO_LONGER: f64 = 0.01;

/// A frontier for a job.
#[derive(Debug)]
pub(crate) struct JobFrontier {
    /// Where it came from, as the client called it.
    pub(crate) label: String,
    frontier: Frontier,
}

impl JobFrontier {
    /// Reads a frontier that takes no more memory than so many instructions of plans.
    ///
    /// # Errors
    /// If the bytes are no frontier, or there is no room for it.
    pub(crate) fn read(label: String, bytes: &[u8], most: usize) -> Result<Self, Refusal> {
        let room = Room {
            instructions: most / INSTRUCTION,
            rows: most / ROWS,
            planned: most.saturating_mul(PLANNED),
        };
        let frontier = Frontier::from_bytes_within(bytes, room).map_err(wrong)?;
        let read = Self { label, frontier };
        if read.size() > most {
            return Err(Refusal::new(
                RefusalCode::LimitReached,
                format!(
                    "the frontier takes as much room as a plan of {} instructions, but there is only \
                     room for {most}",
                    read.size()
                ),
                "make it with fewer --plans",
            ));
        }
        Ok(read)
    }

    /// The instructions of plans that take as much memory.
    pub(crate) fn size(&self) -> usize {
        let pipeline = self.frontier.pipeline();
        let instructions = pipeline.num_instructions();
        INSTRUCTION * instructions
            + pipeline.profile().rows().count() / ROWS
            + instructions * self.frontier.plans().len() / PLANNED
    }

    /// The plan of least energy that keeps a straggler's time.
    ///
    /// # Errors
    /// If a stage of it is empty.
    pub(crate) fn plan_for(&self, straggler: Straggler, number: u32) -> Result<JobPlan, Refusal> {
        let place = self.frontier.pick_for_straggler(straggler);
        let plan = place.and_then(|place| self.frontier.plan(place));
        let plan = plan.map_err(wrong)?;
        let label = format!("{} at {straggler}", self.label);
        JobPlan::new(number, label, &plan).map_err(|misfit| does_not_fit(misfit.to_string()))
    }

    /// The plan for a job some of whose stages are slow by themselves, each by a share. They keep their clocks,
    /// so that it is seen when they are not slow any more; the others take as much of their time as does not
    /// make the step longer still, for what comes before and after a slow stage is on the way as well. None
    /// if they can take nothing.
    ///
    /// # Errors
    /// If the job's plan is none for the frontier's instructions or asks for clocks that it does not know.
    pub(crate) fn plan_for_slow(
        &self,
        own: &JobPlan,
        slow: &SlowStages,
        number: u32,
    ) -> Result<Option<(Straggler, JobPlan)>, Refusal> {
        let misfit = |misfit: Misfit| does_not_fit(misfit.to_string());
        let mut own_plan = self.frontier.plan(0).map_err(wrong)?;
        own.put_clocks_into(&mut own_plan).map_err(misfit)?;
        let profile = self.frontier.pipeline().profile();
        let slowed = slowed(profile, slow)?;
        let own_s = self.time_s(profile, &own_plan)?;
        let slowed_s = self.time_s(&slowed, &own_plan)?;

        let times_s: Vec<_> = self.frontier.points().map(|point| point.iteration_time_s).collect();
        let first = times_s.partition_point(|time_s| *time_s <= own_s * (1.0 + NO_LONGER));
        let mut found = None;
        let mut range = first..times_s.partition_point(|time_s| *time_s <= slowed_s);
        while !range.is_empty() {
            let middle = range.start + range.len() / 2;
            let deadline = Deadline::Seconds(times_s[middle]);
            let place = self.frontier.pick(deadline).map_err(wrong)?;
            let mut plan = self.frontier.plan(place).map_err(wrong)?;
            for &stage in slow.keys() {
                let stages = own_plan.stages.get(stage as usize);
                if let Some((kept, own)) = plan.stages.get_mut(stage as usize).zip(stages) {
                    kept.clone_from(own);
                }
            }
            if self.time_s(&slowed, &plan)? <= slowed_s * (1.0 + NO_LONGER) {
                found = Some((times_s[middle], plan));
                range.start = middle + 1;
            } else {
                range.end = middle;
            }
        }
        let Some((time_s, plan)) = found else { return Ok(None) };
        let factor = (1e3 * time_s / times_s[0]).round() / 1e3;
        let straggler = Straggler::new(factor.max(1.0)).map_err(wrong)?;
        // What it predicts does not hold while a stage is slow.
        let plan = Plan { predicted: None, ..plan };
        let label = format!("{} at {straggler}", self.label);
        Ok(Some((straggler, JobPlan::new(number, label, &plan).map_err(misfit)?)))
    }

    fn time_s(&self, profile: &Profile, plan: &Plan) -> Result<f64, Refusal> {
        let replayed = replay(profile, plan, self.frontier.p2p_power());
        replayed.map(|replayed| replayed.iteration_time_s).map_err(wrong)
    }

    /// What the instructions of every stage should take.
    pub(crate) fn times(&self) -> Vec<Arc<StageTimes>> {
        StageTimes::of(self.frontier.pipeline().profile())
    }

    /// Checks that a job could run its plans.
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn check(&self, job: &Job, members: &Members) -> Result<(), Refusal> {
        let fastest = self.plan_for(Straggler::NONE, 0)?;
        let misfit = |misfit: Misfit| does_not_fit(misfit.to_string());
        fastest.check_stages(job.pp_degree).map_err(misfit)?;
        members.check(&fastest)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` passes it")]
fn wrong(error: PlanError) -> Refusal {
    does_not_fit(error.to_string())
}

/// The profile of a job some of whose stages are slow.
fn slowed(profile: &Profile, slow: &SlowStages) -> Result<Profile, Refusal> {
    let rows = profile.rows().map(|(stage, instruction, row)| {
        let factor = slow.get(&u32::from(stage.0)).map_or(1.0, |share| 1.0 + share);
        (stage, instruction, Measurement { time_s: factor * row.time_s, ..row })
    });
    Profile::from_measurements(rows).map_err(wrong)
}

impl Job {
    /// Checks a frontier that takes no more memory than so many instructions of plans against the job, and
    /// keeps it in the place of the one before.
    ///
    /// # Errors
    /// If the bytes are no frontier, it is too large, or its plans do not fit: the first difference.
    pub(crate) fn load_frontier(
        &self,
        label: String,
        bytes: &[u8],
        most: usize,
    ) -> Result<FrontierStatus, Refusal> {
        let frontier = JobFrontier::read(label, bytes, most)?;
        let mut members = self.members();
        frontier.check(self, &members)?;
        self.expect(frontier.times());
        members.frontier = Some(Arc::new(frontier));
        Ok(members.frontier_status().unwrap_or_default())
    }
}

impl Members {
    /// The frontier and what it is used for, for people.
    pub(crate) fn frontier_status(&self) -> Option<FrontierStatus> {
        let JobFrontier { label, frontier } = &**self.frontier.as_ref()?;
        let ends = |point: Option<pfo_planner::Point>| point.map_or(0.0, |p| p.iteration_time_s);
        Some(FrontierStatus {
            label: label.clone(),
            plans: frontier.points().len() as u32,
            fastest_s: ends(frontier.points().next()),
            slowest_s: ends(frontier.points().last()),
            straggler: self.straggler.as_ref().map(|answered| answered.straggler.factor()),
            auto: self.auto,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use pfo_planner::{
        Instruction, Measurement, Mhz, Options, Pipeline, Profile, Schedule, Spread, Stage, Watts,
    };

    use super::*;
    use crate::job::JobKey;

    /// A frontier for one microbatch.
    pub(crate) fn frontier(stages: u16) -> Vec<u8> {
        frontier_of(stages, 1)
    }

    /// A frontier for so many equal stages: at 1410 MHz an instruction takes 1 s, at 1200 MHz 1.2 s, at
    /// 900 MHz 1.5 s, and the slower the less energy.
    pub(crate) fn frontier_of(stages: u16, microbatches: u32) -> Vec<u8> {
        let clocks = [(1410, 1.0, 300.0), (1200, 1.2, 250.0), (900, 1.5, 210.0)];
        let rows = (0..stages).map(Stage).flat_map(|stage| {
            [Instruction::Forward, Instruction::Backward].into_iter().flat_map(move |instruction| {
                clocks.map(|(mhz, time_s, energy_j)| {
                    (stage, instruction, Measurement { frequency: Mhz(mhz), time_s, energy_j })
                })
            })
        });
        let profile = Profile::from_measurements(rows).unwrap();
        let pipeline =
            Pipeline::new(&profile, Schedule::OneForwardOneBackward, microbatches).unwrap();
        let options = Options { plans: 40, spread: Spread::Even };
        Frontier::optimize(&pipeline, Watts(10.0), options, &|_| {}).unwrap().to_bytes().unwrap()
    }

    fn job(stages: u32) -> Job {
        Job::new(JobKey { uid: 7, name: "j".parse().unwrap() }, stages)
    }

    fn load(job: &Job, bytes: &[u8], most: usize) -> Result<FrontierStatus, Refusal> {
        job.load_frontier("f".into(), bytes, most)
    }

    #[test]
    fn a_frontier_is_told_with_its_ends() {
        let job = job(1);
        let status = load(&job, &frontier(1), 1000).unwrap();
        assert_eq!((status.fastest_s, status.slowest_s, status.straggler), (2.0, 3.0, None));
        assert_eq!(job.members().frontier_status(), Some(status));
    }

    #[test]
    fn a_frontier_for_other_stages_is_refused_and_the_one_before_stays() {
        let job = job(1);
        load(&job, &frontier(1), 1000).unwrap();
        let refusal = load(&job, &frontier(2), 1000).unwrap_err();
        assert_eq!(refusal.message, "the plan has 2 stages, the job 1");
        assert!(job.members().frontier.is_some());
    }

    #[test]
    fn what_a_frontier_takes_counts_among_the_plans_and_is_bounded() {
        let job = job(1);
        load(&job, &frontier(1), 1000).unwrap();
        let size = job.planned_instructions();
        assert!(size > 0);
        assert!(load(&job, &frontier(1), size).is_ok());
        for most in 0..size {
            assert!(load(&job, &frontier(1), most).is_err(), "{most}");
        }
    }

    #[test]
    fn garbage_is_no_frontier() {
        for bytes in [&b""[..], b"{}", b"pfo-frontier", &frontier(1)[..40]] {
            let refusal = load(&job(1), bytes, 1000).unwrap_err();
            assert_eq!(refusal.code, RefusalCode::PlanDoesNotFit);
        }
    }
}

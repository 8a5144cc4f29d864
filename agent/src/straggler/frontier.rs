//! The frontier that is loaded for a job: its plans are at hand when a straggler makes the job
//! wait. Pure.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use pfo_planner::{
    Deadline, Frontier, Measurement, Mhz, PerStage, Plan, PlanError, Point, Profile, Replay, Room,
    Straggler, Watts, replay,
};
use pfo_protocol::{
    ClockTable, CurvePoint, FrontierStatus, JobView, RankView, Refusal, RefusalCode,
};

use crate::straggler::SlowStages;
use crate::straggler::table::{Labelled, does_not_fit, put_clocks_into};

/// Bytes of a row of the profile, of what is known of its repeats, of a planned instruction, of a plan
/// beside these, of an instruction of the step with all that the planner keeps for it, and of a job
/// with its files beside all that.
const ROW_BYTES: usize = 24;
const REPEATS_BYTES: usize = 112;
const PLANNED_BYTES: usize = 1;
const PLAN_BYTES: usize = 80;
const INSTRUCTION_BYTES: usize = 256;
const JOB_BYTES: usize = 16 << 10;

/// The longest label of a plan that `pfod` takes, in bytes.
const LONGEST_LABEL: usize = 64;

/// A step that takes longer by no more than this share takes no longer.
pub(super) const NO_LONGER: f64 = 0.01;

/// Points of its curve that status shows, at most.
const MOST_SHOWN: usize = 24;

#[derive(Debug)]
pub(crate) struct JobFrontier {
    /// Where it came from, as the client called it.
    label: String,
    frontier: Frontier,
    /// Bytes of its file, which is in memory, too.
    file_bytes: usize,
    /// A step at one clock for everything, at each at which every instruction was profiled, rising; once it was
    /// asked for.
    uniform: OnceLock<Vec<(Mhz, Point)>>,
}

impl JobFrontier {
    /// Reads a frontier that takes at most `most` bytes of memory.
    ///
    /// # Errors
    /// If the bytes are no frontier, or there is no room for it.
    pub(crate) fn read(label: String, bytes: &[u8], most: usize) -> Result<Self, Refusal> {
        let room = Room {
            instructions: most / INSTRUCTION_BYTES,
            rows: most / ROW_BYTES,
            repeats: most / REPEATS_BYTES,
            planned: most / PLANNED_BYTES,
        };
        let frontier = Frontier::from_bytes_within(bytes, room).map_err(wrong)?;
        let uniform = OnceLock::new();
        let read = Self { label, frontier, file_bytes: bytes.len(), uniform };
        if read.bytes() > most {
            return Err(Refusal::new(
                RefusalCode::LimitReached,
                format!(
                    "the frontier takes {} bytes of memory, and there is room for {most}",
                    read.bytes()
                ),
                "make it with fewer --plans, or end jobs that have a frontier",
            ));
        }
        Ok(read)
    }

    /// Bytes of memory that it and its file take.
    pub(crate) fn bytes(&self) -> usize {
        let pipeline = self.frontier.pipeline();
        let (instructions, plans) = (pipeline.num_instructions(), self.frontier.plans().len());
        let repeats = pipeline.profile().num_repeated();
        let rows = pipeline.profile().num_rows().saturating_add(self.frontier.num_wait_powers());
        let planned = instructions.saturating_mul(PLANNED_BYTES).saturating_add(PLAN_BYTES);
        JOB_BYTES
            .saturating_add(self.file_bytes)
            .saturating_add(instructions.saturating_mul(INSTRUCTION_BYTES))
            .saturating_add(rows.saturating_mul(ROW_BYTES))
            .saturating_add(repeats.saturating_mul(REPEATS_BYTES))
            .saturating_add(plans.saturating_mul(planned))
    }

    /// The pipeline stages of its plans.
    pub(crate) fn stages(&self) -> u32 {
        u32::from(self.profile().num_stages())
    }

    /// A step at one clock for everything, at each at which every instruction was profiled, rising. None of a
    /// step that is too large to be planned meanwhile.
    pub(crate) fn uniform(&self) -> &[(Mhz, Point)] {
        self.uniform.get_or_init(|| {
            let rows = self.profile().rows();
            let clocks: BTreeSet<Mhz> = rows.map(|(.., row)| row.frequency).collect();
            let plan = self.check_work().ok().and_then(|()| self.frontier.plan(0).ok());
            let Some(mut plan) = plan else { return Vec::new() };
            plan.waits.clear();
            let at = |mhz: Mhz| {
                let planned = plan.stages.iter_mut().flat_map(|stage| &mut stage.instructions);
                planned.for_each(|planned| planned.frequency_mhz = mhz);
                let step = replay(self.profile(), &plan, self.p2p_power().clone()).ok()?;
                let Replay { iteration_time_s, iteration_energy_j, .. } = step;
                Some((mhz, Point { iteration_time_s, iteration_energy_j }))
            };
            clocks.into_iter().filter_map(at).collect()
        })
    }

    /// What the instructions were profiled to take.
    pub(crate) fn profile(&self) -> &Profile {
        self.frontier.pipeline().profile()
    }

    /// The plan of least energy, with the wait for a straggler, that keeps its time. It is made for
    /// that time, or looked up if that would take long.
    ///
    /// # Errors
    /// If a stage of it is empty.
    pub(crate) fn plan_for(&self, straggler: Straggler) -> Result<Labelled, Refusal> {
        let frontier = &self.frontier;
        let plan = match self.check_work() {
            Ok(()) => frontier.plan_for(frontier.due_for(straggler)),
            Err(_) => {
                let place = frontier.pick_for_straggler(straggler);
                place.and_then(|place| frontier.plan(place))
            }
        };
        Labelled::of(self.label_at(straggler), &plan.map_err(wrong)?)
    }

    pub(super) fn label_at(&self, straggler: Straggler) -> String {
        self.label_with(&format!(" at {straggler}"))
    }

    /// Its label with more after it.
    pub(super) fn label_with(&self, more: &str) -> String {
        let most = LONGEST_LABEL.saturating_sub(more.len());
        format!("{}{more}", &self.label[..self.label.floor_char_boundary(most)])
    }

    pub(super) fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    pub(super) fn p2p_power(&self) -> &PerStage<Watts> {
        self.frontier.p2p_power()
    }

    /// The step time that its fastest plan predicts, in seconds.
    pub(super) fn fastest_s(&self) -> f64 {
        self.frontier.points().next().map_or(0.0, |point| point.iteration_time_s)
    }

    /// The plan for a job in which some stages are slow by themselves, each by a share. Slow stages
    /// keep their clocks, so that it shows when they are not slow any more. The others slow down as
    /// far as the step does not take even longer. None if they cannot slow down.
    ///
    /// # Errors
    /// If the job's plan has other instructions, or clocks that were not profiled.
    pub(crate) fn plan_for_slow(
        &self,
        own: &ClockTable,
        slow: &SlowStages,
    ) -> Result<Option<(Straggler, Labelled)>, Refusal> {
        let mut own_plan = self.frontier.plan(0).map_err(wrong)?;
        put_clocks_into(own, &mut own_plan)?;
        let slowed = slowed(self.profile(), slow)?;
        let own_s = self.time_s(self.profile(), &own_plan)?;
        let slowed_s = self.time_s(&slowed, &own_plan)?;

        let times_s: Vec<_> = self.frontier.points().map(|point| point.iteration_time_s).collect();
        let first = times_s.partition_point(|time_s| *time_s <= own_s * (1.0 + NO_LONGER));
        let mut found = None;
        let mut range = first..times_s.partition_point(|time_s| *time_s <= slowed_s);
        while !range.is_empty() {
            let middle = range.start.midpoint(range.end);
            let plan = self.plan_at(times_s[middle], &own_plan, slow)?;
            if self.time_s(&slowed, &plan)? <= slowed_s * (1.0 + NO_LONGER) {
                found = Some((times_s[middle], plan));
                range.start = middle.saturating_add(1);
            } else {
                range.end = middle;
            }
        }
        let Some((time_s, plan)) = found else { return Ok(None) };
        let factor = (1e3 * time_s / times_s[0]).round() / 1e3;
        let straggler = Straggler::new(factor.max(1.0)).map_err(wrong)?;
        // What it predicts does not hold while a stage is slow.
        let plan = Plan { predicted: None, ..plan };
        Ok(Some((straggler, Labelled::of(self.label_at(straggler), &plan)?)))
    }

    /// The plan of a time, in which slow stages keep the clocks of another plan.
    fn plan_at(&self, time_s: f64, own: &Plan, slow: &SlowStages) -> Result<Plan, Refusal> {
        let place = self.frontier.pick(Deadline::Seconds(time_s)).map_err(wrong)?;
        let mut plan = self.frontier.plan(place).map_err(wrong)?;
        for stage in slow.keys().map(|stage| stage.index()) {
            if let Some((kept, own)) = plan.stages.get_mut(stage).zip(own.stages.get(stage)) {
                kept.clone_from(own);
            }
        }
        Ok(plan)
    }

    pub(super) fn time_s(&self, profile: &Profile, plan: &Plan) -> Result<f64, Refusal> {
        let replayed = replay(profile, plan, self.p2p_power());
        replayed.map(|replayed| replayed.iteration_time_s).map_err(wrong)
    }

    /// The frontier for people.
    pub(crate) fn status(&self) -> FrontierStatus {
        let slowest = self.frontier.points().last();
        FrontierStatus {
            label: self.label.clone(),
            plans: self.frontier.points().len() as u32,
            fastest_s: self.fastest_s(),
            slowest_s: slowest.map_or(0.0, |point| point.iteration_time_s),
            straggler: None,
            auto: false,
            curve: self.curve(),
        }
    }

    /// Some of its plans, evenly chosen, with both ends.
    fn curve(&self) -> Vec<CurvePoint> {
        let (last, shown) =
            (self.points().len().saturating_sub(1), self.points().len().min(MOST_SHOWN));
        let place =
            |number: usize| number.saturating_mul(last).checked_div(shown.saturating_sub(1));
        let chosen = (0..shown).filter_map(|number| self.points().nth(place(number).unwrap_or(0)));
        let point = |point: Point| CurvePoint {
            step_s: point.iteration_time_s,
            power_w: point.iteration_energy_j / point.iteration_time_s,
        };
        chosen.map(point).collect()
    }

    /// Checks its fastest plan against what is known of a job. The order of the instructions is
    /// known to `pfod` alone, which checks it at each swap.
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn check(&self, job: &JobView) -> Result<(), Refusal> {
        let fastest = self.frontier.plan(0).map_err(wrong)?;
        let Labelled { table, .. } = Labelled::of(self.label.clone(), &fastest)?;
        let (plan, stages) = (table.stages().len(), job.pp_degree);
        if plan != stages as usize {
            return Err(does_not_fit(format!("the plan has {plan} stages, the job {stages}")));
        }
        job.ranks.iter().try_for_each(|rank| check_rank(&table, rank))
    }
}

fn check_rank(table: &ClockTable, job: &RankView) -> Result<(), Refusal> {
    let (rank, stage) = (job.position.rank, job.position.pp_rank);
    let plan = table.num_microbatches();
    if let Some(own) = job.num_microbatches.filter(|own| *own != plan) {
        return Err(does_not_fit(format!(
            "the plan has {plan} microbatches, rank {rank} has {own}"
        )));
    }
    let units = table.stages().get(stage.index()).map_or(&[][..], Vec::as_slice);
    match units.iter().position(|unit| !job.sm_clocks.contains(&unit.mhz)) {
        Some(position) => Err(does_not_fit(format!(
            "stage {stage} asks for {} in instruction {position}, a clock that rank {rank} on {} \
             may not have",
            units[position].mhz, job.gpu_model
        ))),
        None => Ok(()),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` passes it")]
pub(super) fn wrong(error: PlanError) -> Refusal {
    does_not_fit(error.to_string())
}

/// The profile of a job some of whose stages are slow.
fn slowed(profile: &Profile, slow: &SlowStages) -> Result<Profile, Refusal> {
    let rows = profile.rows().map(|(stage, instruction, row)| {
        let factor = slow.get(&stage).map_or(1.0, |share| 1.0 + share);
        (stage, instruction, Measurement { time_s: factor * row.time_s, ..row })
    });
    Profile::from_measurements(rows).map_err(wrong)
}

#[cfg(test)]
pub(crate) mod tests {
    use pfo_planner::{
        Instruction, Measurement, Mhz, Options, Pipeline, Profile, Schedule, Spread, Stage, Watts,
    };

    use pfo_protocol::{DpRank, Rank, RankPosition, SessionId, TpRank, Uid};

    use super::*;

    /// A frontier for `stages` equal stages: at 1410 MHz an instruction takes 1 s, at 1200 MHz 1.2
    /// s, at 900 MHz 1.5 s, and the slower the less energy.
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

    #[test]
    fn what_a_job_trades_has_both_ends_of_its_frontier_and_few_points() {
        let frontier = JobFrontier::read("f".into(), &frontier_of(2, 8), 1 << 20).unwrap();
        let (curve, all) = (frontier.status().curve, Vec::from_iter(frontier.points()));
        assert!(all.len() > MOST_SHOWN, "{}", all.len());
        assert_eq!(curve.len(), MOST_SHOWN);
        for (shown, plan) in [(curve[0], all[0]), (curve[MOST_SHOWN - 1], all[all.len() - 1])] {
            assert_eq!(shown.step_s, plan.iteration_time_s);
            assert_eq!(shown.power_w, plan.iteration_energy_j / plan.iteration_time_s);
        }
        assert!(curve.is_sorted_by(|one, next| one.step_s < next.step_s), "{curve:?}");
    }

    /// A job of `stages` stages that may have every clock of [`frontier_of`].
    pub(crate) fn job(stages: u16) -> JobView {
        let rank = |stage: u16| RankView {
            position: RankPosition {
                rank: Rank(stage.into()),
                pp_rank: Stage(stage),
                dp_rank: DpRank(0),
                tp_rank: TpRank(0),
                pp_degree: stages.into(),
                dp_degree: 1,
                tp_degree: 1,
            },
            session: SessionId(u64::from(stage) + 1),
            run: None,
            gpu_uuid: format!("GPU-{stage}").parse().unwrap(),
            gpu_model: "A100".into(),
            sm_clocks: [900, 1200, 1410].map(Mhz).to_vec(),
            counts_energy: true,
            num_microbatches: None,
            swap: 0,
            step: None,
            window: None,
            meter: None,
            problem: None,
        };
        JobView {
            job: "team/j".parse().unwrap(),
            uid: Uid(7),
            pp_degree: stages.into(),
            plan: None,
            swap: 0,
            measured_by: None,
            ranks: (0..stages).map(rank).collect(),
        }
    }

    const MOST: usize = 1 << 20;

    fn read(bytes: &[u8], most: usize) -> Result<JobFrontier, Refusal> {
        JobFrontier::read("f".into(), bytes, most)
    }

    #[test]
    fn a_status_has_the_ends_of_the_frontier() {
        let status = read(&frontier_of(1, 1), MOST).unwrap().status();
        assert_eq!((status.fastest_s, status.slowest_s, status.straggler), (2.0, 3.0, None));
    }

    #[test]
    fn a_frontier_for_other_stages_microbatches_or_clocks_is_refused_with_the_difference() {
        let frontier = read(&frontier_of(2, 1), MOST).unwrap();
        assert!(frontier.check(&job(2)).is_ok());
        let refusal = frontier.check(&job(1)).unwrap_err();
        assert_eq!(refusal.message, "the plan has 2 stages, the job 1");
        let mut other = job(2);
        other.ranks[1].num_microbatches = Some(4);
        let refusal = frontier.check(&other).unwrap_err();
        assert_eq!(refusal.message, "the plan has 1 microbatches, rank 1 has 4");
        let mut other = job(2);
        other.ranks[0].sm_clocks = vec![Mhz(900)];
        let refusal = frontier.check(&other).unwrap_err();
        assert!(refusal.message.starts_with("stage 0 asks for 1410 MHz"), "{refusal}");
    }

    #[test]
    fn what_a_frontier_takes_is_bounded() {
        let bytes = frontier_of(1, 1);
        let size = read(&bytes, MOST).unwrap().bytes();
        assert!(read(&bytes, size).is_ok());
        for most in 0..size {
            assert!(read(&bytes, most).is_err(), "{most}");
        }
    }

    #[test]
    fn garbage_is_no_frontier() {
        for bytes in [&b""[..], b"{}", b"pfo-frontier", &frontier_of(1, 1)[..40]] {
            let refusal = read(bytes, MOST).unwrap_err();
            assert_eq!(refusal.code, RefusalCode::PlanDoesNotFit);
        }
    }

    fn clocks(plan: &Labelled) -> Vec<Vec<u32>> {
        let stages = plan.table.stages().iter();
        stages.map(|stage| stage.iter().map(|planned| planned.mhz.0).collect()).collect()
    }

    #[test]
    fn a_plan_takes_the_time_of_a_straggler_and_no_more_than_is_of_use() {
        let frontier = read(&frontier_of(1, 1), MOST).unwrap();
        for (factor, time_s) in [(1.0, 2.0), (1.1, 2.2), (1.3, 2.4), (9.0, 3.0)] {
            let plan = frontier.plan_for(Straggler::new(factor).unwrap()).unwrap();
            assert_eq!(plan.table.predicted().unwrap().time_s, time_s, "{factor}");
            assert_eq!(plan.label, format!("f at {factor}x"));
        }
    }

    #[test]
    fn other_stages_take_the_time_of_a_slow_one_which_keeps_its_clocks() {
        let frontier = read(&frontier_of(2, 8), MOST).unwrap();
        let own = frontier.plan_for(Straggler::NONE).unwrap();
        let slow = |share| SlowStages::from([(Stage(1), share)]);
        assert!(frontier.plan_for_slow(&own.table, &slow(0.0)).unwrap().is_none());
        let sum = |clocks: &[u32]| clocks.iter().sum::<u32>();
        let mut last = sum(&clocks(&own)[0]);
        for share in [0.5, 1.0] {
            let (straggler, plan) =
                frontier.plan_for_slow(&own.table, &slow(share)).unwrap().unwrap();
            assert!(straggler > Straggler::NONE);
            let [first, second] = &clocks(&plan)[..] else { panic!() };
            assert_eq!(second, &clocks(&own)[1]);
            assert!(sum(first) <= last, "{first:?}");
            last = sum(first);
        }
        assert!(last < sum(&clocks(&own)[0]));
    }

    #[test]
    fn where_every_instruction_is_waited_for_nobody_takes_a_slow_stages_time() {
        let frontier = read(&frontier_of(2, 1), MOST).unwrap();
        let own = frontier.plan_for(Straggler::NONE).unwrap();
        let slow = SlowStages::from([(Stage(1), 1.0)]);
        assert!(frontier.plan_for_slow(&own.table, &slow).unwrap().is_none());
    }
}

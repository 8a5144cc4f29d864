//! A plan that a job runs or may run, in the form in which ranks follow it, and whether it fits
//! them.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use pfo_protocol::{
    ClockTable, DpRank, Mhz, Milliwatts, PlanStatus, PlannedUnit, Predicted, RankPosition, Stage,
    Unit,
};

use super::Member;
use super::misfit::Misfit;

/// The instructions of one stage in order; none of a stage that is not the node's.
pub(crate) type StageSequence = Arc<[PlannedUnit]>;

/// The clocks of one stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StageClocks {
    /// One for each instruction, and the instructions in their order.
    Planned(StageSequence),
    /// The same for whatever the stage runs.
    Uniform(Mhz),
}

/// What a plan sets.
#[derive(Debug, PartialEq)]
enum Setting {
    /// A clock for each instruction of each stage.
    Clocks { stages: Vec<StageSequence>, num_microbatches: u32 },
    /// One clock for everything; if there are several, for everything of each replica in turn.
    Uniform(Vec<Mhz>),
    /// A power limit for each stage, and no clock.
    PowerLimits(Vec<Milliwatts>),
    /// No clock, not even of the memory.
    FreeMemory,
}

/// A plan that a job runs or may run.
#[derive(Debug)]
pub(crate) struct JobPlan {
    /// Counts the plans of the job from 1.
    pub number: u32,
    /// Where it came from, as the client called it.
    pub label: String,
    predicted: Option<Predicted>,
    setting: Setting,
    /// Why it is suspended, if it is.
    suspended: ArcSwapOption<String>,
}

/// Whatever their numbers are, and whether they are suspended.
impl PartialEq for JobPlan {
    fn eq(&self, other: &Self) -> bool {
        (&self.label, &self.setting) == (&other.label, &other.setting)
    }
}

impl JobPlan {
    /// A plan in the form in which ranks follow it.
    pub(crate) fn new(number: u32, label: String, table: ClockTable) -> Self {
        let num_microbatches = table.num_microbatches();
        let predicted = table.predicted();
        let stages = table.into_stages().into_iter().map(StageSequence::from).collect();
        let setting = Setting::Clocks { stages, num_microbatches };
        Self { predicted, ..Self::unsuspended(number, label, setting) }
    }

    /// The clock table of the plan, if it has one.
    pub(crate) fn table(&self) -> Option<ClockTable> {
        let Setting::Clocks { stages, num_microbatches } = &self.setting else { return None };
        let stages = stages.iter().map(|stage| stage.to_vec()).collect();
        ClockTable::new(*num_microbatches, self.predicted, stages).ok()
    }

    /// A plan of an earlier daemon, as its record has it.
    pub(crate) fn restored(
        status: PlanStatus,
        num_microbatches: u32,
        stages: Vec<StageSequence>,
    ) -> Self {
        let setting = if status.power_limits_w.is_empty() {
            Setting::Clocks { stages, num_microbatches }
        } else {
            let limits = status.power_limits_w.iter().copied().map(Milliwatts::of_watts);
            Setting::PowerLimits(limits.collect())
        };
        let mut plan = Self::unsuspended(status.number, status.label, setting);
        plan.predicted = status
            .predicted_time_s
            .zip(status.predicted_energy_j)
            .map(|(time_s, energy_j)| Predicted { time_s, energy_j });
        status.suspended.into_iter().for_each(|why| plan.suspend(|| why));
        plan
    }

    /// One clock for all stages; if there are several, for those of each replica in turn.
    pub(crate) fn uniform(number: u32, clocks: Vec<Mhz>) -> Self {
        let each: Vec<_> = clocks.iter().map(|mhz| mhz.0.to_string()).collect();
        Self::unsuspended(
            number,
            format!("all at {} MHz", each.join("/")),
            Setting::Uniform(clocks),
        )
    }

    /// Default clocks under a power limit for each stage.
    pub(crate) fn power_limits(number: u32, label: String, limits: Vec<Milliwatts>) -> Self {
        Self::unsuspended(number, label, Setting::PowerLimits(limits))
    }

    /// Default clocks, also of the memory.
    pub(crate) fn free_memory(number: u32) -> Self {
        Self::unsuspended(number, "memory clock not locked".into(), Setting::FreeMemory)
    }

    fn unsuspended(number: u32, label: String, setting: Setting) -> Self {
        let suspended = ArcSwapOption::empty();
        Self { number, label, predicted: None, setting, suspended }
    }

    /// Whether the plan is only for measuring: it has one clock for everything, or none.
    pub(crate) fn is_for_measuring(&self) -> bool {
        matches!(self.setting, Setting::Uniform(_) | Setting::FreeMemory)
    }

    /// Whether the plan sets power limits in the place of clocks.
    pub(crate) fn has_power_limits(&self) -> bool {
        matches!(self.setting, Setting::PowerLimits(_))
    }

    /// Whether the memory clock is not locked under the plan.
    pub(crate) fn frees_memory(&self) -> bool {
        matches!(self.setting, Setting::FreeMemory)
    }

    /// Checks the plan against a job's stages.
    ///
    /// # Errors
    /// How they differ.
    pub(crate) fn check_stages(&self, job: u32) -> Result<(), Misfit> {
        let plan = match &self.setting {
            Setting::Clocks { stages, .. } => stages.len(),
            Setting::PowerLimits(limits) => limits.len(),
            Setting::Uniform(_) | Setting::FreeMemory => return Ok(()),
        };
        if plan == job as usize { Ok(()) } else { Err(Misfit::Stages { plan, job }) }
    }

    /// Checks the plan against one rank.
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn check_rank(&self, member: &Member) -> Result<(), Misfit> {
        let RankPosition { rank, pp_rank: stage, dp_rank, .. } = member.hello.position;
        let Some(StageClocks::Planned(planned)) = self.clocks(stage, dp_rank) else {
            return self.check_granted(member);
        };
        if let Some(job) = member.hello.num_microbatches
            && job != self.num_microbatches()
        {
            return Err(Misfit::Microbatches { plan: self.num_microbatches(), rank, job });
        }
        if let Some(ran) = &*member.session.progress.ran.load() {
            let in_words = |unit: Option<Unit>| unit.map_or("nothing".into(), |u| u.to_string());
            let mut ran = ran.iter().copied().peekable();
            for position in 0..=planned.len() {
                let unit = planned.get(position).map(|planned| planned.unit);
                // What the plan says nothing of, and no clock changes.
                let is_extra = |ran: &Unit| ran.instruction.is_fixed() && Some(*ran) != unit;
                while ran.next_if(is_extra).is_some() {}
                let other = ran.next();
                if unit != other {
                    let (planned, ran) = (in_words(unit), in_words(other));
                    return Err(Misfit::Order { stage, position, planned, rank, ran });
                }
            }
        }
        self.check_granted(member)
    }

    /// Checks the plan's clocks and power limit against those that one rank may have.
    ///
    /// # Errors
    /// The first one that is not allowed.
    pub(crate) fn check_granted(&self, member: &Member) -> Result<(), Misfit> {
        let RankPosition { rank, pp_rank: stage, dp_rank, .. } = member.hello.position;
        let (gpu, grant) = (&member.gpu, member.session.grant.load());
        let (min, max) = grant.terms.bounds();
        let fits = |position: usize, mhz: Mhz| {
            if !(min..=max).contains(&mhz) {
                let place = grant.place.clone();
                return Err(Misfit::Bounds { stage, position, mhz, rank, min, max, place });
            }
            if gpu.sm_clocks.binary_search(&mhz).is_err() {
                let nearest: Vec<_> =
                    gpu.nearest_sm_clocks(mhz).iter().map(ToString::to_string).collect();
                let (model, nearest) = (gpu.model.clone(), nearest.join(" and "));
                return Err(Misfit::Frequency { stage, position, mhz, rank, model, nearest });
            }
            Ok(())
        };
        match self.clocks(stage, dp_rank) {
            Some(StageClocks::Planned(planned)) => (0..)
                .zip(planned.iter())
                .try_for_each(|(at, unit)| unit.clocks().try_for_each(|mhz| fits(at, mhz)))?,
            Some(StageClocks::Uniform(mhz)) => fits(0, mhz)?,
            None if self.stages().len() > stage.index() => return Err(Misfit::Empty(stage)),
            None => {}
        }
        self.power_limit(stage).map_or(Ok(()), |limit| check_limit(limit, member))
    }

    /// What every stage runs; empty where no instruction has a clock of its own.
    pub(crate) fn stages(&self) -> &[StageSequence] {
        let Setting::Clocks { stages, .. } = &self.setting else { return &[] };
        stages
    }

    /// The number of instructions in all stages.
    pub(crate) fn instructions(&self) -> usize {
        self.stages().iter().map(|planned| planned.len()).sum()
    }

    /// The microbatches of a step; 0 where they do not matter.
    pub(crate) fn num_microbatches(&self) -> u32 {
        let Setting::Clocks { num_microbatches, .. } = self.setting else { return 0 };
        num_microbatches
    }

    /// The clocks of a stage in a replica; `None` is default clocks. Stages that the plan does not
    /// have are refused by [`check_stages`](Self::check_stages).
    pub(crate) fn clocks(&self, stage: Stage, replica: DpRank) -> Option<StageClocks> {
        match &self.setting {
            Setting::Clocks { stages, .. } => {
                let planned = stages.get(stage.index()).filter(|planned| !planned.is_empty());
                planned.map(Arc::clone).map(StageClocks::Planned)
            }
            Setting::Uniform(clocks) => {
                let own = (replica.0 as usize).checked_rem(clocks.len())?;
                clocks.get(own).copied().map(StageClocks::Uniform)
            }
            Setting::PowerLimits(_) | Setting::FreeMemory => None,
        }
    }

    /// The power limit of each stage; none in a plan of clocks.
    fn limits(&self) -> &[Milliwatts] {
        let Setting::PowerLimits(limits) = &self.setting else { return &[] };
        limits
    }

    /// The power limit of a stage, if it has one.
    pub(crate) fn power_limit(&self, stage: Stage) -> Option<Milliwatts> {
        self.limits().get(stage.index()).copied()
    }

    /// Stops the use of the plan on all ranks from their next step. The first reason stays.
    pub(crate) fn suspend(&self, why: impl FnOnce() -> String) {
        if !self.is_suspended() {
            self.suspended.store(Some(Arc::new(why())));
        }
    }

    /// Uses the plan again: the job starts anew.
    pub(crate) fn resume(&self) {
        self.suspended.store(None);
    }

    /// Whether the plan is suspended.
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load().is_some()
    }

    /// The plan as status shows it.
    pub(crate) fn status(&self) -> PlanStatus {
        PlanStatus {
            number: self.number,
            label: self.label.clone(),
            predicted_time_s: self.predicted.map(|predicted| predicted.time_s),
            predicted_energy_j: self.predicted.map(|predicted| predicted.energy_j),
            suspended: self.suspended.load().as_deref().cloned(),
            power_limits_w: self.limits().iter().map(|limit| limit.watts()).collect(),
        }
    }
}

fn check_limit(limit: Milliwatts, member: &Member) -> Result<(), Misfit> {
    let RankPosition { rank, pp_rank: stage, .. } = member.hello.position;
    let (gpu, grant) = (&member.gpu, member.session.grant.load());
    let Some(board) = gpu.power_limits else {
        return Err(Misfit::NoPowerLimit { rank, model: gpu.model.clone() });
    };
    let min = grant.terms.min_power_limit();
    if limit < min {
        let place = grant.place.clone();
        return Err(Misfit::PowerBound { stage, limit, rank, min, place });
    }
    if !(board.lowest..=board.highest).contains(&limit) {
        let model = gpu.model.clone();
        return Err(Misfit::PowerLimit { stage, limit, rank, model, board });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pfo_keeper::{GpuFacts, example_gpu};
    use pfo_protocol::Instruction;

    use super::super::example::{B0, F0, member, table};
    use super::*;
    use crate::lease::example_grant;

    fn plan() -> JobPlan {
        JobPlan::new(1, "p".into(), table(&[[900, 1200], [1410, 1000]]))
    }

    fn rank_7(stage: u16) -> Member {
        let mut member = member(7, 0);
        member.hello.position.pp_rank = Stage(stage);
        member
    }

    impl Member {
        fn that_ran(self, units: &[Unit]) -> Self {
            self.session.progress.ran.store(Some(Arc::new(units.to_vec())));
            self
        }

        fn granted(self, bounds: &str) -> Self {
            self.session.grant.store(Arc::new(example_grant(bounds)));
            self
        }

        fn of_microbatches(mut self, num_microbatches: u32) -> Self {
            self.hello.num_microbatches = Some(num_microbatches);
            self
        }
    }

    fn misfit(member: &Member) -> String {
        plan().check_rank(member).unwrap_err().to_string()
    }

    #[test]
    fn a_plan_for_other_stages_does_not_fit() {
        let plan = plan();
        assert_eq!(plan.check_stages(2), Ok(()));
        assert_eq!(plan.check_stages(4), Err(Misfit::Stages { plan: 2, job: 4 }));
    }

    #[test]
    fn a_plan_for_other_microbatches_does_not_fit() {
        let other = rank_7(0).of_microbatches(8);
        assert_eq!(misfit(&other), "the plan has 1 microbatches, rank 7 said 8");
    }

    #[test]
    fn a_plan_of_another_order_does_not_fit_and_the_first_difference_is_named() {
        let ran = |units: &[Unit]| rank_7(0).that_ran(units);
        assert!(plan().check_rank(&ran(&[F0, B0])).is_ok());
        let error = misfit(&ran(&[F0, F0]));
        assert!(error.contains("instruction 1 of stage 0 is backward of microbatch 0"), "{error}");
        let error = misfit(&ran(&[F0]));
        assert!(error.contains("but rank 7 ran nothing"), "{error}");
        let error = misfit(&ran(&[F0, B0, F0]));
        assert!(error.contains("instruction 2 of stage 0 is nothing"), "{error}");
    }

    #[test]
    fn what_takes_a_fixed_time_needs_no_place_in_a_plan() {
        let load = Unit { instruction: Instruction::Load, ..F0 };
        let step = Unit { instruction: Instruction::OptimizerStep, ..F0 };
        assert!(plan().check_rank(&rank_7(0).that_ran(&[load, F0, B0, step])).is_ok());
        let error = misfit(&rank_7(0).that_ran(&[load, F0, F0, step]));
        assert!(error.contains("instruction 1 of stage 0 is backward"), "{error}");
        let planned = [load, F0].map(|unit| PlannedUnit { unit, mhz: Mhz(900), wait_mhz: None });
        let with =
            JobPlan::new(1, "p".into(), ClockTable::new(1, None, vec![planned.into()]).unwrap());
        assert!(with.check_rank(&rank_7(0).that_ran(&[load, F0, step])).is_ok());
        let error = with.check_rank(&rank_7(0).that_ran(&[F0, load])).unwrap_err().to_string();
        assert!(error.contains("instruction 0 of stage 0 is load"), "{error}");
    }

    #[test]
    fn a_frequency_that_the_gpu_lacks_is_named_with_its_neighbours() {
        let error = misfit(&rank_7(1));
        assert!(error.contains("1000 MHz in instruction 1"), "{error}");
        assert!(error.contains("900 MHz and 1200 MHz"), "{error}");
    }

    #[test]
    fn the_clock_of_a_wait_has_to_fit_as_that_of_its_instruction_does() {
        let waits_at = |mhz| {
            let [f0, b0] = [F0, B0].map(|unit| PlannedUnit { unit, mhz: Mhz(900), wait_mhz: None });
            let units = vec![f0, PlannedUnit { wait_mhz: Some(Mhz(mhz)), ..b0 }];
            let plan = JobPlan::new(1, "p".into(), ClockTable::new(1, None, vec![units]).unwrap());
            let rank = rank_7(0).granted("min_mhz = 900\nmax_mhz = 1200");
            plan.check_rank(&rank).map_err(|misfit| misfit.to_string())
        };
        assert_eq!(waits_at(1200), Ok(()));
        assert!(waits_at(1410).unwrap_err().contains("1410 MHz in instruction 1"));
        assert!(waits_at(1000).unwrap_err().contains("1000 MHz in instruction 1"));
    }

    #[test]
    fn a_frequency_outside_the_administrators_bounds_is_refused() {
        let within = |bounds| rank_7(0).granted(bounds);
        assert!(plan().check_rank(&within("min_mhz = 900\nmax_mhz = 1200")).is_ok());
        assert_eq!(
            misfit(&within("min_mhz = 901")),
            "stage 0 asks for 900 MHz in instruction 0, but the administrator allows rank 7 901 MHz to \
             10000 MHz ([lease], as no rule matches)"
        );
        assert!(misfit(&within("max_mhz = 1199")).contains("1200 MHz in instruction 1"));
    }

    #[test]
    fn one_clock_for_everything_fits_whatever_runs_if_the_rank_may_have_it() {
        let ran = rank_7(9).of_microbatches(8).that_ran(&[F0]);
        assert_eq!(JobPlan::uniform(1, vec![Mhz(900)]).check_rank(&ran), Ok(()));
        assert_eq!(JobPlan::uniform(1, vec![Mhz(900)]).check_stages(4), Ok(()));
        let error = JobPlan::uniform(1, vec![Mhz(1000)]).check_rank(&ran).unwrap_err().to_string();
        assert!(error.contains("900 MHz and 1200 MHz"), "{error}");
        let error = JobPlan::uniform(1, vec![Mhz(900)]).check_rank(&ran.granted("max_mhz = 899"));
        assert!(matches!(error, Err(Misfit::Bounds { .. })), "{error:?}");
    }

    #[test]
    fn power_limits_fit_whatever_runs_if_the_gpu_takes_them_and_the_rank_may_have_them() {
        let plan = |watts: [u32; 2]| {
            let limits = watts.map(Milliwatts::of_watts).into();
            JobPlan::power_limits(1, "z".into(), limits)
        };
        let misfit = |watts, member: &Member| {
            plan([400, watts]).check_rank(member).map_err(|misfit| misfit.to_string())
        };
        assert_eq!(plan([100, 400]).check_stages(2), Ok(()));
        assert_eq!(plan([100, 400]).check_stages(4), Err(Misfit::Stages { plan: 2, job: 4 }));
        let ran = rank_7(1).granted("min_power_limit_w = 200").that_ran(&[F0]);
        assert_eq!(misfit(200, &ran), Ok(()));
        assert_eq!(
            misfit(199, &ran).unwrap_err(),
            "stage 1 is to have a power limit of 199 W, but the administrator allows rank 7 no \
             limit below 200 W ([lease], as no rule matches)"
        );
        assert_eq!(
            misfit(401, &ran).unwrap_err(),
            "stage 1 is to have a power limit of 401 W, but A100 of rank 7 takes 100 W to 400 W"
        );
        let without = GpuFacts { power_limits: None, ..example_gpu() };
        let without = Member { gpu: Arc::new(without), ..ran };
        assert_eq!(misfit(200, &without).unwrap_err(), "A100 of rank 7 takes no power limit");
    }

    #[test]
    fn power_limits_are_the_same_after_a_restart() {
        let limits = [250, 200].map(Milliwatts::of_watts);
        let plan = JobPlan::power_limits(3, "z".into(), limits.into());
        let again = JobPlan::restored(plan.status(), 0, Vec::new());
        assert_eq!(again.status(), plan.status());
        assert_eq!(
            (again.power_limit(Stage(1)), again.clocks(Stage(1), DpRank(0))),
            (Some(limits[1]), None)
        );
    }

    #[test]
    fn the_first_reason_to_suspend_a_plan_stays() {
        let plan = plan();
        assert!(!plan.is_suspended());
        plan.suspend(|| "first".into());
        plan.suspend(|| "second".into());
        assert_eq!(plan.status().suspended.as_deref(), Some("first"));
        plan.resume();
        assert_eq!((plan.status().suspended, plan.is_suspended()), (None, false));
        plan.suspend(|| "third".into());
        assert_eq!(plan.status().suspended.as_deref(), Some("third"));
    }

    #[test]
    fn the_clock_table_of_a_plan_is_the_one_that_it_was_made_of() {
        let made_of = table(&[[900, 1200], [1410, 1000]]);
        let predicted = Some(Predicted { time_s: 1.5, energy_j: 200.0 });
        let made_of = ClockTable::new(1, predicted, made_of.into_stages()).unwrap();
        let plan = JobPlan::new(1, "p".into(), made_of.clone());
        assert_eq!(plan.table().as_ref(), Some(&made_of));
        assert_eq!((plan.instructions(), plan.num_microbatches()), (4, 1));
        let again = JobPlan::restored(plan.status(), 1, plan.stages().to_vec());
        assert_eq!((again.table(), again.status()), (Some(made_of), plan.status()));
        assert_eq!(JobPlan::uniform(1, vec![Mhz(900)]).table(), None);
    }

    #[test]
    fn a_stage_that_is_left_out_fits_a_node_without_ranks_of_it() {
        let [stage] = <[_; 1]>::try_from(table(&[[900, 1200]]).into_stages()).unwrap();
        let cut = ClockTable::new(1, None, vec![stage, Vec::new()]).unwrap();
        let plan = JobPlan::new(1, "p".into(), cut);
        assert_eq!((plan.check_stages(2), plan.check_rank(&rank_7(0))), (Ok(()), Ok(())));
        let refused = plan.check_rank(&rank_7(1)).unwrap_err();
        assert_eq!(refused.to_string(), "stage 1 has no instruction in the plan");
        assert_eq!(plan.clocks(Stage(1), DpRank(0)), None);
    }

    #[test]
    fn a_stage_that_the_plan_does_not_have_is_left_at_default_clocks() {
        assert_eq!(plan().clocks(Stage(2), DpRank(0)), None);
        assert_eq!(plan().clocks(Stage(u16::MAX), DpRank(0)), None);
        assert_eq!(plan().check_rank(&rank_7(u16::MAX)), Ok(()));
        let limits = JobPlan::power_limits(1, "z".into(), vec![Milliwatts::of_watts(200)]);
        assert_eq!(limits.power_limit(Stage(u16::MAX)), None);
    }
}

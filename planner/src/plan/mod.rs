//! One plan, and the check that its parts are consistent.

mod file;

use std::collections::{HashMap, HashSet};

use pfo_vocabulary::{Chunk, Instruction, Mhz, Microbatch, Stage, Unit, Watts};
use serde::{Deserialize, Serialize};

use crate::error::PlanError;
use crate::excerpt::excerpt;
use crate::limits;
use crate::payload::PlannedPayload;
use crate::profile::parts::Part;
use crate::schedule::name::Schedule;
use crate::step::delays::Delays;
use crate::step::dependencies::{BadDependency, Dependency, StageUnit, check_dependencies};
use crate::step::order::{Misordered, Order, check_order};
use crate::step::overlap::{OverlappedForward, overlaps_on};
use crate::step::placement::Placement;
use crate::waits::PlannedWait;
use crate::waits::per_stage::PerStage;
use crate::waits::power::PowerByClock;

/// One frequency for every instruction of a step, per stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The GPU model that was profiled, if it is known.
    pub gpu: Option<String>,
    /// The schedule that the order of the instructions comes from.
    pub schedule: Schedule,
    /// The number of stages of the pipeline.
    pub num_stages: u16,
    /// The number of microbatches of a step.
    pub num_microbatches: u32,
    /// The P2P-blocking power, if it is known, or that of each stage. In files, the mean of the stages
    /// and, if they differ, `p2p_blocking_power_by_stage_w`.
    pub p2p_blocking_power_w: Option<PerStage<Watts>>,
    /// The P2P-blocking power by clock, if it is known; left out in files otherwise. Where stages
    /// differ, `p2p_blocking_power_by_stage_by_mhz` in files.
    pub p2p_blocking_power_by_mhz: Option<PerStage<PowerByClock>>,
    /// Delays between instructions and between clocks; 0, and left out in files, if not measured.
    pub delays: Delays,
    /// The replay of the plan over the profile that it was made from.
    pub predicted: Option<Prediction>,
    /// How the model chunks lie on the stages; left out in files where the schedule says it.
    pub placement: Placement,
    /// The dependencies that do not follow from the rule; left out in files if there are none. A
    /// replay that ignores them may find another time.
    pub dependencies: Vec<Dependency>,
    /// The waits that have a clock of their own; left out in files if there are none. A replay that
    /// ignores them finds the same time and more energy.
    pub waits: Vec<PlannedWait>,
    /// What instructions get beside their clocks; left out in files if there are none. Nothing here acts
    /// on it.
    pub payloads: Vec<PlannedPayload>,
    /// The instructions of each stage, by stage.
    pub stages: Vec<StagePlan>,
}

/// The expected time and energy of a step: a prediction, not a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prediction {
    /// Seconds from the first instruction's start to the last one's end.
    pub iteration_time_s: f64,
    /// Joules of all stages, including those drawn while waiting.
    pub iteration_energy_j: f64,
}

/// The instructions of one stage, in the order in which it runs them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StagePlan {
    /// The stage.
    pub stage: Stage,
    /// Its instructions, first to last.
    pub instructions: Vec<PlannedInstruction>,
}

/// One instruction and its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedInstruction {
    /// The instruction.
    pub instruction: Instruction,
    /// The microbatch.
    pub microbatch: Microbatch,
    /// The model chunk of the stage; 0, and left out in files, where stages are not interleaved.
    #[serde(default, skip_serializing_if = "Chunk::is_first")]
    pub chunk: Chunk,
    /// The forward that a `forward_backward` runs beside its backward, if it is an instruction of two;
    /// left out in files otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<OverlappedForward>,
    /// The clock in MHz.
    pub frequency_mhz: Mhz,
}

impl PlannedInstruction {
    /// Its part of the step.
    pub(crate) fn part(&self) -> Part {
        Part::of(self.chunk, self.microbatch)
    }

    /// The instruction without its clock.
    pub fn unit(&self) -> Unit {
        Unit { instruction: self.instruction, microbatch: self.microbatch, chunk: self.chunk }
    }
}

impl Plan {
    /// The largest number of stages of a plan.
    pub const MAX_STAGES: u16 = limits::STAGES;
    /// The largest number of microbatches of a plan.
    pub const MAX_MICROBATCHES: u32 = limits::MICROBATCHES;
    /// The longest GPU name, in bytes.
    pub const MAX_GPU_NAME_BYTES: usize = limits::GPU_NAME_BYTES;

    /// The number of instructions, over all stages.
    pub fn num_instructions(&self) -> usize {
        self.stages.iter().map(|stage| stage.instructions.len()).sum()
    }

    /// The changes of clocks in a step, on the stage that has most; it changes from the last instruction to
    /// the first one of the next step, too. Instructions that ask for no clock make no difference.
    #[must_use]
    pub fn most_clock_changes(&self) -> usize {
        let of_stage = |stage: &StagePlan| {
            let clocks = || stage.instructions.iter().filter(|one| !one.instruction.is_fixed());
            let next = clocks().cycle().skip(1);
            clocks().zip(next).filter(|(one, next)| one.frequency_mhz != next.frequency_mhz).count()
        };
        self.stages.iter().map(of_stage).max().unwrap_or(0)
    }

    /// The order in which its stages run its instructions.
    pub(crate) fn order(&self) -> Order {
        let units =
            |stage: &StagePlan| stage.instructions.iter().map(PlannedInstruction::unit).collect();
        let overlaps = self.stages.iter().flat_map(|stage| {
            let planned = stage.instructions.iter();
            overlaps_on(stage.stage, planned.map(|planned| (planned.unit(), planned.forward)))
        });
        Order {
            stages: self.stages.iter().map(units).collect(),
            num_microbatches: self.num_microbatches,
            placement: self.placement,
            overlaps: overlaps.collect(),
            dependencies: self.dependencies.clone(),
            transfer_time_s: None,
        }
    }

    /// What a waiting GPU draws, by clock if that is known.
    pub fn waiting_power(&self) -> Option<PerStage<PowerByClock>> {
        let flat = || self.p2p_blocking_power_w.as_ref().map(PerStage::from);
        self.p2p_blocking_power_by_mhz.clone().or_else(flat)
    }

    /// The numbers of a clock table: for each stage every unit, its clock and that of the wait
    /// before it, if it has one, in the order in which the stage runs them.
    pub fn clocks(&self) -> impl Iterator<Item = Vec<(Unit, Mhz, Option<Mhz>)>> {
        let waits: HashMap<StageUnit, Mhz> =
            self.waits.iter().map(|wait| (wait.before, wait.frequency_mhz)).collect();
        self.stages.iter().map(move |stage| {
            let clocks = |planned: &PlannedInstruction| {
                let unit = planned.unit();
                let wait = waits.get(&StageUnit::new(stage.stage, unit)).copied();
                (unit, planned.frequency_mhz, wait)
            };
            stage.instructions.iter().map(clocks).collect()
        })
    }

    /// Checks that the parts are consistent.
    ///
    /// # Errors
    /// The first problem, with its place.
    pub(crate) fn check(&self) -> Result<(), PlanError> {
        within("num_stages", self.num_stages.into(), Self::MAX_STAGES.into())?;
        within("num_microbatches", self.num_microbatches, Self::MAX_MICROBATCHES)?;
        if let Some(gpu) = self.gpu.as_ref().filter(|gpu| gpu.len() > Self::MAX_GPU_NAME_BYTES) {
            let limit = Self::MAX_GPU_NAME_BYTES;
            return Err(content(
                "gpu",
                format!("\"{}\" is longer than {limit} bytes", excerpt(gpu)),
            ));
        }
        self.check_power()?;
        for (name, seconds) in self.delays.named() {
            not_negative(name, seconds)?;
        }
        for &(_, seconds) in self.delays.latency_by_clock.points() {
            not_negative("switch_latency_by_mhz_s", seconds)?;
        }
        if let Some(predicted) = self.predicted {
            not_negative("predicted.iteration_time_s", predicted.iteration_time_s)?;
            not_negative("predicted.iteration_energy_j", predicted.iteration_energy_j)?;
        }
        if self.stages.len() != usize::from(self.num_stages) {
            let found = self.stages.len();
            let problem = format!("{found} are listed, but num_stages is {}", self.num_stages);
            return Err(content("stages", problem));
        }
        for (index, stage) in self.stages.iter().enumerate() {
            if stage.stage.index() != index {
                let problem = format!(
                    "it says stage {}, but entry {index} must be stage {index}; list each stage once, \
                     in order",
                    stage.stage
                );
                return Err(content(&format!("stages[{index}]"), problem));
            }
            self.check_stage(stage)?;
        }
        self.check_waits()?;
        self.check_payloads()?;
        check_dependencies(self.run(), &self.dependencies).map_err(
            |BadDependency { number, problem }| content(&format!("dependency {number}"), problem),
        )
    }

    /// The instructions of all stages.
    fn run(&self) -> impl Iterator<Item = StageUnit> {
        self.stages.iter().flat_map(|stage| {
            stage.instructions.iter().map(|planned| StageUnit::new(stage.stage, planned.unit()))
        })
    }

    /// Checks that there is a possible P2P-blocking power for each stage.
    fn check_power(&self) -> Result<(), PlanError> {
        if let Some(power) = &self.p2p_blocking_power_w {
            let place = match power.differing() {
                None => "p2p_blocking_power_w",
                Some(_) => "p2p_blocking_power_by_stage_w",
            };
            power.check(self.num_stages).map_err(|error| content(place, error.to_string()))?;
            for Watts(power) in power.each(self.num_stages) {
                possible_power(place, *power)?;
            }
        }
        if let Some(power) = &self.p2p_blocking_power_by_mhz {
            let place = match power.differing() {
                None => "p2p_blocking_power_by_mhz",
                Some(_) => "p2p_blocking_power_by_stage_by_mhz",
            };
            power.check(self.num_stages).map_err(|error| content(place, error.to_string()))?;
            for (_, Watts(power)) in power.values().iter().flat_map(PowerByClock::points) {
                possible_power(place, *power)?;
            }
        }
        Ok(())
    }

    /// Checks that each wait is before another instruction that is run, and that its clock is
    /// possible.
    fn check_waits(&self) -> Result<(), PlanError> {
        if self.waits.is_empty() {
            return Ok(());
        }
        let mut left: HashSet<StageUnit> = self.run().collect();
        for (number, wait) in self.waits.iter().enumerate() {
            let PlannedWait { before, frequency_mhz } = wait;
            let bad = |problem| Err(content(&format!("wait {number}"), problem));
            if !left.remove(before) {
                return bad(format!(
                    "before {before}, which no stage runs, or twice; name each once"
                ));
            }
            if !frequency_mhz.is_plausible() {
                let limit = Mhz::MAX;
                return bad(format!("at {frequency_mhz}, not between 1 MHz and {limit}"));
            }
        }
        Ok(())
    }

    /// Checks that each payload is of another instruction that is run.
    fn check_payloads(&self) -> Result<(), PlanError> {
        if self.payloads.is_empty() {
            return Ok(());
        }
        let mut left: HashSet<StageUnit> = self.run().collect();
        match self.payloads.iter().position(|payload| !left.remove(&payload.of)) {
            None => Ok(()),
            Some(number) => {
                let of = self.payloads[number].of;
                let problem = format!("of {of}, which no stage runs, or twice; name each once");
                Err(content(&format!("payload {number}"), problem))
            }
        }
    }

    /// Checks the order of one stage and that its clocks are possible.
    fn check_stage(&self, stage: &StagePlan) -> Result<(), PlanError> {
        let units = stage.instructions.iter().map(|planned| (planned.unit(), planned.forward));
        check_order(units, self.num_microbatches, self.placement).map_err(|wrong| match wrong {
            Misordered { instruction: Some(index), problem } => {
                content(&format!("stage {}, instruction {index}", stage.stage), problem)
            }
            Misordered { instruction: None, problem } => {
                content(&format!("stage {}", stage.stage), problem)
            }
        })?;
        for (index, planned) in stage.instructions.iter().enumerate() {
            if !planned.frequency_mhz.is_plausible() {
                let (unit, clock, limit) = (planned.unit(), planned.frequency_mhz, Mhz::MAX);
                return Err(content(
                    &format!("stage {}, instruction {index}", stage.stage),
                    format!("{unit} at {clock}, not between 1 MHz and {limit}"),
                ));
            }
        }
        Ok(())
    }
}

fn content(place: &str, problem: String) -> PlanError {
    PlanError::PlanContent { place: place.to_owned(), problem }
}

fn within(place: &str, value: u32, limit: u32) -> Result<(), PlanError> {
    if (1..=limit).contains(&value) {
        Ok(())
    } else {
        Err(content(place, format!("{value} is not between 1 and {limit}")))
    }
}

fn possible_power(place: &str, power_w: f64) -> Result<(), PlanError> {
    if (0.0..=limits::WAITING_W).contains(&power_w) {
        Ok(())
    } else {
        let most = limits::WAITING_W;
        Err(content(place, format!("{power_w:?} is not between 0 and {most} W")))
    }
}

fn not_negative(place: &str, value: f64) -> Result<(), PlanError> {
    if value.is_finite() && value >= 0.0 {
        Ok(())
    } else {
        Err(content(place, format!("{value} is not a number of at least 0")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused_with(change: impl FnOnce(&mut Plan)) -> String {
        let golden = include_bytes!("../../tests/golden/plan.json");
        let mut plan = Plan::from_json(golden).unwrap();
        change(&mut plan);
        plan.check().unwrap_err().to_string()
    }

    #[test]
    fn clocks_follow_the_order_of_each_stage() {
        let plan = Plan::from_json(include_bytes!("../../tests/golden/plan.json")).unwrap();
        let clocks: Vec<_> = plan.clocks().collect();
        assert_eq!(clocks.len(), usize::from(plan.num_stages));
        assert_eq!(clocks.iter().map(Vec::len).sum::<usize>(), plan.num_instructions());
        let last = plan.stages[1].instructions.last().unwrap();
        assert_eq!(clocks[1].last(), Some(&(last.unit(), last.frequency_mhz, None)));
    }

    #[test]
    fn more_stages_than_listed_are_refused_with_both_numbers() {
        let message = refused_with(|plan| plan.num_stages = 3);
        assert!(
            message.contains("2 are listed") && message.contains("num_stages is 3"),
            "{message}"
        );
    }

    #[test]
    fn no_stages_too_many_stages_and_too_many_microbatches_are_refused() {
        let message = refused_with(|plan| plan.num_stages = 0);
        assert!(message.contains("num_stages: 0 is not between 1 and 1024"), "{message}");
        let message = refused_with(|plan| plan.num_stages = 2000);
        assert!(message.contains("num_stages: 2000"), "{message}");
        let message = refused_with(|plan| plan.num_microbatches = u32::MAX);
        assert!(message.contains("num_microbatches: 4294967295"), "{message}");
    }

    #[test]
    fn a_stage_out_of_order_is_refused_with_its_number_and_its_place() {
        let message = refused_with(|plan| plan.stages[1].stage = Stage(7));
        assert!(message.contains("stages[1]") && message.contains("stage 7"), "{message}");
    }

    #[test]
    fn a_microbatch_that_the_step_does_not_have_is_refused_with_its_place() {
        let message =
            refused_with(|plan| plan.stages[1].instructions[0].microbatch = Microbatch(5));
        assert!(message.contains("stage 1, instruction 0"), "{message}");
        assert!(message.contains("microbatch 5"), "{message}");
    }

    #[test]
    fn a_repeated_and_a_missing_instruction_are_refused() {
        let message = refused_with(|plan| {
            let again = plan.stages[0].instructions[0];
            plan.stages[0].instructions.push(again);
        });
        assert!(
            message.contains("stage 0, instruction 2: forward of microbatch 0 a second time"),
            "{message}"
        );
        let message = refused_with(|plan| plan.num_microbatches = 2);
        assert!(message.contains("microbatch 1 has 0 forward and 0 backward"), "{message}");
    }

    #[test]
    fn a_power_that_no_waiting_gpu_draws_is_refused_with_its_value_and_place() {
        let message = refused_with(|plan| plan.p2p_blocking_power_w = Some(Watts(1e9).into()));
        assert!(message.contains("p2p_blocking_power_w: 1000000000.0 is not"), "{message}");
        assert!(message.contains("between 0 and 10000 W"), "{message}");
        let by_mhz = PowerByClock::new([(Mhz(210), Watts(48.0)), (Mhz(1410), Watts(1e9))]);
        let by_mhz = Some(by_mhz.unwrap().into());
        let message = refused_with(|plan| plan.p2p_blocking_power_by_mhz = by_mhz);
        assert!(message.contains("p2p_blocking_power_by_mhz: 1000000000.0 is not"), "{message}");
    }

    #[test]
    fn a_clock_that_no_gpu_has_is_refused_with_its_value_and_place() {
        for mhz in [0, 10_001, u32::MAX] {
            let message =
                refused_with(|plan| plan.stages[1].instructions[1].frequency_mhz = Mhz(mhz));
            assert!(message.contains("stage 1, instruction 1"), "{message}");
            assert!(message.contains(&format!("{mhz} MHz")), "{message}");
        }
    }

    #[test]
    fn a_negative_power_or_prediction_is_refused() {
        let message = refused_with(|plan| plan.p2p_blocking_power_w = Some(Watts(-1.0).into()));
        assert!(message.contains("p2p_blocking_power_w: -1"), "{message}");
        let message = refused_with(|plan| {
            plan.predicted =
                Some(Prediction { iteration_time_s: f64::NAN, iteration_energy_j: 1.0 });
        });
        assert!(message.contains("predicted.iteration_time_s: NaN"), "{message}");
    }

    #[test]
    fn a_chunk_without_all_its_microbatches_is_refused_before_memory_is_taken_for_it() {
        let message = refused_with(|plan| plan.stages[1].instructions[0].chunk = Chunk(3));
        assert!(message.contains("stage 1") && message.contains("4 chunks"), "{message}");
        let message = refused_with(|plan| plan.stages[1].instructions[0].chunk = Chunk(64));
        assert!(message.contains("chunk 64"), "{message}");
    }
}

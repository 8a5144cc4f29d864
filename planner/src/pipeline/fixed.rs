//! Instructions whose time does not depend on the clock: loads, transfers, collectives and the
//! optimizer's step.
//!
//! They take time in a plan, but offer no choice: at every clock they count as the mean of their
//! rows. A plan still gives them a clock: that of the next instruction whose clock matters, or at
//! the end of the step that of the one before. So they never cause a change of clock, and where one
//! is due it happens while they run and costs the next instruction nothing. An instruction that
//! depends on the clock but was measured at a single one keeps that clock, because its time and
//! energy at another are unknown.

use pfo_vocabulary::{Chunk, Instruction, Mhz, Stage, Unit};

use crate::error::PlanError;
use crate::plan::PlannedInstruction;
use crate::profile::Profile;
use crate::step::order::{Order, StageOrder};

/// Puts fixed instructions into an order where training frameworks run them, on the stages for which
/// the profile has rows of them: a load before each first forward of a microbatch (of the last stage,
/// once that forward's input has come, as Merak and DeepSpeed do), any other once, for microbatch 0, at
/// the end of the step.
///
/// # Errors
/// If one of them depends on the clock, or is a transfer.
pub(crate) fn add_fixed(
    order: &mut Order,
    profile: &Profile,
    fixed: &[Instruction],
) -> Result<(), PlanError> {
    for &instruction in fixed {
        if !instruction.is_fixed() || instruction == Instruction::P2p {
            return Err(PlanError::BadArgument {
                name: "an instruction of fixed time",
                value: instruction.to_string(),
                expected: "load, collective or optimizer_step (transfers have a time of their own)",
            });
        }
        let runs = |stage: &Stage| !profile.table(*stage, instruction).is_empty();
        for stage in (0..profile.num_stages()).map(Stage).filter(runs) {
            if instruction == Instruction::Load {
                order.stages[stage.index()] = with_loads(order, stage);
            } else {
                order.stages[stage.index()].push(Unit::new(instruction, 0));
            }
        }
    }
    Ok(())
}

/// The instructions of a stage, with a load before each that begins a microbatch on its first chunk.
fn with_loads(order: &Order, stage: Stage) -> StageOrder {
    // Each chunk is the first one of its copy of the model.
    let is_first = |chunk: Chunk| chunk.is_first() || !order.placement.is_one_model();
    let load = |unit: Unit| {
        let forward = match unit.instruction {
            Instruction::Forward => unit,
            _ => order.overlapped(stage, unit)?.unit(),
        };
        is_first(forward.chunk).then_some(Unit { instruction: Instruction::Load, ..forward })
    };
    order.stages[stage.index()]
        .iter()
        .flat_map(|&unit| load(unit).into_iter().chain([unit]))
        .collect()
}

/// Gives fixed instructions the clock of their neighbours.
pub(crate) fn follow_neighbours(instructions: &mut [PlannedInstruction]) {
    let is_free = |planned: &&PlannedInstruction| !planned.instruction.is_fixed();
    let last = instructions.iter().rev().find(is_free).map(|planned| planned.frequency_mhz);
    let mut next: Option<Mhz> = last;
    for planned in instructions.iter_mut().rev() {
        match next {
            Some(clock) if planned.instruction.is_fixed() => planned.frequency_mhz = clock,
            _ => next = Some(planned.frequency_mhz),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontier::Frontier;
    use crate::frontier::optimize::{Options, Spread};
    use crate::pipeline::Pipeline;
    use crate::profile::measurement::Measurement;
    use crate::replay::replay;
    use crate::schedule::name::Schedule;
    use crate::schedule::settings::Settings;
    use crate::test_profiles::unequal;
    use pfo_vocabulary::Watts;

    /// Loads on the first stage, of two clocks, and an optimizer step on both.
    fn with_fixed() -> Profile {
        let row = |stage, instruction, mhz, time_s| {
            let measured = Measurement { frequency: Mhz(mhz), time_s, energy_j: 100.0 * time_s };
            (Stage(stage), instruction, measured)
        };
        let fixed = [
            row(0, Instruction::Load, 1400, 0.004),
            row(0, Instruction::Load, 700, 0.006),
            row(0, Instruction::OptimizerStep, 1400, 0.02),
            row(1, Instruction::OptimizerStep, 1400, 0.03),
        ];
        Profile::from_measurements(unequal().rows().chain(fixed)).unwrap()
    }

    fn frontier(fixed: &[Instruction]) -> Result<Frontier, PlanError> {
        let settings = Settings { fixed: fixed.to_vec(), ..Settings::default() };
        let schedule = Schedule::OneForwardOneBackward;
        let pipeline = Pipeline::with_settings(&with_fixed(), schedule, 3, &settings)?;
        let options = Options { plans: 20, spread: Spread::Useful };
        Frontier::optimize(&pipeline, Watts(80.0), options, &|_| {})
    }

    #[test]
    fn a_load_precedes_each_forward_and_an_optimizer_step_ends_the_step() {
        let frontier = frontier(&[Instruction::Load, Instruction::OptimizerStep]).unwrap();
        let plan = frontier.plan(0).unwrap();
        let names = |stage: usize| -> Vec<String> {
            plan.stages[stage].instructions.iter().map(|p| p.unit().to_string()).collect()
        };
        let first = names(0);
        assert_eq!(first[..2], ["load of microbatch 0", "forward of microbatch 0"]);
        assert_eq!((first.len(), first[9].as_str()), (10, "optimizer_step of microbatch 0"));
        assert_eq!(names(1).len(), 7);
    }

    #[test]
    fn only_the_last_stage_loads_after_the_input_of_its_forward_has_come() {
        let row = |stage, instruction, time_s| {
            let measured = Measurement { frequency: Mhz(1400), time_s, energy_j: 1.0 };
            (Stage(stage), instruction, measured)
        };
        let loads = (0..3).map(|stage| row(stage, Instruction::Load, 0.5));
        let kinds = [Instruction::Forward, Instruction::Backward];
        let rows = (0..3).flat_map(|stage| kinds.map(|kind| row(stage, kind, 1.0)));
        let profile = Profile::from_measurements(rows.chain(loads)).unwrap();
        let settings = Settings { fixed: vec![Instruction::Load], ..Settings::default() };
        let schedule = Schedule::OneForwardOneBackward;
        let pipeline = Pipeline::with_settings(&profile, schedule, 1, &settings).unwrap();
        let plan = pipeline.plan(|_| Mhz(1400));
        // The middle stage loads while it waits.
        let replayed = replay(&profile, &plan, Watts(80.0)).unwrap();
        assert!((replayed.iteration_time_s - (0.5 + 1.0 + 1.0 + 0.5 + 1.0 + 3.0)).abs() < 1e-12);
    }

    #[test]
    fn a_fixed_instruction_never_changes_the_clock_and_costs_its_mean_at_any() {
        let frontier = frontier(&[Instruction::Load, Instruction::OptimizerStep]).unwrap();
        for place in 0..frontier.plans().len() {
            let plan = frontier.plan(place).unwrap();
            for stage in &plan.stages {
                for (planned, next) in stage.instructions.iter().zip(&stage.instructions[1..]) {
                    let next_is_last = next.instruction == Instruction::OptimizerStep;
                    if planned.instruction == Instruction::Load || next_is_last {
                        assert_eq!(planned.frequency_mhz, next.frequency_mhz);
                    }
                }
            }
            let replayed = replay(&with_fixed(), &plan, Watts(80.0)).unwrap();
            let predicted = plan.predicted.unwrap();
            assert!((replayed.iteration_time_s - predicted.iteration_time_s).abs() < 1e-9);
            assert!((replayed.iteration_energy_j - predicted.iteration_energy_j).abs() < 1e-9);
        }
        let at = with_fixed().at(Stage(0), Instruction::Load, Mhz(1234)).unwrap();
        assert!((at.time_s - 0.005).abs() < 1e-12);
    }

    #[test]
    fn fixed_instructions_take_part_only_if_they_are_asked_for() {
        let without = frontier(&[]).unwrap();
        let with = frontier(&[Instruction::OptimizerStep]).unwrap();
        assert_eq!(without.plan(0).unwrap().num_instructions(), 12);
        let fastest = |f: &Frontier| f.points().next().unwrap().iteration_time_s;
        assert!((fastest(&with) - fastest(&without) - 0.02).abs() < 1e-9);
    }

    #[test]
    fn an_instruction_that_depends_on_the_clock_is_no_fixed_one() {
        let message = frontier(&[Instruction::Forward]).unwrap_err().to_string();
        assert!(message.contains("is forward") && message.contains("optimizer_step"), "{message}");
    }
}

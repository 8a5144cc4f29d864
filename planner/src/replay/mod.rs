//! What a plan costs on a measured profile.
//!
//! The yardstick of every plan, ours or a peer's. Each instruction takes the time and energy that
//! were measured at its clock and starts as soon as its stage and its input are ready; a waiting
//! GPU draws the P2P-blocking power. A replay does not depend on how the plan was made.

mod envpipe_table;
pub(crate) mod interval;
pub(crate) mod rest;
pub(crate) mod timeline;

use std::collections::HashMap;

use pfo_vocabulary::{Chunk, Mhz, Watts};

use crate::error::PlanError;
use crate::late::clocks::{LateRun, with_late_clocks};
use crate::plan::{Plan, Prediction};
use crate::profile::Profile;
use crate::profile::measurement::Measurement;
use crate::step::dependencies::StageUnit;
use crate::step::network::Network;
use crate::waits::per_stage::PerStage;
use crate::waits::power::PowerByClock;

/// The outcome of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replay {
    /// Seconds from the first instruction's start to the last one's end.
    pub iteration_time_s: f64,
    /// Joules of all stages over that time, including those drawn while waiting.
    pub iteration_energy_j: f64,
    /// The number of instructions, over all stages.
    pub instructions: usize,
    /// Calls that set another clock, over all stages.
    pub clock_changes: usize,
    /// The share of the instructions' time in which they run at another clock than their own,
    /// because the call that sets it has no effect yet or was not made (0 to 1).
    pub off_plan_share: f64,
}

impl From<Replay> for Prediction {
    fn from(replay: Replay) -> Self {
        Self {
            iteration_time_s: replay.iteration_time_s,
            iteration_energy_j: replay.iteration_energy_j,
        }
    }
}

/// Replays a plan over a profile, for one P2P-blocking power or one by clock, of all stages or of each.
///
/// # Errors
/// If the plan or the powers are for another number of stages than the profile's, it sets a clock
/// that was not measured, or its order deadlocks.
pub fn replay(
    profile: &Profile,
    plan: &Plan,
    p2p_power: impl Into<PerStage<PowerByClock>>,
) -> Result<Replay, PlanError> {
    let p2p_power = p2p_power.into();
    p2p_power.check(profile.num_stages())?;
    if let Some(power) = p2p_power.each(profile.num_stages()).find_map(PowerByClock::impossible) {
        return Err(PlanError::BadArgument {
            name: "the P2P-blocking power",
            value: power.to_string(),
            expected: "watts of at least 0",
        });
    }
    let (network, run) = measure(profile, plan)?;
    Ok(account(&network, &run, &p2p_power))
}

/// The operations of a plan, and their step.
pub(crate) fn measure(profile: &Profile, plan: &Plan) -> Result<(Network, LateRun), PlanError> {
    if plan.num_stages != profile.num_stages() {
        let (plan, profile) = (plan.num_stages, profile.num_stages());
        return Err(PlanError::StagesDiffer { plan, profile });
    }
    plan.delays.check()?;
    let network = Network::of(&plan.order(), plan.delays)?;

    let profile = &profile.run_as(chunks(plan));
    let measured = rows(profile, plan, &network)?;
    let run = with_late_clocks(&network, profile, measured, &waits(plan, &network));
    Ok((network, run))
}

/// What each operation of a plan takes at its own clock.
pub(crate) fn rows(
    profile: &Profile,
    plan: &Plan,
    network: &Network,
) -> Result<Vec<Measurement>, PlanError> {
    let mut measured = network.all_unplanned();
    for (stage, operations) in plan.stages.iter().zip(&network.stages) {
        for (planned, &operation) in stage.instructions.iter().zip(operations) {
            let (instruction, frequency) = (planned.instruction, planned.frequency_mhz);
            let stage = stage.stage;
            let row = profile.part_at(stage, instruction, planned.part(), frequency);
            measured[operation as usize] = Some(row.ok_or(PlanError::UnmeasuredFrequency {
                stage,
                instruction,
                frequency,
            })?);
        }
    }
    Ok(measured.into_iter().flatten().collect())
}

fn chunks(plan: &Plan) -> impl Iterator<Item = Chunk> {
    plan.stages.iter().flat_map(|stage| &stage.instructions).map(|planned| planned.chunk)
}

/// The clock of the wait before each operation that has one.
pub(crate) fn waits(plan: &Plan, network: &Network) -> HashMap<usize, Mhz> {
    if plan.waits.is_empty() {
        return HashMap::new();
    }
    let clock_before: HashMap<StageUnit, Mhz> =
        plan.waits.iter().map(|wait| (wait.before, wait.frequency_mhz)).collect();
    let runs = network.stages.iter().flatten().map(|&operation| operation as usize);
    let wait = |operation: usize| {
        let clock = clock_before.get(&network.operations[operation].stage_unit())?;
        Some((operation, *clock))
    };
    runs.filter_map(wait).collect()
}

/// The same plan with every instruction at its highest measured clock, which is what a GPU does
/// without a plan.
///
/// # Errors
/// If the profile has no row for one of the instructions.
pub fn at_highest_clocks(profile: &Profile, plan: &Plan) -> Result<Plan, PlanError> {
    let mut fastest = plan.clone();
    fastest.predicted = None;
    let profile = profile.run_as(chunks(plan));
    fastest.waits.clear();
    for stage in &mut fastest.stages {
        for planned in &mut stage.instructions {
            let highest =
                profile.part_table(stage.stage, planned.instruction, planned.part()).last();
            planned.frequency_mhz = highest
                .ok_or(PlanError::UnmeasuredFrequency {
                    stage: stage.stage,
                    instruction: planned.instruction,
                    frequency: planned.frequency_mhz,
                })?
                .frequency;
        }
    }
    Ok(fastest)
}

/// Time and energy of a step.
pub(crate) fn account(
    network: &Network,
    run: &LateRun,
    p2p_power: &PerStage<PowerByClock>,
) -> Replay {
    let measured = &run.measured;
    let makespan = network.makespan(|operation| measured[operation].time_s);
    let instructions = network.operations.iter().zip(measured).filter(|(op, _)| op.is_run());
    let busy = instructions.map(|(_, m)| m.time_s).sum::<f64>() - run.held_up_s();
    let energy: f64 = measured.iter().map(|m| m.energy_j).sum();
    let waiting_j = match p2p_power.common().and_then(PowerByClock::flat) {
        Some(Watts(power_w)) => power_w * (network.stages.len() as f64 * makespan - busy),
        None => run.waiting_j(network, p2p_power),
    };
    Replay {
        iteration_time_s: makespan,
        iteration_energy_j: energy + waiting_j,
        instructions: network.num_instructions(),
        clock_changes: run.changes(),
        off_plan_share: run.off_plan_s / busy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Pipeline;
    use crate::schedule::name::Schedule;
    use crate::test_profiles::unequal;
    use pfo_vocabulary::Instruction;

    fn fastest_plan() -> Plan {
        let schedule = Schedule::OneForwardOneBackward;
        Pipeline::new(&unequal(), schedule, 2).unwrap().plan(|_| Mhz(1400))
    }

    fn refused(change: impl FnOnce(&mut Plan)) -> String {
        let mut plan = fastest_plan();
        change(&mut plan);
        replay(&unequal(), &plan, Watts(80.0)).unwrap_err().to_string()
    }

    #[test]
    fn waiting_costs_the_p2p_blocking_power() {
        let idle_free = replay(&unequal(), &fastest_plan(), Watts(0.0)).unwrap();
        let replayed = replay(&unequal(), &fastest_plan(), Watts(80.0)).unwrap();
        // First forward of stage 0, both microbatches of stage 1, last backward of stage 0.
        assert!((replayed.iteration_time_s - (0.05 + 0.36 + 0.1)).abs() < 1e-12);
        assert!((idle_free.iteration_energy_j - 2.0 * (20.0 + 41.0 + 25.0 + 50.0)).abs() < 1e-9);
        let waiting_s = 2.0 * 0.51 - 2.0 * (0.05 + 0.1 + 0.06 + 0.12);
        let waiting_j = replayed.iteration_energy_j - idle_free.iteration_energy_j;
        assert!((waiting_j - 80.0 * waiting_s).abs() < 1e-9);
        assert_eq!(replayed.instructions, 8);
    }

    #[test]
    fn a_plan_of_another_number_of_stages_is_refused_with_both() {
        let message = refused(|plan| plan.num_stages = 3);
        assert!(message.contains("3 stages") && message.contains('2'), "{message}");
    }

    #[test]
    fn a_clock_that_was_not_measured_is_refused_with_its_place() {
        let message = refused(|plan| plan.stages[1].instructions[0].frequency_mhz = Mhz(1234));
        assert!(message.contains("stage 1, forward at 1234 MHz"), "{message}");
    }

    #[test]
    fn an_order_that_deadlocks_is_refused() {
        let message = refused(|plan| plan.stages[1].instructions.reverse());
        assert!(message.contains("deadlock"), "{message}");
    }

    #[test]
    fn the_highest_clocks_take_the_place_of_any_others() {
        let mut plan = fastest_plan();
        plan.stages[0].instructions[0].frequency_mhz = Mhz(1380);
        let highest = at_highest_clocks(&unequal(), &plan).unwrap();
        assert_eq!(highest, fastest_plan());
        assert_eq!(highest.stages[0].instructions[0].instruction, Instruction::Forward);
    }
}

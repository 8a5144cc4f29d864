//! A frontier of plans that other planners made, so that it can be shown, picked from, drawn and
//! swapped like ours. Every plan is replayed; its own claims are ignored.

use std::collections::HashMap;

use pfo_vocabulary::{Stage, Watts};

use crate::error::PlanError;
use crate::frontier::{Frontier, Kept, Point};
use crate::late::clocks::with_late_clocks;
use crate::pipeline::Pipeline;
use crate::plan::Plan;
use crate::profile::measurement::Measurement;
use crate::replay::account;
use crate::waits::per_stage::PerStage;

impl Frontier {
    /// The frontier of the given plans for one pipeline: those that take less effective energy
    /// (energy beyond that of waiting) than every faster one.
    ///
    /// # Errors
    /// If there is no plan, or the instructions of one differ from the pipeline's, or it sets a
    /// clock that was not measured.
    pub fn of_plans(
        pipeline: &Pipeline,
        p2p_power: impl Into<PerStage<Watts>>,
        gpu: Option<String>,
        plans: impl IntoIterator<Item = Plan>,
    ) -> Result<Self, PlanError> {
        let p2p_power = p2p_power.into();
        p2p_power.check(pipeline.profile().num_stages())?;
        let mut kept = Vec::new();
        for plan in plans {
            kept.push(replayed_plan(pipeline, &p2p_power, &plan)?);
        }
        // A GPU that is done early draws the P2P-blocking power until the others are.
        let waiting_w = p2p_power.total_w(pipeline.profile().num_stages());
        let kept = of_falling_energy(kept, waiting_w);
        Self::new(pipeline.clone(), p2p_power, gpu, kept)
    }
}

/// Plans by rising time, without those that take no less effective energy than a faster one.
pub(super) fn of_falling_energy(mut plans: Vec<Kept>, waiting_w: f64) -> Vec<Kept> {
    let effective_j =
        |kept: &Kept| kept.point.iteration_energy_j - waiting_w * kept.point.iteration_time_s;
    plans.sort_by(|a, b| {
        let by_time = a.point.iteration_time_s.total_cmp(&b.point.iteration_time_s);
        by_time.then(effective_j(a).total_cmp(&effective_j(b)))
    });
    let mut least_j = f64::INFINITY;
    plans.retain(|plan| {
        let is_cheaper = effective_j(plan) < least_j;
        least_j = least_j.min(effective_j(plan));
        is_cheaper
    });
    plans
}

/// Finds the rows for the clocks of a plan and replays it.
fn replayed_plan(
    pipeline: &Pipeline,
    p2p_power: &PerStage<Watts>,
    plan: &Plan,
) -> Result<Kept, PlanError> {
    let network = pipeline.network();
    let mut rows = Vec::with_capacity(network.num_instructions());
    let mut measured = network.all_unplanned();
    let stages = (0..).map(Stage).zip(&network.stages);
    for (planned, (stage, operations)) in plan.stages.iter().zip(stages) {
        let differs = |place: usize| PlanError::PlanContent {
            place: format!("stage {stage}, instruction {place}"),
            problem: format!("schedule {} runs another instruction there", pipeline.schedule()),
        };
        if planned.instructions.len() != operations.len() {
            return Err(differs(planned.instructions.len().min(operations.len())));
        }
        for (place, (planned, &index)) in planned.instructions.iter().zip(operations).enumerate() {
            let operation = &network.operations[index as usize];
            let (instruction, frequency) = (planned.instruction, planned.frequency_mhz);
            if planned.unit() != operation.unit() {
                return Err(differs(place));
            }
            let table = pipeline.profile().part_table(stage, instruction, planned.part());
            let found = pipeline.profile().part_at(stage, instruction, planned.part(), frequency);
            measured[index as usize] = Some(found.ok_or(PlanError::UnmeasuredFrequency {
                stage,
                instruction,
                frequency,
            })?);
            // An instruction whose time does not depend on the clock has no row of its own.
            let row = table.binary_search_by_key(&frequency, |row| row.frequency).unwrap_or(0);
            let too_long = |_| PlanError::TableTooLong { stage, instruction, rows: table.len() };
            rows.push(u8::try_from(row).map_err(too_long)?);
        }
    }
    let (plan_stages, profile_stages) = (plan.stages.len() as u16, network.stages.len() as u16);
    if plan_stages != profile_stages {
        return Err(PlanError::StagesDiffer { plan: plan_stages, profile: profile_stages });
    }
    let measured: Vec<Measurement> = measured.into_iter().flatten().collect();
    let run = with_late_clocks(network, pipeline.profile(), measured, &HashMap::new());
    let replayed = account(network, &run, &p2p_power.into());
    let point = Point {
        iteration_time_s: replayed.iteration_time_s,
        iteration_energy_j: replayed.iteration_energy_j,
    };
    Ok(Kept { point, rows: rows.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontier::deadline::Deadline;
    use crate::frontier::optimize::{Options, Spread};
    use crate::schedule::name::Schedule;
    use crate::test_profiles::unequal;
    use pfo_vocabulary::Mhz;

    const POWER: Watts = Watts(80.0);

    fn pipeline(microbatches: u32) -> Pipeline {
        Pipeline::new(&unequal(), Schedule::OneForwardOneBackward, microbatches).unwrap()
    }

    #[test]
    fn the_plans_of_a_frontier_make_up_the_same_frontier_again() {
        let options = Options { plans: 20, spread: Spread::Useful };
        let made = Frontier::optimize(&pipeline(4), POWER, options, &|_| {}).unwrap();
        let mut plans: Vec<Plan> = (0..made.plans().len()).map(|i| made.plan(i).unwrap()).collect();
        plans.reverse();
        let assembled = Frontier::of_plans(&pipeline(4), POWER, None, plans).unwrap();
        assert!(assembled.plans().eq(made.plans()));
        assert_eq!(assembled.plan(3).unwrap(), made.plan(3).unwrap());
    }

    #[test]
    fn a_plan_that_is_slower_and_dearer_is_not_kept() {
        let slow_and_fast = [1380, 1400].map(|mhz| pipeline(4).plan(|_| Mhz(mhz)));
        let mut wasteful = slow_and_fast[0].clone();
        wasteful.stages[0].instructions[0].frequency_mhz = Mhz(1400);
        let plans = slow_and_fast.into_iter().chain([wasteful]);
        let frontier = Frontier::of_plans(&pipeline(4), POWER, None, plans).unwrap();
        assert_eq!(frontier.pick(Deadline::Fastest).unwrap(), 0);
        assert!(frontier.plans().len() <= 3);
        let energies: Vec<f64> = frontier
            .plans()
            .map(|p| p.iteration_energy_j - 2.0 * POWER.0 * p.iteration_time_s)
            .collect();
        assert!(energies.is_sorted_by(|a, b| a > b), "{energies:?}");
    }

    #[test]
    fn a_plan_for_another_pipeline_is_refused_by_its_first_difference() {
        let message =
            Frontier::of_plans(&pipeline(4), POWER, None, [pipeline(3).plan(|_| Mhz(1400))])
                .unwrap_err()
                .to_string();
        assert!(message.contains("stage 0, instruction 6"), "{message}");
    }

    #[test]
    fn no_plans_make_no_frontier() {
        let message = Frontier::of_plans(&pipeline(4), POWER, None, []).unwrap_err().to_string();
        assert!(message.contains("no plans"), "{message}");
    }
}

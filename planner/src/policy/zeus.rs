//! Zeus (You et al., NSDI 2023) for pipelines, as Perseus' artifact has it: one clock for all
//! stages, or one for each, found by trying and chosen by a cost that weighs power against time.
//!
//! The replay takes the place of its measured windows.

use super::grid::Grid;
use super::rehearsal::Rehearsal;
use super::{End, Outcome};
use crate::error::PlanError;
use crate::instruction::Instruction;
use crate::network::Network;
use crate::pipeline::Pipeline;
use crate::plan::Plan;
use crate::units::{Mhz, Watts};

/// Its parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Zeus {
    /// What counts: from 0, only time, to 1, only energy.
    pub eta: f64,
}

impl Default for Zeus {
    fn default() -> Self {
        Self { eta: 0.5 }
    }
}

impl Zeus {
    /// Tries each clock for all stages at once.
    pub(super) fn global(
        &self,
        pipeline: &Pipeline,
        p2p_power: Watts,
    ) -> Result<Outcome, PlanError> {
        let grid = Grid::new(pipeline)?;
        let plans: Vec<Plan> = grid
            .falling()
            .map(|clock| Rehearsal::new(pipeline, |_| clock).plan(p2p_power))
            .collect();
        let rounds = plans.len() as u32;
        Ok(self.outcome(plans, &grid, rounds))
    }

    /// For each clock of the heaviest stage, lowers the others' until their forwards take as long.
    pub(super) fn per_stage(
        &self,
        pipeline: &Pipeline,
        p2p_power: Watts,
    ) -> Result<Outcome, PlanError> {
        let grid = Grid::new(pipeline)?;
        let clocks: Vec<Mhz> = grid.falling().collect();
        let network = pipeline.network();
        let num_stages = network.stages.len();
        // For each stage, the place of its clock.
        let mut places = vec![0; num_stages];
        let forward_s = |places: &[usize]| -> Vec<f64> {
            let step = Rehearsal::new(pipeline, |index| {
                clocks[places[network.operations[index].stage.index()]]
            });
            (0..num_stages).map(|stage| mean_forward_s(network, &step, stage)).collect()
        };
        let mut times_s = forward_s(&places);
        let heaviest =
            (0..num_stages).max_by(|&a, &b| times_s[a].total_cmp(&times_s[b])).unwrap_or(0);

        let mut plans = Vec::new();
        let mut rounds = 0;
        for lowest in 0..clocks.len() {
            for place in &mut places {
                *place = lowest.max(*place);
            }
            times_s = forward_s(&places);
            rounds += 1;
            let target_s = times_s[heaviest];
            let mut is_found = vec![false; num_stages];
            is_found[heaviest] = true;
            let mut last_distance_s = vec![f64::INFINITY; num_stages];
            let mut last_times_s = vec![0.0; num_stages];
            while is_found.contains(&false) {
                for stage in (0..num_stages).filter(|&stage| !is_found[stage]).collect::<Vec<_>>() {
                    let distance_s = (times_s[stage] - target_s).abs();
                    let is_closing = distance_s <= last_distance_s[stage]
                        // A lower clock that is faster is noise: look further.
                        || times_s[stage] < last_times_s[stage];
                    if !is_closing {
                        places[stage] -= 1;
                        is_found[stage] = true;
                    } else if places[stage] + 1 < clocks.len() {
                        places[stage] += 1;
                    } else {
                        is_found[stage] = true;
                    }
                    last_distance_s[stage] = distance_s;
                    last_times_s[stage] = times_s[stage];
                }
                times_s = forward_s(&places);
                rounds += 1;
            }
            let stage_of = |index: usize| network.operations[index].stage.index();
            plans.push(
                Rehearsal::new(pipeline, |index| clocks[places[stage_of(index)]]).plan(p2p_power),
            );
            if places.iter().any(|&place| place + 1 == clocks.len()) {
                break;
            }
        }
        Ok(self.outcome(plans, &grid, rounds))
    }

    fn outcome(&self, plans: Vec<Plan>, grid: &Grid, rounds: u32) -> Outcome {
        let cost = |place: &usize| self.cost(&plans[*place], grid.highest());
        let chosen = (0..plans.len()).min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or(0);
        Outcome::found(plans, chosen, rounds, End::Settled)
    }

    /// Zeus' cost of a step. In its form for clocks, as here, the highest MHz take the place of the
    /// highest watts.
    fn cost(&self, plan: &Plan, highest: Mhz) -> f64 {
        let Some(step) = plan.predicted else { return f64::INFINITY };
        let power_w = step.iteration_energy_j / step.iteration_time_s;
        let highest = f64::from(highest.0) * f64::from(plan.num_stages);
        (self.eta * power_w + (1.0 - self.eta) * highest) * step.iteration_time_s
    }
}

fn mean_forward_s(network: &Network, step: &Rehearsal, stage: usize) -> f64 {
    let is_forward = |index: &usize| network.operations[*index].instruction == Instruction::Forward;
    let forwards = network.stages[stage].iter().map(|&index| index as usize).filter(is_forward);
    let (sum_s, count) = forwards
        .fold((0.0, 0_u32), |(sum_s, count), i| (sum_s + step.measured(i).time_s, count + 1));
    sum_s / f64::from(count.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Schedule;
    use crate::test_profiles::{profile, unequal};

    fn clocks(plan: &Plan) -> Vec<u32> {
        plan.stages.iter().map(|stage| stage.instructions[0].frequency_mhz.0).collect()
    }

    fn pipeline(profile: &crate::profile::Profile) -> Pipeline {
        Pipeline::new(profile, Schedule::OneForwardOneBackward, 4).unwrap()
    }

    #[test]
    fn global_tries_every_clock_from_the_highest_on() {
        let outcome = Zeus::default().global(&pipeline(&unequal()), Watts(80.0)).unwrap();
        let tried: Vec<_> = outcome.plans.iter().map(clocks).collect();
        assert_eq!(tried, [[1400, 1400], [1390, 1390], [1380, 1380]]);
    }

    #[test]
    fn per_stage_lowers_the_lighter_stage_until_its_forward_is_as_long() {
        let outcome = Zeus::default().per_stage(&pipeline(&unequal()), Watts(80.0)).unwrap();
        // 60 ms of the second stage lie nearest to 56 of the first; at 66 ms to its 68, the lowest.
        assert_eq!(clocks(&outcome.plans[0]), [1390, 1400]);
        assert_eq!(clocks(&outcome.plans[1]), [1380, 1390]);
        assert_eq!(outcome.plans.len(), 2);
    }

    #[test]
    fn eta_moves_the_choice_from_the_fastest_to_the_most_frugal() {
        let table: &[(f64, f64)] = &[(0.1, 60.0), (0.12, 40.0), (0.15, 30.0)];
        let pipeline = pipeline(&profile(&[[table, table], [table, table]]));
        let chosen = |eta| Zeus { eta }.global(&pipeline, Watts(80.0)).unwrap().chosen;
        assert_eq!(chosen(0.0), 0);
        assert_eq!(chosen(1.0), 2);
    }
}

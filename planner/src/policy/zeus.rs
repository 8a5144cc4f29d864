//! Zeus (You et al., NSDI 2023) for pipelines, as Perseus' artifact has it: one clock for all
//! stages, or one for each, found by trying and chosen by a cost that weighs power against time.
//!
//! Whoever searches runs what is to be tried and says what it took: a replay, or a running job.

use super::grid::Grid;
use super::rehearsal::Rehearsal;
use super::{End, Outcome};
use crate::error::PlanError;
use crate::instruction::Instruction;
use crate::pipeline::Pipeline;
use crate::plan::{Plan, Prediction};
use crate::profile::Profile;
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

/// What it looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeusSearch {
    /// One clock for all stages.
    Global,
    /// One clock for each stage.
    PerStage,
}

/// What some steps at one clock for each stage took.
#[derive(Clone, Debug, PartialEq)]
pub struct ZeusWindow {
    /// Seconds of a step.
    pub iteration_time_s: f64,
    /// Joules of a step.
    pub iteration_energy_j: f64,
    /// Mean seconds of a forward, stage by stage.
    pub forward_s: Vec<f64>,
}

/// What a search came to.
#[derive(Clone, Debug, PartialEq)]
pub struct ZeusFound {
    /// What can be chosen from.
    pub plans: Vec<Plan>,
    /// The one of least cost, by its place among them.
    pub chosen: usize,
    /// How many windows it took.
    pub rounds: u32,
}

impl Zeus {
    pub(super) fn outcome(
        &self,
        search: ZeusSearch,
        pipeline: &Pipeline,
        p2p_power: Watts,
    ) -> Result<Outcome, PlanError> {
        let profile = pipeline.profile();
        let ZeusFound { plans, chosen, rounds } =
            self.search(search, pipeline, p2p_power, &mut |plan| {
                Ok::<_, PlanError>(ZeusWindow::predicted(profile, plan))
            })?;
        Ok(Outcome::found(plans, chosen, rounds, End::Settled))
    }

    /// Looks for the plan of least cost; `run` says what steps on a plan took.
    ///
    /// # Errors
    /// If no clock was measured of every instruction, or `run` fails.
    pub fn search<E: From<PlanError>>(
        &self,
        search: ZeusSearch,
        pipeline: &Pipeline,
        p2p_power: Watts,
        run: &mut dyn FnMut(&Plan) -> Result<ZeusWindow, E>,
    ) -> Result<ZeusFound, E> {
        let grid = Grid::new(pipeline)?;
        let mut rounds = 0;
        let mut try_out = |clocks: &[Mhz]| {
            rounds += 1;
            let plan = at_stage_clocks(pipeline, clocks).plan(p2p_power);
            run(&plan).map(|window| (plan, window))
        };
        let tried = match search {
            ZeusSearch::Global => {
                let stages = pipeline.network().stages.len();
                grid.falling().map(|clock| try_out(&vec![clock; stages])).collect::<Result<_, _>>()
            }
            ZeusSearch::PerStage => per_stage(pipeline, &grid, &mut try_out),
        }?;
        let (plans, costs): (Vec<Plan>, Vec<f64>) = tried
            .into_iter()
            .map(|(plan, window)| {
                let cost = self.cost(&window, grid.highest());
                (plan, cost)
            })
            .unzip();
        let chosen = (0..plans.len()).min_by(|&a, &b| costs[a].total_cmp(&costs[b])).unwrap_or(0);
        Ok(ZeusFound { plans, chosen, rounds })
    }

    /// Zeus' cost of a step. In its form for clocks, as here, the highest MHz take the place of the
    /// highest watts.
    fn cost(&self, step: &ZeusWindow, highest: Mhz) -> f64 {
        let power_w = step.iteration_energy_j / step.iteration_time_s;
        let highest = f64::from(highest.0) * step.forward_s.len() as f64;
        (self.eta * power_w + (1.0 - self.eta) * highest) * step.iteration_time_s
    }
}

impl ZeusWindow {
    /// What a plan's replay says.
    fn predicted(profile: &Profile, plan: &Plan) -> Self {
        let nothing = Prediction { iteration_time_s: f64::NAN, iteration_energy_j: f64::NAN };
        let Prediction { iteration_time_s, iteration_energy_j } = plan.predicted.unwrap_or(nothing);
        let forward_s = plan.stages.iter().map(|stage| {
            let forwards =
                stage.instructions.iter().filter(|run| run.instruction == Instruction::Forward);
            let (sum_s, count) = forwards
                .filter_map(|run| profile.at(stage.stage, Instruction::Forward, run.frequency_mhz))
                .fold((0.0, 0_u32), |(sum_s, count), row| (sum_s + row.time_s, count + 1));
            sum_s / f64::from(count.max(1))
        });
        Self { iteration_time_s, iteration_energy_j, forward_s: forward_s.collect() }
    }
}

fn at_stage_clocks<'a>(pipeline: &'a Pipeline, clocks: &[Mhz]) -> Rehearsal<'a> {
    let operations = &pipeline.network().operations;
    Rehearsal::new(pipeline, |index| clocks[operations[index].stage.index()])
}

/// A plan, and what it was seen to take.
type Tried = (Plan, ZeusWindow);

/// For each clock of the heaviest stage, lowers the others' until their forwards take as long.
fn per_stage<E>(
    pipeline: &Pipeline,
    grid: &Grid,
    try_out: &mut dyn FnMut(&[Mhz]) -> Result<Tried, E>,
) -> Result<Vec<Tried>, E> {
    let clocks: Vec<Mhz> = grid.falling().collect();
    let num_stages = pipeline.network().stages.len();
    let mut try_places = |places: &[usize]| {
        let clocks: Vec<Mhz> = places.iter().map(|&place| clocks[place]).collect();
        try_out(&clocks)
    };
    // For each stage, the place of its clock.
    let mut places = vec![0; num_stages];
    let mut heaviest = None;
    let mut balanced = Vec::new();
    for lowest in 0..clocks.len() {
        for place in &mut places {
            *place = lowest.max(*place);
        }
        let mut tried = try_places(&places)?;
        let times_s = &tried.1.forward_s;
        let heaviest = *heaviest.get_or_insert_with(|| {
            (0..num_stages).max_by(|&a, &b| times_s[a].total_cmp(&times_s[b])).unwrap_or(0)
        });
        let target_s = times_s[heaviest];
        let mut is_found = vec![false; num_stages];
        is_found[heaviest] = true;
        let mut last_distance_s = vec![f64::INFINITY; num_stages];
        let mut last_times_s = vec![0.0; num_stages];
        while is_found.contains(&false) {
            let times_s = &tried.1.forward_s;
            for stage in 0..num_stages {
                if is_found[stage] {
                    continue;
                }
                let distance_s = (times_s[stage] - target_s).abs();
                let is_closing = distance_s <= last_distance_s[stage]
                    // A lower clock that is faster is noise: look further.
                    || times_s[stage] < last_times_s[stage];
                if !is_closing {
                    places[stage] = places[stage].saturating_sub(1);
                    is_found[stage] = true;
                } else if places[stage] + 1 < clocks.len() {
                    places[stage] += 1;
                } else {
                    is_found[stage] = true;
                }
                last_distance_s[stage] = distance_s;
                last_times_s[stage] = times_s[stage];
            }
            tried = try_places(&places)?;
        }
        balanced.push(tried);
        if places.iter().any(|&place| place + 1 == clocks.len()) {
            break;
        }
    }
    Ok(balanced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Schedule;
    use crate::test_profiles::{profile, unequal};

    fn clocks(plan: &Plan) -> Vec<u32> {
        plan.stages.iter().map(|stage| stage.instructions[0].frequency_mhz.0).collect()
    }

    fn pipeline(profile: &Profile) -> Pipeline {
        Pipeline::new(profile, Schedule::OneForwardOneBackward, 4).unwrap()
    }

    #[test]
    fn global_tries_every_clock_from_the_highest_on() {
        let outcome = Zeus::default()
            .outcome(ZeusSearch::Global, &pipeline(&unequal()), Watts(80.0))
            .unwrap();
        let tried: Vec<_> = outcome.plans.iter().map(clocks).collect();
        assert_eq!(tried, [[1400, 1400], [1390, 1390], [1380, 1380]]);
    }

    #[test]
    fn per_stage_lowers_the_lighter_stage_until_its_forward_is_as_long() {
        let outcome = Zeus::default()
            .outcome(ZeusSearch::PerStage, &pipeline(&unequal()), Watts(80.0))
            .unwrap();
        // 60 ms of the second stage lie nearest to 56 of the first; at 66 ms to its 68, the lowest.
        assert_eq!(clocks(&outcome.plans[0]), [1390, 1400]);
        assert_eq!(clocks(&outcome.plans[1]), [1380, 1390]);
        assert_eq!(outcome.plans.len(), 2);
    }

    #[test]
    fn eta_moves_the_choice_from_the_fastest_to_the_most_frugal() {
        let table: &[(f64, f64)] = &[(0.1, 60.0), (0.12, 40.0), (0.15, 30.0)];
        let pipeline = pipeline(&profile(&[[table, table], [table, table]]));
        let chosen =
            |eta| Zeus { eta }.outcome(ZeusSearch::Global, &pipeline, Watts(80.0)).unwrap().chosen;
        assert_eq!(chosen(0.0), 0);
        assert_eq!(chosen(1.0), 2);
    }
}

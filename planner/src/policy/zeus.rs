//! Zeus (You et al., NSDI 2023) for pipelines, as in Perseus' artifact: one clock or power limit
//! for all stages, or one for each, found by trial and chosen by a cost that weighs power against
//! time.
//!
//! The caller runs each setting, by a replay or in a running job, and reports what it took.

use pfo_vocabulary::{Instruction, Mhz, Watts};

use super::grid::Grid;
use super::outcome::{End, Outcome};
use super::rehearsal::Rehearsal;
use crate::error::PlanError;
use crate::pipeline::Pipeline;
use crate::plan::{Plan, Prediction};
use crate::profile::Profile;
use crate::waits::per_stage::PerStage;

/// The parameters of Zeus.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Zeus {
    /// The weight of energy against time: 0 for only time, 1 for only energy.
    pub eta: f64,
    /// The longest allowed step in seconds: Zeus' constraint on the slowdown. `None` for no
    /// constraint.
    pub slowest_s: Option<f64>,
}

impl Default for Zeus {
    fn default() -> Self {
        Self { eta: 0.5, slowest_s: None }
    }
}

/// The goal of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeusSearch {
    /// One clock or power limit for all stages.
    Global,
    /// One for each stage.
    PerStage,
}

/// The settings, clocks or power limits, that a search chooses from.
#[derive(Clone, Copy, Debug)]
pub struct ZeusSettings<'a, S> {
    /// The settings of a stage, highest first.
    pub falling: &'a [S],
    /// The number of stages.
    pub stages: usize,
    /// The sum over all GPUs of the highest setting, by which the cost weighs time.
    pub highest: f64,
}

/// Measurements of some steps with one setting for each stage.
#[derive(Clone, Debug, PartialEq)]
pub struct ZeusWindow {
    /// Mean seconds of a step.
    pub iteration_time_s: f64,
    /// Mean joules of a step.
    pub iteration_energy_j: f64,
    /// Mean seconds of a forward, by stage.
    pub forward_s: Vec<f64>,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct ZeusFound<T> {
    /// The candidates.
    pub found: Vec<T>,
    /// The index of the one of least cost that is fast enough, or of the fastest if none is.
    pub chosen: usize,
    /// The number of windows that were measured.
    pub rounds: u32,
}

impl Zeus {
    pub(super) fn outcome(
        &self,
        search: ZeusSearch,
        pipeline: &Pipeline,
        p2p_power: &PerStage<Watts>,
    ) -> Result<Outcome, PlanError> {
        let profile = pipeline.profile();
        let ZeusFound { found, chosen, rounds } =
            self.search(search, pipeline, p2p_power, &mut |plan| {
                Ok::<_, PlanError>(ZeusWindow::predicted(profile, plan))
            })?;
        Ok(Outcome::found(found, chosen, rounds, End::Settled))
    }

    /// Searches the plan of least cost; `run` measures steps on a plan. Settings are clocks here,
    /// so the highest MHz take the place of the highest watts in Zeus' cost.
    ///
    /// # Errors
    /// If no clock was measured for every instruction, or `run` fails.
    pub fn search<E: From<PlanError>>(
        &self,
        search: ZeusSearch,
        pipeline: &Pipeline,
        p2p_power: impl Into<PerStage<Watts>>,
        run: &mut dyn FnMut(&Plan) -> Result<ZeusWindow, E>,
    ) -> Result<ZeusFound<Plan>, E> {
        let p2p_power = &p2p_power.into();
        let grid = Grid::new(pipeline)?;
        let falling: Vec<Mhz> = grid.falling().collect();
        let stages = pipeline.network().stages.len();
        let highest = f64::from(grid.highest().0) * stages as f64;
        let settings = ZeusSettings { falling: &falling, stages, highest };
        let plan = |clocks: &[Mhz]| at_stage_clocks(pipeline, clocks).plan(p2p_power);
        let ZeusFound { found, chosen, rounds } =
            self.search_settings(search, settings, &mut |clocks| run(&plan(clocks)))?;
        let found = found.iter().map(|clocks| plan(clocks)).collect();
        Ok(ZeusFound { found, chosen, rounds })
    }

    /// Searches the setting of each stage for the least cost; `run` measures steps with settings.
    ///
    /// # Errors
    /// If `run` fails.
    pub fn search_settings<S: Copy, E>(
        &self,
        search: ZeusSearch,
        settings: ZeusSettings<'_, S>,
        run: &mut dyn FnMut(&[S]) -> Result<ZeusWindow, E>,
    ) -> Result<ZeusFound<Vec<S>>, E> {
        let ZeusSettings { falling, stages, highest } = settings;
        let mut rounds = 0;
        let mut try_places = |places: &[usize]| {
            rounds += 1;
            let setting: Vec<S> = places.iter().map(|&place| falling[place]).collect();
            run(&setting).map(|window| (setting, window))
        };
        let tried = match search {
            ZeusSearch::Global => {
                let places = 0..falling.len();
                places.map(|place| try_places(&vec![place; stages])).collect::<Result<_, _>>()
            }
            ZeusSearch::PerStage => per_stage(stages, falling.len(), try_places),
        }?;
        let (found, windows): (Vec<_>, Vec<ZeusWindow>) = tried.into_iter().unzip();
        let chosen = self.choose(&windows, highest);
        Ok(ZeusFound { found, chosen, rounds })
    }

    fn choose(&self, windows: &[ZeusWindow], highest: f64) -> usize {
        let places = || 0..windows.len();
        let time_s = |place: usize| windows[place].iteration_time_s;
        let cost = |place: usize| self.cost(&windows[place], highest);
        let is_fast_enough =
            |&place: &usize| self.slowest_s.is_none_or(|most| time_s(place) <= most);
        let cheapest = places().filter(is_fast_enough).min_by(|&a, &b| cost(a).total_cmp(&cost(b)));
        let fastest = || places().min_by(|&a, &b| time_s(a).total_cmp(&time_s(b)));
        cheapest.or_else(fastest).unwrap_or(0)
    }

    /// Zeus' cost of a step.
    fn cost(&self, step: &ZeusWindow, highest: f64) -> f64 {
        let power_w = step.iteration_energy_j / step.iteration_time_s;
        (self.eta * power_w + (1.0 - self.eta) * highest) * step.iteration_time_s
    }
}

impl ZeusWindow {
    /// The window that the replay of a plan predicts.
    fn predicted(profile: &Profile, plan: &Plan) -> Self {
        let nothing = Prediction { iteration_time_s: f64::NAN, iteration_energy_j: f64::NAN };
        let Prediction { iteration_time_s, iteration_energy_j } = plan.predicted.unwrap_or(nothing);
        let forward_s = plan.stages.iter().map(|stage| {
            let forwards =
                stage.instructions.iter().filter(|run| run.instruction == Instruction::Forward);
            let (sum_s, count) = forwards
                .filter_map(|run| {
                    profile.part_at(
                        stage.stage,
                        Instruction::Forward,
                        run.part(),
                        run.frequency_mhz,
                    )
                })
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

/// The setting of every stage, and its window.
type Tried<S> = (Vec<S>, ZeusWindow);

/// For each setting of the heaviest stage, by its place among them, lowers the others' until their
/// forwards take as long.
fn per_stage<S, E>(
    num_stages: usize,
    num_settings: usize,
    mut try_places: impl FnMut(&[usize]) -> Result<Tried<S>, E>,
) -> Result<Vec<Tried<S>>, E> {
    // For each stage, the place of its setting.
    let mut places = vec![0; num_stages];
    let mut heaviest = None;
    let mut balanced = Vec::new();
    for lowest in 0..num_settings {
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
                    // A lower setting that is faster is noise: look further.
                    || times_s[stage] < last_times_s[stage];
                if !is_closing {
                    places[stage] = places[stage].saturating_sub(1);
                    is_found[stage] = true;
                } else if places[stage] + 1 < num_settings {
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
        if places.iter().any(|&place| place + 1 == num_settings) {
            break;
        }
    }
    Ok(balanced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::name::Schedule;
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
            .outcome(ZeusSearch::Global, &pipeline(&unequal()), &Watts(80.0).into())
            .unwrap();
        let tried: Vec<_> = outcome.plans.iter().map(clocks).collect();
        assert_eq!(tried, [[1400, 1400], [1390, 1390], [1380, 1380]]);
    }

    #[test]
    fn per_stage_lowers_the_lighter_stage_until_its_forward_is_as_long() {
        let outcome = Zeus::default()
            .outcome(ZeusSearch::PerStage, &pipeline(&unequal()), &Watts(80.0).into())
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
        let chosen = |eta| {
            Zeus { eta, ..Zeus::default() }
                .outcome(ZeusSearch::Global, &pipeline, &Watts(80.0).into())
                .unwrap()
                .chosen
        };
        assert_eq!(chosen(0.0), 0);
        assert_eq!(chosen(1.0), 2);
    }

    /// Two stages whose forwards take twice as long under half the power.
    fn under_limits(limits_w: &[u32]) -> ZeusWindow {
        let took_s = |(limit, work): (&u32, f64)| work * 300.0 / f64::from(*limit);
        let forward_s: Vec<_> = limits_w.iter().zip([0.1, 0.05]).map(took_s).collect();
        let iteration_time_s = forward_s.iter().fold(0.0, |a: f64, b| a.max(*b));
        let power_w: u32 = limits_w.iter().sum();
        let iteration_energy_j = f64::from(power_w) * iteration_time_s;
        ZeusWindow { iteration_time_s, iteration_energy_j, forward_s }
    }

    #[test]
    fn what_is_chosen_is_fast_enough_or_the_fastest_if_nothing_is() {
        let settings = ZeusSettings { falling: &[300, 200, 150, 100], stages: 2, highest: 600.0 };
        let chosen = |eta, slowest_s| {
            let mut run = |limits: &[u32]| {
                let window = under_limits(limits);
                // So that the lowest limit takes least energy.
                let iteration_energy_j = f64::from(limits[0]);
                Ok::<_, PlanError>(ZeusWindow { iteration_energy_j, ..window })
            };
            let zeus = Zeus { eta, slowest_s };
            let search = zeus.search_settings(ZeusSearch::Global, settings, &mut run);
            let ZeusFound { found, chosen, .. } = search.unwrap();
            found[chosen][0]
        };
        assert_eq!(chosen(1.0, None), 100);
        assert_eq!(chosen(1.0, Some(0.21)), 150);
        assert_eq!(chosen(1.0, Some(0.05)), 300);
    }

    #[test]
    fn power_limits_are_searched_as_clocks_are() {
        let settings = ZeusSettings { falling: &[300, 200, 150, 100], stages: 2, highest: 600.0 };
        let search = |search| {
            let mut run = |limits: &[u32]| Ok::<_, PlanError>(under_limits(limits));
            Zeus::default().search_settings(search, settings, &mut run).unwrap()
        };
        let ZeusFound { found, chosen, rounds } = search(ZeusSearch::Global);
        assert_eq!((found.len(), rounds, &found[chosen][..]), (4, 4, &[300, 300][..]));
        let ZeusFound { found, chosen, .. } = search(ZeusSearch::PerStage);
        assert_eq!(found[chosen], [300, 150]);
    }
}

//! A longer search for the one plan that will run for weeks.
//!
//! Many searches of [`late::search`](crate::late::search), each from the best plan so far. They end
//! when the caller says so, and never with a worse plan.

use std::collections::HashMap;

use crate::choices::tradeoff::Tradeoffs;
use crate::choices::{Assignment, Choices, Realised};
use crate::error::PlanError;
use crate::frontier::Frontier;
use crate::frontier::clock_per::ClockPer;
use crate::frontier::due::Due;
use crate::late::clocks::LateClocks;
use crate::late::search::Search;
use crate::late::step::{LateStep, Rates};
use crate::parallel::in_parallel;
use crate::plan::{Plan, PlannedInstruction};

/// Searches that start from the same plan before the best of them is shared.
const SEARCHES: u64 = 4;

/// Speed-ups in a search, which take some tenths of a second for a long step.
const KICKS: u32 = 200;

/// The additional energy, as a share, of a plan from which a search may continue. It grows with
/// every round of searches that finds nothing, up to [`LONGEST_DETOUR`] times, and shrinks during a
/// search.
const DETOUR: f64 = 5e-5;
const LONGEST_DETOUR: u32 = 60;

impl Frontier {
    /// Checks that plans may change each clock by itself, as [`Frontier::polished`] does.
    ///
    /// # Errors
    /// If the frontier was made for clocks that the instructions of a stage or of a kind share.
    pub fn check_polishable(&self) -> Result<(), PlanError> {
        match self.clock_per.filter(|per| *per != ClockPer::Instruction) {
            Some(per) => Err(PlanError::BadArgument {
                name: "the frontier to polish a plan of",
                value: format!("one of a clock per {}", per.name()),
                expected: "one of a clock per instruction",
            }),
            None => Ok(()),
        }
    }

    /// A plan that [`Frontier::plan_for`] made, improved until `goes_on`, called with the energy in
    /// joules so far, returns false.
    ///
    /// # Errors
    /// If the plan is for another pipeline, or is not in time.
    pub fn polished(
        &self,
        plan: Plan,
        due: Due,
        mut goes_on: impl FnMut(f64) -> bool,
    ) -> Result<Plan, PlanError> {
        let tradeoffs = Tradeoffs::new(self.pipeline(), self.p2p_power());
        let choices = Choices::new(&tradeoffs);
        let polisher = Polisher::new(self, &tradeoffs, &choices);
        let waiting_w = self.waiting_w();
        let mut best = polisher.start(&plan);
        let deadline_s = self.useful_s(due).max(best.time_s);
        let energy_j = |plan: &Realised| plan.effective_j + waiting_w * due.lasts_s(plan.time_s);
        let cost_j = |plan: &Realised| energy_j(plan) + self.site_w() * due.lasts_s(plan.time_s);
        let mut in_vain = 0;
        for round in 0.. {
            let detour = DETOUR * f64::from(in_vain % LONGEST_DETOUR);
            in_vain += 1;
            if !goes_on(energy_j(&best)) {
                break;
            }
            let seeds: Vec<u64> = (1..=SEARCHES).map(|seed| round * SEARCHES + seed).collect();
            let found = in_parallel(
                &seeds,
                || polisher.step(),
                |step, &seed| {
                    let search = Search { deadline_s, detour, kicks: KICKS, seed };
                    search.from(step, &best)
                },
            );
            let better = found.into_iter().min_by(|a, b| cost_j(a).total_cmp(&cost_j(b)));
            if let Some(better) = better.filter(|better| cost_j(better) < cost_j(&best)) {
                best = better;
                in_vain = 0;
            }
        }
        let polished = self.pipeline().plan(|operation| polisher.clock(&best, operation));
        let plans = vec![plan, self.with_prediction(polished)?];
        self.best_of(plans, due).ok_or(PlanError::EmptyFrontier)
    }
}

struct Polisher<'a> {
    frontier: &'a Frontier,
    choices: &'a Choices,
    late: LateClocks,
    rates: Rates,
}

impl<'a> Polisher<'a> {
    fn new(frontier: &'a Frontier, tradeoffs: &Tradeoffs, choices: &'a Choices) -> Self {
        let pipeline = frontier.pipeline();
        let rates = Rates::new(pipeline, tradeoffs, choices, frontier.p2p_power());
        Self { frontier, choices, late: LateClocks::new(pipeline.network()), rates }
    }

    fn step(&self) -> LateStep<'_> {
        let network = self.frontier.pipeline().network();
        LateStep::new(network, self.choices, &self.late, &self.rates)
    }

    fn clock(&self, plan: &Realised, operation: usize) -> pfo_vocabulary::Mhz {
        self.choices.get(self.choices.unpacked(&plan.assignment, operation)).frequency
    }

    /// The choices of a plan; clocks that are not worth choosing become faster ones.
    fn start(&self, plan: &Plan) -> Realised {
        let network = self.frontier.pipeline().network();
        let planned: HashMap<_, &PlannedInstruction> = plan
            .stages
            .iter()
            .flat_map(|stage| stage.instructions.iter().map(move |p| ((stage.stage, p.unit()), p)))
            .collect();
        let assignment: Assignment = (0..network.len())
            .map(|index| {
                let operation = &network.operations[index];
                let planned = planned.get(&(operation.stage, operation.unit()));
                let profile = self.frontier.pipeline().profile();
                let measured = planned.and_then(|planned| {
                    profile.part_at(
                        operation.stage,
                        operation.instruction,
                        operation.part(),
                        planned.frequency_mhz,
                    )
                });
                let most_s = measured.map_or(f64::INFINITY, |measured| measured.time_s);
                self.choices.slowest_within(index, most_s)
            })
            .collect();
        let mut step = self.step();
        step.load(assignment);
        step.realised()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontier::deadline::Deadline;
    use crate::frontier::optimize::{Options, Spread};
    use crate::replay::replay;
    use crate::test_profiles::four_stages;
    use pfo_vocabulary::Watts;

    fn frontier(switch_latency_s: f64) -> Frontier {
        let pipeline = four_stages(8, switch_latency_s);
        let options = Options { plans: 12, spread: Spread::Useful };
        Frontier::optimize(&pipeline, Watts(80.0), options, &|_| {}).unwrap()
    }

    /// The frontier's own plan, not the one that is made for the time, and that plan polished: in so
    /// short a step, one that is made leaves nothing to find.
    fn polished(frontier: &Frontier, due: Due, rounds: u32) -> (Plan, Plan) {
        let before = frontier.plan(frontier.place(due).unwrap()).unwrap();
        let mut left = rounds;
        let goes_on = |_: f64| {
            left = left.saturating_sub(1);
            left > 0
        };
        (before.clone(), frontier.polished(before, due, goes_on).unwrap())
    }

    #[test]
    fn a_polished_plan_keeps_the_deadline_and_is_what_its_replay_says() {
        for latency_s in [0.0, 0.015] {
            let frontier = frontier(latency_s);
            let mut saved_j = 0.0;
            for point in frontier.points() {
                let due = Due::AtMost(point.iteration_time_s);
                let (before, plan) = polished(&frontier, due, 3);
                let replayed = replay(frontier.pipeline().profile(), &plan, Watts(80.0)).unwrap();
                assert_eq!(plan.predicted, Some(replayed.into()));
                assert!(replayed.iteration_time_s <= point.iteration_time_s);
                let before = before.predicted.unwrap();
                saved_j += before.iteration_energy_j - replayed.iteration_energy_j;
                assert!(replayed.iteration_energy_j <= before.iteration_energy_j);
            }
            assert!(saved_j > 1.0, "only {saved_j} J saved");
        }
    }

    #[test]
    fn the_same_rounds_make_the_same_plan() {
        let frontier = frontier(0.0);
        let due = Due::AtMost(1.03 * frontier.seconds(Deadline::Fastest));
        assert_eq!(polished(&frontier, due, 3), polished(&frontier, due, 3));
    }
}

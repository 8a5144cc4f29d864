//! The plan for one deadline, made from the plans of a frontier.
//!
//! A frontier's plans are some time apart, and a deadline mostly lies between two of them. A plan
//! that is spliced from those around it uses all of that time, in some milliseconds for a step of
//! 1,536 instructions.

use crate::choices::tradeoff::Tradeoffs;
use crate::choices::{Choices, Realised};
use crate::error::PlanError;
use crate::frontier::Frontier;
use crate::frontier::clock_per::ClockPer;
use crate::frontier::due::Due;
use crate::frontier::optimize::{Making, table};
use crate::frontier::replan::check_figures;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::relaxation::bound::LowerBound;
use crate::replay::replay;
use crate::waits::power::PowerByClock;

/// Plans before and after a deadline that are spliced. Four times as many save less than a
/// thousandth of a percent.
const NEAR: usize = 16;

/// The same where clocks are late, each of which is improved before.
const NEAR_LATE: usize = 4;

/// What the times of a step may add up to more in another order, as a share.
const ROUNDING: f64 = 1e-11;

impl Frontier {
    /// The plan of least energy that is done when it is due. Where the plans of this frontier have
    /// a clock for each instruction and were made by this planner, from figures that a GPU may have,
    /// it is made for that time; else it is the one of them that [`Frontier::pick`] or
    /// [`Frontier::pick_for_straggler`] finds.
    ///
    /// # Errors
    /// [`PlanError::DeadlineTooEarly`] if even the fastest plan takes longer.
    pub fn plan_for(&self, due: Due) -> Result<Plan, PlanError> {
        self.plan_for_and_say(due, &|_| {})
    }

    /// The same. Calls `progress`, from any thread, with the share of the work that is done (0 to 1).
    ///
    /// # Errors
    /// Those of [`Frontier::plan_for`].
    pub fn plan_for_and_say(
        &self,
        due: Due,
        progress: &(dyn Fn(f64) + Sync),
    ) -> Result<Plan, PlanError> {
        let progress = Progress::new(progress);
        let looked_up = self.plan(self.place(due)?)?;
        let is_plausible = check_figures(self.pipeline.profile(), &self.p2p_power).is_ok();
        if self.clock_per != Some(ClockPer::Instruction) || !is_plausible {
            return Ok(looked_up);
        }
        let tradeoffs = Tradeoffs::new(&self.pipeline, &self.p2p_power);
        let choices = Choices::new(&tradeoffs);
        let making = Making {
            pipeline: &self.pipeline,
            p2p_power: &self.p2p_power,
            tradeoffs: &tradeoffs,
            choices: &choices,
        };
        let deadline_s = self.useful_s(due);
        let near = self.near(deadline_s, &making, &progress);
        let made = making.near(near, deadline_s * (1.0 - ROUNDING), &progress);
        let plan = self
            .pipeline
            .plan(|index| choices.get(choices.unpacked(&made.assignment, index)).frequency);
        let plans = vec![looked_up, self.with_prediction(plan)?];
        self.best_of(plans, due).ok_or(PlanError::EmptyFrontier)
    }

    /// The energy that a plan is predicted to take with the wait until a time (s), in joules; not a
    /// number if it has no prediction.
    pub fn energy_until_j(&self, plan: &Plan, until_s: f64) -> f64 {
        plan.predicted.map_or(f64::NAN, |predicted| {
            let wait_s = (until_s - predicted.iteration_time_s).max(0.0);
            predicted.iteration_energy_j + self.waiting_w() * wait_s
        })
    }

    /// The energy that any plan for this pipeline takes at least. Where waits have clocks of their
    /// own, waiting counts as it draws least.
    pub fn bound(&self) -> LowerBound {
        self.bound_and_say(&|_| {})
    }

    /// The same. Calls `progress`, from any thread, with the share of the work that is done (0 to 1).
    pub fn bound_and_say(&self, progress: &(dyn Fn(f64) + Sync)) -> LowerBound {
        let least = |power: &PowerByClock| power.at(power.cheapest());
        let lowest = self.wait_power.as_ref().map(|power| power.at(least));
        let price = lowest.as_ref().unwrap_or(&self.p2p_power);
        LowerBound::and_say(&self.pipeline, price, &Progress::new(progress))
    }

    /// The plan of least energy, until it is due, of those that are in time.
    pub(super) fn best_of(&self, plans: Vec<Plan>, due: Due) -> Option<Plan> {
        let in_time = plans.into_iter().filter_map(|plan| {
            let time_s = plan.predicted?.iteration_time_s;
            let lasts_s = due.lasts_s(time_s);
            let energy_j = self.energy_until_j(&plan, lasts_s) + self.site_w() * lasts_s;
            (time_s <= due.seconds()).then_some((energy_j, plan))
        });
        in_time.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, plan)| plan)
    }

    /// A plan for this frontier's GPU and powers, and its replay.
    pub(super) fn with_prediction(&self, plan: Plan) -> Result<Plan, PlanError> {
        let profile = self.pipeline.profile();
        let (gpu, power) = (self.gpu.clone(), Some(self.p2p_power.clone()));
        let mut plan = Plan { gpu, p2p_blocking_power_w: power, ..plan };
        match &self.wait_power {
            Some(power) => plan.with_waits(profile, power),
            None => {
                plan.predicted = Some(replay(profile, &plan, &self.p2p_power)?.into());
                Ok(plan)
            }
        }
    }

    /// The watts of all stages while they wait.
    pub(super) fn waiting_w(&self) -> f64 {
        self.p2p_power.total_w(self.pipeline.profile().num_stages())
    }

    /// The time that a plan may take, in seconds, as far as more of it is useful.
    pub(super) fn useful_s(&self, due: Due) -> f64 {
        match due {
            Due::AtMost(seconds) => seconds.min(self.cheapest_s()),
            Due::Waiting(seconds) => seconds,
        }
    }

    /// The plans about a deadline, in seconds, fastest first.
    fn near(&self, deadline_s: f64, making: &Making<'_>, progress: &Progress<'_>) -> Vec<Realised> {
        let near = if making.has_late_clocks() { NEAR_LATE } else { NEAR };
        let slower = self.plans.partition_point(|plan| plan.point.iteration_time_s <= deadline_s);
        let about = slower.saturating_sub(near)..self.plans.len().min(slower + near);
        let realised = |place| {
            progress.go_on();
            self.realised(place, making.choices)
        };
        about.map(realised).collect()
    }

    /// A plan as choices; clocks that are not worth choosing become faster ones.
    fn realised(&self, place: usize, choices: &Choices) -> Realised {
        let network = self.pipeline.network();
        let mut assignment: Vec<u32> = (0..network.len()).map(|op| choices.fastest(op)).collect();
        let operations = network.stages.iter().flatten().map(|&operation| operation as usize);
        for (operation, &row) in operations.zip(&self.plans[place].rows) {
            let measured = table(&self.pipeline, operation)[usize::from(row)];
            assignment[operation] = choices.slowest_within(operation, measured.time_s);
        }
        let time_s = network.makespan(|operation| choices.get(assignment[operation]).time_s);
        let effective_j = choices.effective_j(&assignment);
        Realised { time_s, effective_j, assignment: choices.packed(&assignment) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontier::Point;
    use crate::frontier::deadline::Deadline;
    use crate::frontier::optimize::{Options, Spread};
    use crate::test_profiles::four_stages;
    use pfo_vocabulary::Watts;

    fn frontier(per: ClockPer, switch_latency_s: f64) -> Frontier {
        frontier_at(Watts(80.0), per, switch_latency_s)
    }

    fn frontier_at(p2p_power: Watts, per: ClockPer, switch_latency_s: f64) -> Frontier {
        let options = Options { plans: 12, spread: Spread::Useful };
        let pipeline = four_stages(12, switch_latency_s);
        Frontier::with_clock_per(per, &pipeline, p2p_power, options, &|_| {}).unwrap()
    }

    /// The joules that plans save beside those that are looked up, for times between two plans.
    fn saved_j(frontier: &Frontier) -> Vec<f64> {
        let times: Vec<f64> = frontier.points().map(|point| point.iteration_time_s).collect();
        let between = times.windows(2).map(|pair| 0.3 * pair[0] + 0.7 * pair[1]);
        between
            .map(|time_s| {
                let due = Due::AtMost(time_s);
                let looked_up = frontier.plan(frontier.place(due).unwrap()).unwrap();
                let made = frontier.plan_for(due).unwrap();
                let energy_j = |plan: &Plan| plan.predicted.unwrap().iteration_energy_j;
                assert!(made.predicted.unwrap().iteration_time_s <= time_s);
                energy_j(&looked_up) - energy_j(&made)
            })
            .collect()
    }

    #[test]
    fn between_two_plans_the_time_is_made_use_of() {
        for latency_s in [0.0, 0.015] {
            let saved_j = saved_j(&frontier(ClockPer::Instruction, latency_s));
            let better = saved_j.iter().filter(|&&saved_j| saved_j > 0.0).count();
            assert!(2 * better > saved_j.len(), "{latency_s}: {saved_j:?}");
        }
    }

    #[test]
    fn plans_of_few_clocks_and_those_of_others_are_looked_up() {
        let frontiers = [ClockPer::Kind, ClockPer::Stage].map(|per| frontier(per, 0.0));
        let made = frontier(ClockPer::Instruction, 0.0);
        let plans = (0..made.plans().len()).map(|place| made.plan(place).unwrap());
        let of_others =
            Frontier::of_plans(&four_stages(12, 0.0), Watts(80.0), None, plans).unwrap();
        for frontier in frontiers.into_iter().chain([of_others]) {
            assert!(saved_j(&frontier).into_iter().all(|saved_j| saved_j == 0.0));
        }
    }

    #[test]
    fn who_waits_gets_a_slower_plan_than_who_does_not() {
        let dear = Watts(4000.0);
        let frontier = frontier_at(dear, ClockPer::Instruction, 0.0);
        let until_s = 1.2 * frontier.seconds(Deadline::MinEnergy);
        let predicted = |due| frontier.plan_for(due).unwrap().predicted.unwrap();
        let (alone, waiting) = (predicted(Due::AtMost(until_s)), predicted(Due::Waiting(until_s)));
        assert!(alone.iteration_time_s < waiting.iteration_time_s);
        assert!(alone.iteration_energy_j < waiting.iteration_energy_j);
        let wait_j = frontier.waiting_w() * (until_s - alone.iteration_time_s);
        assert!(waiting.iteration_energy_j < alone.iteration_energy_j + wait_j);
    }

    #[test]
    fn figures_that_no_gpu_has_are_not_planned_with() {
        let mut frontier = frontier(ClockPer::Instruction, 0.0);
        frontier.p2p_power = Watts(1e300).into();
        let due = Due::Waiting(1.1 * frontier.seconds(Deadline::Fastest));
        let looked_up = frontier.plan(frontier.place(due).unwrap()).unwrap();
        assert_eq!(frontier.plan_for(due).unwrap(), looked_up);
    }

    #[test]
    fn however_long_the_wait_there_is_a_plan_for_it() {
        for latency_s in [0.0, 0.015] {
            let frontier = frontier(ClockPer::Instruction, latency_s);
            for until_s in [1e9, f64::MAX, f64::INFINITY] {
                let plan = frontier.plan_for(Due::Waiting(until_s)).unwrap();
                let slowest_s = frontier.plans().last().unwrap().iteration_time_s;
                assert!(plan.predicted.unwrap().iteration_time_s >= slowest_s - 1e-9);
            }
        }
    }

    #[test]
    fn where_the_site_draws_much_the_plan_of_least_energy_is_faster() {
        let site_w = 4.0 * 5000.0;
        let plain = frontier(ClockPer::Instruction, 0.0);
        let sited = plain.clone().with_site_power(Watts(5000.0)).unwrap();
        let with_site_j = |plan: Point| plan.iteration_energy_j + site_w * plan.iteration_time_s;
        let least = sited.plans().min_by(|a, b| with_site_j(*a).total_cmp(&with_site_j(*b)));
        let cheapest_s = sited.seconds(Deadline::MinEnergy);
        assert_eq!(cheapest_s, least.unwrap().iteration_time_s);
        assert!(cheapest_s < plain.seconds(Deadline::MinEnergy));
        assert!(sited.plans().eq(plain.plans()), "what GPUs take is the same");
        let late = sited.plan_for(Due::AtMost(2.0 * cheapest_s)).unwrap().predicted.unwrap();
        assert!(late.iteration_time_s <= cheapest_s);
        let read = Frontier::from_bytes(&sited.to_bytes().unwrap()).unwrap();
        assert_eq!(read.seconds(Deadline::MinEnergy), cheapest_s);
        for watts in [-1.0, f64::NAN] {
            assert!(plain.clone().with_site_power(Watts(watts)).is_err());
        }
    }

    #[test]
    fn before_the_fastest_there_is_no_plan() {
        let frontier = frontier(ClockPer::Instruction, 0.0);
        let early_s = 0.999 * frontier.seconds(Deadline::Fastest);
        let refused = frontier.plan_for(Due::AtMost(early_s)).unwrap_err();
        assert!(matches!(refused, PlanError::DeadlineTooEarly { .. }), "{refused}");
    }
}

//! A new plan for a pipeline that no longer runs as it was profiled.
//!
//! A frontier knows nothing of a stage that has become slow. From its profile and what is measured
//! now follows the profile *as measured*, and from that a plan for one deadline: a slow stage may
//! get higher clocks, which gets time back, and every other stage gives up what would only be
//! waited for. It takes less than a second of one core for a step of 1,536 instructions.
//!
//! A GPU that a limit holds back does the same at every clock above the one that it reaches.
//! Instructions that ask for such a clock keep it: their times are what shows that the limit is gone.

use std::collections::BTreeMap;

use pfo_vocabulary::{Instruction, Mhz, Stage, Watts};

use crate::choices::Choices;
use crate::choices::tradeoff::{Choice, Tradeoff, Tradeoffs};
use crate::error::PlanError;
use crate::frontier::Frontier;
use crate::frontier::due::Due;
use crate::frontier::optimize::Making;
use crate::pipeline::Pipeline;
use crate::plan::Plan;
use crate::profile::Profile;
use crate::profile::measurement::Measurement;
use crate::profile::parts::Part;
use crate::progress::Progress;
use crate::replay::replay;
use crate::step::network::Network;
use crate::waits::per_stage::PerStage;

/// A step that is longer by no more than this share is not longer.
const NO_LONGER: f64 = 1e-6;

/// The longest instruction, in seconds, and the most power, in watts, that are planned for. A
/// frontier file may say anything, and sums over a step have to be numbers.
const LONGEST_S: f64 = 3600.0;
const MOST_W: f64 = 1e6;

/// How a stage's instruction runs now, beside its profile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Condition {
    /// At every clock it takes this multiple of the profiled time, at the profiled power.
    Slowed(f64),
    /// A limit holds the GPU back: it takes this many seconds at every clock that was faster, with
    /// the energy of the nearest clock that is not.
    Held(f64),
}

/// The conditions of the instructions that do not run as they were profiled.
pub type Conditions = BTreeMap<(Stage, Instruction), Condition>;

impl Profile {
    /// The profile of a pipeline under these conditions: what each clock gives when it is asked for.
    ///
    /// # Errors
    /// [`PlanError::BadArgument`] if a multiple or a time is not a number above 0.
    pub fn under(&self, conditions: &Conditions) -> Result<Self, PlanError> {
        for &(Condition::Slowed(value) | Condition::Held(value)) in conditions.values() {
            if !(value.is_finite() && value > 0.0) {
                return Err(PlanError::BadArgument {
                    name: "what an instruction takes now",
                    value: value.to_string(),
                    expected: "above 0",
                });
            }
        }
        Ok(self.changed(conditions))
    }

    fn changed(&self, conditions: &Conditions) -> Self {
        let rows = self.rows().map(|(stage, instruction, row)| {
            let row = match conditions.get(&(stage, instruction)) {
                Some(&Condition::Slowed(factor)) => row.slowed(factor),
                Some(&Condition::Held(time_s)) if row.time_s < time_s => {
                    let energy_j = held_j(self.table(stage, instruction), row, time_s);
                    Measurement { time_s, energy_j, ..row }
                }
                _ => row,
            };
            (stage, instruction, row)
        });
        let parts = self.each_part(|own| own.changed(conditions));
        Self::with_tables(rows).with_parts(parts).with_payloads(self.payloads().clone())
    }
}

impl Measurement {
    fn slowed(self, factor: f64) -> Self {
        Self { time_s: factor * self.time_s, energy_j: factor * self.energy_j, ..self }
    }
}

/// The energy of an instruction that a limit makes as long as this: that of the fastest clock that
/// takes as long, or of the slowest at its power.
fn held_j(table: &[Measurement], row: Measurement, time_s: f64) -> f64 {
    let by_time = |a: &&Measurement, b: &&Measurement| a.time_s.total_cmp(&b.time_s);
    let held = table.iter().filter(|row| row.time_s >= time_s).min_by(by_time);
    let slowest = || table.iter().max_by(by_time).map(|row| row.slowed(time_s / row.time_s));
    held.copied().or_else(slowest).unwrap_or(row).energy_j
}

/// # Errors
/// The first figure that is too large.
pub(crate) fn check_figures(
    profile: &Profile,
    p2p_power: &PerStage<Watts>,
) -> Result<(), PlanError> {
    let refused = |name, value: f64, expected| {
        Err(PlanError::BadArgument { name, value: value.to_string(), expected })
    };
    if let Some(power) = p2p_power.each(profile.num_stages()).find(|power| power.0 > MOST_W) {
        return refused("the P2P-blocking power", power.0, "at most 1000000 W");
    }
    for (_, _, row) in profile.with_those_of_parts().flat_map(Profile::rows) {
        if row.time_s > LONGEST_S {
            return refused("the time of an instruction", row.time_s, "at most an hour");
        }
        if row.energy_j > MOST_W * LONGEST_S {
            return refused("the energy of an instruction", row.energy_j, "at most 3.6 GJ");
        }
    }
    Ok(())
}

/// Gives operations the clocks that they keep.
fn keep(plan: &mut Plan, kept: &[Option<Mhz>], network: &Network) {
    for (stage, operations) in plan.stages.iter_mut().zip(&network.stages) {
        for (planned, &operation) in stage.instructions.iter_mut().zip(operations) {
            planned.frequency_mhz = kept[operation as usize].unwrap_or(planned.frequency_mhz);
        }
    }
}

impl Frontier {
    /// The plan of least energy that is done when it is due, under these conditions, or the fastest
    /// plan if none is. `own` is the plan that the pipeline runs, with the instructions of this
    /// frontier's plans. The prediction is the replay over the profile under the conditions: there,
    /// the plan is never worse than `own` or this frontier's plan for that time.
    ///
    /// # Errors
    /// Those of [`Profile::under`]; if `own` has clocks that were not profiled, or no GPU takes as long
    /// or draws as much.
    pub fn replanned(
        &self,
        own: Option<&Plan>,
        conditions: &Conditions,
        due: Due,
    ) -> Result<Plan, PlanError> {
        let profile = self.pipeline().profile().under(conditions)?;
        check_figures(&profile, self.p2p_power())?;
        let network = self.pipeline().network();
        let (schedule, order) = (self.pipeline().schedule(), self.pipeline().order().clone());
        let pipeline = Pipeline::of_order(&profile, schedule, order, network.delays)?;
        let kept = self.kept_clocks(own, conditions);
        let tradeoffs = self.tradeoffs(&pipeline, &kept);
        let choices = Choices::new(&tradeoffs);
        let making = Making {
            pipeline: &pipeline,
            p2p_power: self.p2p_power(),
            tradeoffs: &tradeoffs,
            choices: &choices,
        };
        let mut plans: Vec<Plan> = making
            .at(due.seconds(), &Progress::new(&|_| {}))
            .into_iter()
            .map(|made| {
                let choice = |index| choices.unpacked(&made.assignment, index);
                pipeline.plan(|index| choices.get(choice(index)).frequency)
            })
            .collect();
        let looked_up = self.place(due).and_then(|place| self.plan(place));
        plans.extend(looked_up.ok());
        plans.extend(own.cloned());
        let mut fastest_s = f64::INFINITY;
        for plan in &mut plans {
            keep(plan, &kept, network);
            if !profile.payloads().is_empty() {
                plan.payloads = profile.payloads_of(&plan.stages);
            }
            let replay = replay(&profile, plan, self.p2p_power())?;
            fastest_s = fastest_s.min(replay.iteration_time_s);
            plan.predicted = Some(replay.into());
        }
        let most_s = due.seconds().max(fastest_s) * (1.0 + NO_LONGER);
        let best = self.best_of(plans, due.at(most_s)).ok_or(PlanError::EmptyFrontier)?;
        let (gpu, power) = (self.gpu.clone(), Some(self.p2p_power.clone()));
        Ok(Plan { gpu, p2p_blocking_power_w: power, ..best })
    }

    /// For each operation the clock that it keeps: one that would be faster without a limit.
    fn kept_clocks(&self, own: Option<&Plan>, conditions: &Conditions) -> Vec<Option<Mhz>> {
        let network = self.pipeline().network();
        let mut kept = vec![None; network.len()];
        let stages = own.map_or(&[][..], |own| &own.stages);
        for (stage, operations) in stages.iter().zip(&network.stages) {
            for (planned, &operation) in stage.instructions.iter().zip(operations) {
                let (instruction, clock) = (planned.instruction, planned.frequency_mhz);
                let profile = self.pipeline().profile();
                let profiled = profile.part_at(stage.stage, instruction, planned.part(), clock);
                if let Some(Condition::Held(held_s)) = conditions.get(&(stage.stage, instruction))
                    && profiled.is_some_and(|profiled| profiled.time_s < *held_s)
                {
                    kept[operation as usize] = Some(clock);
                }
            }
        }
        kept
    }

    /// The tradeoffs of a pipeline some of whose operations have no choice.
    fn tradeoffs(&self, pipeline: &Pipeline, kept: &[Option<Mhz>]) -> Tradeoffs {
        let mut tradeoffs = Tradeoffs::new(pipeline, self.p2p_power());
        let mut without_choice: BTreeMap<(Stage, Instruction, Part), u16> = BTreeMap::new();
        for (index, (operation, kept)) in pipeline.network().operations.iter().zip(kept).enumerate()
        {
            let (stage, instruction) = (operation.stage, operation.instruction);
            let part = pipeline.profile().part_of(stage, instruction, operation.part());
            let of = (stage, instruction, part);
            let at = |clock| pipeline.profile().part_at(stage, instruction, part, clock);
            let Some(row) = kept.and_then(at) else { continue };
            // Whatever clock is kept, a limit makes the same of it.
            tradeoffs.of[index] = *without_choice.entry(of).or_insert_with(|| {
                tradeoffs.list.push(Tradeoff::convex(vec![Choice {
                    time_s: row.time_s,
                    effective_j: row.energy_j - self.p2p_power.of(of.0).0 * row.time_s,
                    frequency: row.frequency,
                }]));
                // At most one more for each kind of instruction.
                tradeoffs.list.len() as u16 - 1
            });
        }
        tradeoffs
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frontier::optimize::{Options, Spread};
    use crate::test_profiles::four_stages;

    const POWER: Watts = Watts(80.0);

    fn frontier(switch_latency_s: f64) -> Frontier {
        let pipeline = four_stages(6, switch_latency_s);
        let options = Options { plans: 12, spread: Spread::Useful };
        Frontier::optimize(&pipeline, POWER, options, &|_| {}).unwrap()
    }

    fn conditions(stage: u16, condition: Condition) -> Conditions {
        let kinds = [Instruction::Forward, Instruction::Backward];
        kinds.map(|kind| ((Stage(stage), kind), condition)).into()
    }

    /// Seconds and joules of a step under these conditions.
    fn under(frontier: &Frontier, conditions: &Conditions, plan: &Plan) -> (f64, f64) {
        let profile = frontier.pipeline().profile().under(conditions).unwrap();
        let replayed = replay(&profile, plan, POWER).unwrap();
        (replayed.iteration_time_s, replayed.iteration_energy_j)
    }

    #[test]
    fn under_no_conditions_a_plan_is_no_worse_than_the_frontiers() {
        for latency_s in [0.0, 0.01] {
            let frontier = frontier(latency_s);
            for (place, point) in frontier.points().enumerate() {
                let asked_s = point.iteration_time_s;
                let plan =
                    frontier.replanned(None, &Conditions::new(), Due::AtMost(asked_s)).unwrap();
                let (time_s, energy_j) = under(&frontier, &Conditions::new(), &plan);
                assert!(time_s <= asked_s * (1.0 + NO_LONGER), "{place}");
                assert!(energy_j <= point.iteration_energy_j * (1.0 + 1e-9), "{place}");
            }
        }
    }

    #[test]
    fn a_deadline_that_is_too_early_gets_the_fastest_plan_that_there_is_now() {
        for latency_s in [0.0, 0.01] {
            let frontier = frontier(latency_s);
            let own = frontier.plan(0).unwrap();
            let slow = conditions(0, Condition::Slowed(1.2));
            let plan = frontier.replanned(Some(&own), &slow, Due::AtMost(0.0)).unwrap();
            let (time_s, _) = under(&frontier, &slow, &plan);
            assert!(time_s <= under(&frontier, &slow, &own).0);
            let highest = crate::replay::at_highest_clocks(frontier.pipeline().profile(), &own);
            assert!(time_s <= under(&frontier, &slow, &highest.unwrap()).0 * (1.0 + NO_LONGER));
        }
    }

    #[test]
    fn what_a_limit_holds_keeps_the_clocks_at_which_that_shows() {
        let frontier = frontier(0.0);
        let own = frontier.plan(0).unwrap();
        // As at 1000 MHz.
        let held = frontier.pipeline().profile().table(Stage(2), Instruction::Forward)[4].time_s;
        let held = Conditions::from([((Stage(2), Instruction::Forward), Condition::Held(held))]);
        let most_s = under(&frontier, &held, &own).0;
        let plan = frontier.replanned(Some(&own), &held, Due::AtMost(most_s)).unwrap();
        let clocks = |plan: &Plan, stage: usize| -> Vec<Mhz> {
            let planned = plan.stages[stage].instructions.iter();
            let forwards = planned.filter(|planned| planned.instruction == Instruction::Forward);
            forwards.map(|planned| planned.frequency_mhz).collect()
        };
        assert!(clocks(&own, 2).iter().any(|clock| *clock > Mhz(1000)));
        for (new, own) in clocks(&plan, 2).into_iter().zip(clocks(&own, 2)) {
            assert!(new == own || own <= Mhz(1000), "{own} became {new}");
        }
        let sum = |clocks: Vec<Mhz>| clocks.iter().map(|clock| clock.0).sum::<u32>();
        assert!(sum(clocks(&plan, 1)) < sum(clocks(&own, 1)));
        let without = frontier.replanned(None, &held, Due::AtMost(most_s)).unwrap();
        assert!(clocks(&without, 2).iter().all(|clock| *clock <= Mhz(1000)));
    }

    #[test]
    fn under_a_limit_every_clock_above_gives_what_the_held_one_does() {
        let profile = frontier(0.0).pipeline().profile().clone();
        let row = |profile: &Profile, mhz| {
            let row = profile.at(Stage(1), Instruction::Backward, Mhz(mhz)).unwrap();
            (row.time_s, row.energy_j)
        };
        let (held_s, held_j) = row(&profile, 1000);
        let under = profile.under(&conditions(1, Condition::Held(held_s))).unwrap();
        assert_eq!(row(&under, 1400), (held_s, held_j));
        assert_eq!(row(&under, 950), row(&profile, 950));
        let (slowest_s, slowest_j) = row(&profile, 800);
        let below_all = profile.under(&conditions(1, Condition::Held(2.0 * slowest_s))).unwrap();
        for mhz in [800, 1400] {
            assert_eq!(row(&below_all, mhz), (2.0 * slowest_s, 2.0 * slowest_j));
        }
    }

    #[test]
    fn a_multiple_without_sense_is_refused_with_its_value() {
        for factor in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let held = frontier(0.0).replanned(
                None,
                &conditions(0, Condition::Held(factor)),
                Due::AtMost(1.0),
            );
            assert!(held.is_err());
            let slow = conditions(0, Condition::Slowed(factor));
            let message =
                frontier(0.0).replanned(None, &slow, Due::AtMost(1.0)).unwrap_err().to_string();
            assert!(message.contains(&factor.to_string()), "{message}");
        }
    }

    #[test]
    fn figures_that_no_gpu_has_are_refused_before_they_are_added_up() {
        for factor in [1e9, 1e300] {
            let slow = conditions(0, Condition::Slowed(factor));
            let message =
                frontier(0.0).replanned(None, &slow, Due::AtMost(1.0)).unwrap_err().to_string();
            assert!(message.contains("of an instruction"), "{message}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn no_condition_makes_a_new_plan_worse_than_the_one_that_runs(
            factors in prop::collection::vec(0.5_f64..2.0, 4),
            held_s in 0.01_f64..1.0,
            place in 0_usize..8,
            deadline in 0.8_f64..1.5,
        ) {
            let frontier = frontier(0.0);
            let mut conditions: Conditions = factors
                .iter()
                .zip(0..)
                .map(|(&factor, stage)| {
                    ((Stage(stage), Instruction::Forward), Condition::Slowed(factor))
                })
                .collect();
            conditions.insert((Stage(1), Instruction::Backward), Condition::Held(held_s));
            let own = frontier.plan(place.min(frontier.plans().len() - 1)).unwrap();
            let (own_s, own_j) = under(&frontier, &conditions, &own);
            let deadline_s = deadline * own_s;
            let plan = frontier.replanned(Some(&own), &conditions, Due::AtMost(deadline_s)).unwrap();
            let (time_s, energy_j) = under(&frontier, &conditions, &plan);
            prop_assert!(time_s <= own_s.max(deadline_s) * (1.0 + NO_LONGER));
            if own_s <= deadline_s {
                prop_assert!(energy_j <= own_j);
            }
        }
    }
}

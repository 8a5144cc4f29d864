//! The order of a step as stages were seen to run it.
//!
//! What a stage runs one after the other is its order. What its instructions wait for on other stages
//! cannot be seen, but what they do not wait for can: where the chunks of a model lie in another way than
//! is assumed, instructions begin before that which they would wait for has ended.

use std::collections::HashMap;

use pfo_vocabulary::{Chunk, Instruction, Microbatch, Stage, Unit};

use crate::error::PlanError;
use crate::limits;
use crate::profile::Profile;
use crate::schedule::name::Schedule;
use crate::schedule::settings::Settings;
use crate::step::flow::{Flow, Product};
use crate::step::order::{Misordered, Order, StageOrder, check_order, is_pass};
use crate::step::placement::Placement;

/// An instruction that a stage ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The instruction.
    pub unit: Unit,
    /// When it began, in nanoseconds of a clock that all stages share.
    pub began_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
}

/// When what a stage produced of a microbatch was ready.
type Products = HashMap<(Stage, Chunk, Microbatch, Product), u64>;

impl Order {
    /// The order of a step that stages were seen to run, each from its first instruction to its last.
    /// Where stages have several model chunks, these lie in a loop, in a V or as copies of the model,
    /// whichever the times of the instructions speak against least.
    ///
    /// # Errors
    /// If a stage does not run every microbatch once forward and once backward.
    pub fn recorded(stages: &[Vec<Ran>]) -> Result<Self, PlanError> {
        let units = |stage: &Vec<Ran>| stage.iter().map(|ran| ran.unit).collect::<StageOrder>();
        let orders: Vec<_> = stages.iter().map(units).collect();
        let passes = orders.iter().flatten().filter(|unit| is_pass(unit.instruction));
        let last = passes.map(|unit| unit.microbatch.0).max();
        let num_microbatches = last
            .filter(|&last| last < limits::MICROBATCHES)
            .map(|last| last + 1)
            .ok_or_else(|| {
                let problem =
                    "no forward and no backward was reported in a step, or more than 65536";
                refused(0, problem.into())
            })?;
        let check = |placement| {
            orders.iter().enumerate().try_for_each(|(stage, order)| {
                let units = order.iter().map(|&unit| (unit, None));
                let checked = check_order(units, num_microbatches, placement);
                checked.map_err(|Misordered { problem, .. }| refused(stage, problem))
            })
        };
        let chunks = orders.iter().flatten().map(|unit| unit.chunk.0).max().unwrap_or(0) + 1;
        let products = products(stages);
        let early = |placement: &Placement| early(stages, &products, *placement, chunks);
        let can_be = |placement: &Placement| chunks > 1 && check(*placement).is_ok();
        let placement = Placement::ALL.into_iter().filter(can_be).min_by_key(early);
        let placement = placement.unwrap_or_default();
        check(placement)?;
        Ok(Self::plain(orders, num_microbatches, placement))
    }

    /// The schedule that has this order, apart from instructions of fixed time, and the number of its
    /// model chunks; none if it has no name.
    pub fn named(&self, profile: &Profile) -> Option<(Schedule, u16)> {
        let free = |order: &StageOrder| -> StageOrder {
            order.iter().filter(|unit| !unit.instruction.is_fixed()).copied().collect()
        };
        let own: Vec<_> = self.stages.iter().map(free).collect();
        let chunks = own.iter().flatten().map(|unit| unit.chunk.0).max().unwrap_or(0) + 1;
        let settings = Settings { chunks, ..Settings::default() };
        let is_same = |schedule: &Schedule| {
            let order = schedule.order(profile, self.num_microbatches, &settings);
            order.is_ok_and(|order| order.stages == own && order.placement == self.placement)
        };
        Schedule::ALL.into_iter().find(is_same).map(|schedule| (schedule, chunks))
    }

    /// The kinds of instructions of fixed time that it has.
    pub fn fixed(&self) -> Vec<Instruction> {
        let runs =
            |kind: &Instruction| self.stages.iter().flatten().any(|unit| unit.instruction == *kind);
        Instruction::ALL.into_iter().filter(|kind| kind.is_fixed()).filter(runs).collect()
    }
}

fn refused(stage: usize, problem: String) -> PlanError {
    PlanError::OrderFile { place: format!("stage {stage}"), problem }
}

fn placed(stages: &[Vec<Ran>]) -> impl Iterator<Item = (Stage, &Ran)> {
    (0..).map(Stage).zip(stages).flat_map(|(stage, ran)| ran.iter().map(move |ran| (stage, ran)))
}

fn products(stages: &[Vec<Ran>]) -> Products {
    let product = |(stage, ran): (Stage, &Ran)| {
        let Unit { instruction, chunk, microbatch } = ran.unit;
        let key = (stage, chunk, microbatch, instruction.product()?);
        Some((key, ran.ended_ns))
    };
    placed(stages).filter_map(product).collect()
}

/// When what an instruction waits for was ready, if the chunks lie so.
fn awaited(
    (stage, unit): (Stage, Unit),
    products: &Products,
    placement: Placement,
    (num_stages, num_chunks): (usize, u16),
) -> Option<u64> {
    let place = (stage, unit.chunk);
    let input = unit.instruction.input(place, placement, num_stages as u16, num_chunks);
    let (stage, chunk, product) = input?;
    products.get(&(stage, chunk, unit.microbatch, product)).copied()
}

/// How many instructions began before what they would wait for had ended.
fn early(stages: &[Vec<Ran>], products: &Products, placement: Placement, chunks: u16) -> usize {
    let is_early = |(stage, ran): &(Stage, &Ran)| {
        let awaited = awaited((*stage, ran.unit), products, placement, (stages.len(), chunks));
        awaited.is_some_and(|ended_ns| ran.began_ns < ended_ns)
    };
    placed(stages).filter(is_early).count()
}

#[cfg(test)]
mod tests {
    use pfo_vocabulary::{Mhz, Watts};

    use super::*;
    use crate::pipeline::Pipeline;
    use crate::plan::{Plan, PlannedInstruction};
    use crate::profile::measurement::Measurement;
    use crate::replay::replay;
    use crate::replay::timeline::{Span, Timeline};
    use crate::step::delays::Delays;

    const STAGES: u16 = 3;

    /// A profile of these stages, in which a forward takes a second, as every half of a backward.
    fn profile() -> Profile {
        use Instruction::{Backward, BackwardInput, BackwardWeight, Forward, OptimizerStep};

        let kinds = [Forward, Backward, BackwardInput, BackwardWeight, OptimizerStep];
        let rows = (0..STAGES).flat_map(|stage| {
            kinds.map(|kind| {
                let time_s = if kind == Backward { 2.0 } else { 1.0 };
                let measured = Measurement { frequency: Mhz(1400), time_s, energy_j: time_s };
                (Stage(stage), kind, measured)
            })
        });
        Profile::from_measurements(rows).unwrap()
    }

    /// What stages would be seen to run that run this plan.
    fn seen(plan: &Plan) -> Vec<Vec<Ran>> {
        let ns = |s: f64| (1e9 * s).round() as u64;
        let ran = |span: &Span| Ran {
            unit: Unit {
                instruction: span.instruction,
                chunk: span.chunk,
                microbatch: span.microbatch,
            },
            began_ns: ns(span.start_s),
            ended_ns: ns(span.end_s),
        };
        let timeline = Timeline::new(&profile(), plan).unwrap();
        timeline.stages.iter().map(|spans| spans.iter().map(ran).collect()).collect()
    }

    #[test]
    fn the_order_of_every_named_schedule_is_found_by_its_name() {
        for schedule in Schedule::ALL {
            let settings = Settings::default();
            let pipeline = Pipeline::with_settings(&profile(), schedule, 6, &settings);
            let Ok(pipeline) = pipeline else { continue };
            let plan = pipeline.plan(|_| Mhz(1400));
            let order = Order::recorded(&seen(&plan)).unwrap();
            let (found, _) = order.named(&profile()).unwrap();
            let same = |a: Schedule, b: Schedule| {
                a.order(&profile(), 6, &settings).unwrap()
                    == b.order(&profile(), 6, &settings).unwrap()
            };
            assert!(found == schedule || same(found, schedule), "{schedule} was taken for {found}");
            let again = order.pipeline(&profile(), Delays::default()).unwrap().plan(|_| Mhz(1400));
            let time_s = |plan| replay(&profile(), plan, Watts(70.0)).unwrap().iteration_time_s;
            assert!((time_s(&again) - time_s(&plan)).abs() < 1e-9, "{schedule}");
        }
    }

    #[test]
    fn an_order_without_a_name_is_kept_as_it_was_seen_with_its_fixed_instructions() {
        let pipeline = Pipeline::new(&profile(), Schedule::OneForwardOneBackward, 4).unwrap();
        let mut stages = seen(&pipeline.plan(|_| Mhz(1400)));
        for ran in &mut stages {
            let ended_ns = ran.last().unwrap().ended_ns;
            let unit = Unit::new(Instruction::OptimizerStep, 0);
            ran.push(Ran { unit, began_ns: ended_ns, ended_ns: ended_ns + 1 });
        }
        let order = Order::recorded(&stages).unwrap();
        assert_eq!(order.fixed(), [Instruction::OptimizerStep]);
        assert_eq!(order.named(&profile()), Some((Schedule::OneForwardOneBackward, 1)));
        stages[0].swap(1, 2);
        let order = Order::recorded(&stages).unwrap();
        assert_eq!(order.named(&profile()), None);
        let plan = order.pipeline(&profile(), Delays::default()).unwrap().plan(|_| Mhz(1400));
        let units: Vec<_> =
            plan.stages[0].instructions.iter().map(PlannedInstruction::unit).collect();
        assert_eq!(units, stages[0].iter().map(|ran| ran.unit).collect::<Vec<_>>());
    }

    #[test]
    fn one_instruction_around_both_passes_of_a_stage_is_a_step() {
        use Instruction::{Backward, Forward, ForwardBackward, OptimizerStep};

        let ran = |at: u64, kind, microbatch| Ran {
            unit: Unit::new(kind, microbatch),
            began_ns: at,
            ended_ns: at + 1,
        };
        let whole = |m: u32| ran(u64::from(m), ForwardBackward, m);
        let alone = Order::recorded(&[vec![whole(0), whole(1), ran(2, OptimizerStep, 0)]]).unwrap();
        assert_eq!((alone.num_microbatches(), alone.fixed()), (2, vec![OptimizerStep]));
        let clocks = [1000, 1400].map(|mhz| {
            let (time_s, energy_j) = (1400.0 / f64::from(mhz), 1.0);
            let measured = Measurement { frequency: Mhz(mhz), time_s, energy_j };
            (Stage(0), ForwardBackward, measured)
        });
        let step = Measurement { frequency: Mhz(1400), time_s: 0.5, energy_j: 0.1 };
        let rows = clocks.into_iter().chain([(Stage(0), OptimizerStep, step)]);
        let profile = Profile::from_measurements(rows).unwrap();
        let plan = alone.pipeline(&profile, Delays::default()).unwrap().plan(|_| Mhz(1400));
        let time_s = replay(&profile, &plan, Watts(70.0)).unwrap().iteration_time_s;
        assert!((time_s - 2.5).abs() < 1e-9, "{time_s}");

        // The last of two stages may run both passes at once: it waits for the activation of the first.
        let first = vec![ran(0, Forward, 0), ran(9, Backward, 0)];
        let order = Order::recorded(&[first.clone(), vec![ran(4, ForwardBackward, 0)]]).unwrap();
        let rows = |stage: u16, kind| {
            let measured = Measurement { frequency: Mhz(1400), time_s: 1.0, energy_j: 1.0 };
            (Stage(stage), kind, measured)
        };
        let kinds = [Forward, Backward, ForwardBackward];
        let rows = [0, 1].into_iter().flat_map(|stage| kinds.map(|kind| rows(stage, kind)));
        let profile = Profile::from_measurements(rows).unwrap();
        let plan = order.pipeline(&profile, Delays::default()).unwrap().plan(|_| Mhz(1400));
        let time_s = replay(&profile, &plan, Watts(70.0)).unwrap().iteration_time_s;
        assert!((time_s - 3.0).abs() < 1e-9, "{time_s}");

        // The first may not: its backward follows from what the second makes of its forward.
        let order = Order::recorded(&[vec![ran(0, ForwardBackward, 0)], first]).unwrap();
        let refused = order.pipeline(&profile, Delays::default()).unwrap_err().to_string();
        assert!(refused.contains("never made"), "{refused}");
    }

    #[test]
    fn a_step_that_misses_a_backward_is_refused_with_its_stage() {
        let pipeline = Pipeline::new(&profile(), Schedule::GPipe, 2).unwrap();
        let mut stages = seen(&pipeline.plan(|_| Mhz(1400)));
        stages[1].pop();
        let message = Order::recorded(&stages).unwrap_err().to_string();
        assert!(message.contains("stage 1") && message.contains("0 backward"), "{message}");
        assert!(Order::recorded(&[Vec::new()]).is_err());
    }
}

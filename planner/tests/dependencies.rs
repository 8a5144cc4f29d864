//! Orders whose files say what waits for what: plans and their predictions must keep to it.

use std::collections::HashMap;

use crate::noisy_profiles::profiles;
use pfo_planner::{
    Delays, Dependency, Frontier, LowerBound, Options, Order, Pipeline, Plan, Profile, Schedule,
    Settings, Span, Spread, Stage, StageUnit, Timeline, Watts, replay,
};
use proptest::prelude::*;
use proptest::sample::Index;

const P2P_POWER: Watts = Watts(75.0);

fn stage_unit(stage: Stage, span: &Span) -> StageUnit {
    let Span { instruction, microbatch, chunk, .. } = *span;
    StageUnit { stage, instruction, microbatch, chunk }
}

/// A schedule's order as a file, with what is said about it.
fn order(profile: &Profile, schedule: Schedule, microbatches: u32, said: &[Dependency]) -> Order {
    let settings = Settings::default();
    let order = schedule.order(profile, microbatches, &settings).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&order.to_json()).unwrap();
    // What is said must not need the rule of the schedule's own placement.
    json["placement"] = serde_json::json!("loop");
    json["dependencies"] = serde_json::json!(said);
    Order::from_json(json.to_string().as_bytes()).unwrap()
}

fn optimized(pipeline: &Pipeline) -> Frontier {
    let options = Options { plans: 12, spread: Spread::Even };
    Frontier::optimize(pipeline, P2P_POWER, options, &|_| {}).unwrap()
}

/// When each instruction of a plan begins and ends.
fn moments(profile: &Profile, plan: &Plan) -> HashMap<StageUnit, (f64, f64)> {
    let timeline = Timeline::new(profile, plan).unwrap();
    let stages = (0..).map(Stage).zip(&timeline.stages);
    stages
        .flat_map(|(stage, spans)| {
            spans.iter().map(move |span| (stage_unit(stage, span), (span.start_s, span.end_s)))
        })
        .collect()
}

/// What follows from the rule in a step of one chunk or of a V, in words of its own.
fn rule(profile: &Profile, plan: &Plan) -> Vec<Dependency> {
    let num_stages = profile.num_stages();
    let all = moments(profile, plan);
    // Counted down the stages and, on the second chunk, back up.
    let virtual_stage = |unit: &StageUnit| match unit.chunk.0 {
        0 => unit.stage.0,
        _ => 2 * num_stages - 1 - unit.stage.0,
    };
    let last = all.keys().map(virtual_stage).max().unwrap();
    let find = |place: u16, like: &StageUnit, is_backward: bool| {
        let found = all.keys().find(|unit| {
            virtual_stage(unit) == place
                && unit.microbatch == like.microbatch
                && unit.instruction.is_backward() == is_backward
                && (is_backward || unit.instruction.name() == "forward")
        });
        *found.unwrap()
    };
    all.keys()
        .map(|of| {
            let after = match of.instruction.name() {
                "forward" if virtual_stage(of) > 0 => {
                    vec![find(virtual_stage(of) - 1, of, false)]
                }
                "forward" | "recomputation" | "backward_weight" => vec![],
                _ if virtual_stage(of) < last => vec![find(virtual_stage(of) + 1, of, true)],
                _ => vec![find(last, of, false)],
            };
            Dependency { of: *of, after }
        })
        .collect()
}

fn schedules() -> impl Strategy<Value = Schedule> {
    prop::sample::select(vec![
        Schedule::OneForwardOneBackward,
        Schedule::GPipe,
        Schedule::EarlyRecomputation,
        Schedule::ZbH1,
    ])
}

fn delays() -> impl Strategy<Value = Delays> {
    let none_or = |some: std::ops::Range<f64>| prop_oneof![Just(0.0), some];
    (none_or(0.001..0.05), none_or(0.001..0.02)).prop_map(|(transfer_time_s, switch_latency_s)| {
        let set_call_s = 0.3 * switch_latency_s;
        Delays { transfer_time_s, switch_latency_s, set_call_s, ..Delays::default() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_rule_written_out_makes_the_same_frontier(
        profile in profiles(1..=4, 4),
        schedule in prop_oneof![4 => schedules(), 1 => Just(Schedule::ZbV)],
        microbatches in 1_u32..5, delays in delays(),
    ) {
        let settings = Settings { delays, ..Settings::default() };
        let by_rule =
            Pipeline::with_settings(&profile, schedule, microbatches, &settings).unwrap();
        let by_rule = optimized(&by_rule);
        let said = rule(&profile, &by_rule.plan(0).unwrap());
        let order = order(&profile, schedule, microbatches, &said);
        let explicit = optimized(&order.pipeline(&profile, delays).unwrap());
        prop_assert!(explicit.points().eq(by_rule.points()));
    }

    #[test]
    fn every_plan_respects_dependencies_and_costs_its_prediction_from_any_file(
        profile in profiles(2..=4, 4), schedule in schedules(), microbatches in 1_u32..5,
        delays in delays(),
        pairs in prop::collection::vec((any::<Index>(), any::<Index>()), 1..12),
    ) {
        // One that ends before another begins may be waited for: there is at least one such step.
        let plain = order(&profile, schedule, microbatches, &[]);
        let plain = optimized(&plain.pipeline(&profile, delays).unwrap()).plan(0).unwrap();
        let moments_of_plain = moments(&profile, &plain);
        let mut by_start: Vec<_> = moments_of_plain.into_iter().collect();
        by_start.sort_by(|a, b| a.1.0.total_cmp(&b.1.0));
        let mut said = rule(&profile, &plain);
        for (earlier, later) in pairs {
            let (earlier, later) = (earlier.get(&by_start), later.get(&by_start));
            let (of, unit) = (later.0, earlier.0);
            let waiting = said.iter_mut().find(|said| said.of == of).unwrap();
            if earlier.1.1 <= later.1.0 && of != unit && !waiting.after.contains(&unit) {
                waiting.after.push(unit);
            }
        }

        let order = order(&profile, schedule, microbatches, &said);
        let frontier = optimized(&order.pipeline(&profile, delays).unwrap());
        let file = Frontier::from_bytes(&frontier.to_bytes().unwrap()).unwrap();
        prop_assert!(file.plans().eq(frontier.plans()));
        let bound = LowerBound::new(file.pipeline(), P2P_POWER);
        for (place, point) in frontier.plans().enumerate() {
            let plan = file.plan(place).unwrap();
            prop_assert_eq!(&plan, &frontier.plan(place).unwrap());
            let read = Plan::from_json(plan.to_json().unwrap().as_bytes()).unwrap();
            prop_assert_eq!(&read.dependencies, &said);
            let replayed = replay(&profile, &read, P2P_POWER).unwrap();
            prop_assert!((replayed.iteration_time_s - point.iteration_time_s).abs() < 1e-9);
            prop_assert!((replayed.iteration_energy_j - point.iteration_energy_j).abs() < 1e-9);
            prop_assert!(point.iteration_energy_j > bound.energy_j(point.iteration_time_s) - 1e-6);

            let moments = moments(&profile, &read);
            for Dependency { of, after } in &said {
                for unit in after {
                    let crosses = of.stage != unit.stage;
                    let delay_s = if crosses { delays.transfer_time_s } else { 0.0 };
                    prop_assert!(moments[of].0 >= moments[unit].1 + delay_s - 1e-9);
                }
            }
        }
        let fastest_s = frontier.points().next().unwrap().iteration_time_s;
        // Only a clock that comes late keeps the fastest plan from the fastest time.
        prop_assert!(fastest_s > bound.fastest_s() - 1e-6);
        let is_exact = (fastest_s - bound.fastest_s()).abs() < 1e-6;
        prop_assert!(is_exact || delays.switch_latency_s > 0.0);
    }
}

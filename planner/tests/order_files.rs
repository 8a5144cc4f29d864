//! Order files, replayed by a program that knows nothing of this crate but the documented format.

use crate::noisy_profiles::profiles;
use crate::second_replay::{Case, replayed_by_python};
use pfo_planner::{
    Delays, Dependency, Frontier, Instruction, Options, Order, Pipeline, Placement, Profile,
    Schedule, Settings, Spread, Stage, StageUnit, Unit, Watts,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

const P2P_POWER: Watts = Watts(75.0);

/// The order of a schedule as a file, with what is said beside it.
fn order(profile: &Profile, schedule: Schedule, said: &[Dependency], transfer: bool) -> String {
    let microbatches = 2 * 2 * u32::from(profile.num_stages());
    let settings = Settings {
        fixed: vec![Instruction::Load, Instruction::OptimizerStep],
        ..Settings::default()
    };
    let pipeline = Pipeline::with_settings(profile, schedule, microbatches, &settings).unwrap();
    let mut file: serde_json::Value = serde_json::from_str(&pipeline.order().to_json()).unwrap();
    file["dependencies"] = serde_json::json!(said);
    if transfer {
        file["transfer_time_s"] = serde_json::json!(0.007);
    }
    file.to_string()
}

/// Draws one value.
fn one<T>(runner: &mut TestRunner, of: &impl Strategy<Value = T>) -> T {
    of.new_tree(runner).unwrap().current()
}

/// The plan in the middle of the frontier of an order.
fn case(name: &str, profile: &Profile, order: String) -> Case {
    let read = Order::from_json(order.as_bytes()).unwrap();
    let pipeline = read.pipeline(profile, Delays::default()).unwrap();
    let options = Options { plans: 9, spread: Spread::Even };
    let frontier = Frontier::optimize(&pipeline, P2P_POWER, options, &|_| {}).unwrap();
    let plan = frontier.plan(frontier.plans().len() / 2).unwrap();
    Case { name: name.to_owned(), csv: profile.to_csv(), order, plan }
}

#[test]
fn every_order_costs_what_a_second_replay_of_its_file_says() {
    let mut runner = TestRunner::deterministic();
    let mut cases = Vec::new();
    for schedule in Schedule::ALL.into_iter().filter(|&schedule| schedule != Schedule::Custom) {
        for transfer in [false, true] {
            let profile = one(&mut runner, &profiles(4..=4, 3));
            let order = order(&profile, schedule, &[], transfer);
            cases.push(case(schedule.name(), &profile, order));
        }
    }
    // A stage that takes in a microbatch only when the last one has done with another.
    let on = |stage, instruction, microbatch| {
        let Unit { instruction, microbatch, chunk } = Unit::new(instruction, microbatch);
        StageUnit { stage: Stage(stage), instruction, microbatch, chunk }
    };
    let waits = Dependency {
        of: on(2, Instruction::Forward, 6),
        after: vec![on(1, Instruction::Forward, 6), on(3, Instruction::Backward, 2)],
    };
    let free = Dependency { of: on(3, Instruction::Backward, 3), after: Vec::new() };
    let profile = one(&mut runner, &profiles(4..=4, 3));
    let order = order(&profile, Schedule::OneForwardOneBackward, &[waits, free], true);
    cases.push(case("dependencies", &profile, order));
    replayed_by_python(&cases);
}

#[test]
fn a_pair_is_one_instruction_with_one_clock_and_hands_on_both_results_at_its_end() {
    let csv = "stage,instruction,frequency,time,energy\n\
               0,forward,1400,1,100\n0,backward,1400,2,200\n0,forward_backward,1400,2.5,250\n\
               0,backward_input,1400,1,100\n0,backward_weight,1400,1,100\n\
               1,backward_input,1400,1,100\n1,backward_weight,1400,1,100\n\
               1,forward,1400,1,100\n1,backward,1400,2,200\n1,forward_backward,1400,2.5,250\n";
    let profile = Profile::from_csv(csv.as_bytes()).unwrap();
    let pipeline = Pipeline::new(&profile, Schedule::DualPipe, 4).unwrap();
    assert_eq!(pipeline.order().stages()[0].len(), 8);
    let frontier = Frontier::optimize(&pipeline, Watts(50.0), Options::default(), &|_| {}).unwrap();
    let plan = frontier.plan(0).unwrap();
    // Both stages are always busy: F F, F B, F&B, B, the halves of a B.
    let predicted = plan.predicted.unwrap();
    assert_eq!(predicted.iteration_time_s, 1.0 + 1.0 + 1.0 + 2.0 + 2.5 + 2.0 + 1.0 + 1.0);
    assert_eq!(predicted.iteration_energy_j, 2.0 * 100.0 * predicted.iteration_time_s);
    let json = plan.to_json().unwrap();
    assert!(json.contains("\"forward\":{\"microbatch\":"), "{json}");
    assert_eq!(plan.placement, Placement::TwoWay);
    let pairs = plan.stages[0].instructions.iter().filter(|planned| planned.forward.is_some());
    assert_eq!(pairs.count(), 1);
}

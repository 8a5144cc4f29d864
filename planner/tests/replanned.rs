//! A new plan for what is measured now, beside one that is looked up in a frontier that knows
//! nothing of it: profiles that were measured on real GPUs, and a stage that has become slow.

use std::fs::File;

use crate::measured_data::data;
use pfo_planner::{
    Condition, Conditions, Deadline, Due, Frontier, Instruction, Mhz, Options, Pipeline, Plan,
    Prediction, Profile, Schedule, Spread, Stage, Watts, replay,
};

const A100: (&str, Watts) = ("gpt3-175b-a100.csv", Watts(83.64));
const A40: (&str, Watts) = ("gpt3-175b-a40.csv", Watts(70.38));

/// A step that takes longer by no more than this share takes no longer for the agent's look-up.
const LOOKED_UP_LONGER: f64 = 0.01;

fn frontier((name, p2p_power): (&str, Watts), microbatches: u32) -> Option<Frontier> {
    let csv = data(&format!("profiles/{name}"))?;
    let profile = Profile::from_csv(File::open(csv).unwrap()).unwrap();
    let schedule = Schedule::OneForwardOneBackward;
    let pipeline = Pipeline::new(&profile, schedule, microbatches).unwrap();
    let options = Options { plans: 200, spread: Spread::Useful };
    Some(Frontier::optimize(&pipeline, p2p_power, options, &|_| {}).unwrap())
}

fn plan(frontier: &Frontier, deadline: &str) -> Plan {
    let deadline: Deadline = deadline.parse().unwrap();
    frontier.plan(frontier.pick(deadline).unwrap()).unwrap()
}

/// Both instructions of a stage.
fn stage(stage: u16, condition: Condition) -> Conditions {
    [Instruction::Forward, Instruction::Backward]
        .map(|instruction| ((Stage(stage), instruction), condition))
        .into()
}

fn under(frontier: &Frontier, conditions: &Conditions, plan: &Plan) -> Prediction {
    let profile = frontier.pipeline().profile().under(conditions).unwrap();
    replay(&profile, plan, frontier.p2p_power()).unwrap().into()
}

/// The slowest plan in which the slow stage keeps its clocks and the step takes no longer.
fn looked_up(frontier: &Frontier, conditions: &Conditions, own: &Plan) -> Plan {
    let slow = conditions.keys().next().unwrap().0.index();
    let most_s = under(frontier, conditions, own).iteration_time_s * (1.0 + LOOKED_UP_LONGER);
    let plans = (0..frontier.plans().len()).map(|place| {
        let mut plan = frontier.plan(place).unwrap();
        plan.stages[slow].clone_from(&own.stages[slow]);
        plan
    });
    let mut in_time =
        plans.filter(|plan| under(frontier, conditions, plan).iteration_time_s <= most_s);
    in_time.next_back().unwrap_or_else(|| own.clone())
}

/// Percent of energy that a plan saves beside another.
fn saved(plan: Prediction, own: Prediction) -> f64 {
    100.0 * (1.0 - plan.iteration_energy_j / own.iteration_energy_j)
}

#[test]
fn in_the_time_of_a_plan_that_is_looked_up_a_new_one_saves_points_more() {
    const LEAST_POINTS: f64 = 2.0;
    let mut more = Vec::new();
    for gpu in [A100, A40] {
        let Some(frontier) = frontier(gpu, 12) else { return };
        for (slow, factor) in [(0, 1.15), (0, 1.3), (3, 1.15), (7, 1.15)] {
            for deadline in ["fastest", "1.02x"] {
                let own = plan(&frontier, deadline);
                let conditions = stage(slow, Condition::Slowed(factor));
                let looked_up = looked_up(&frontier, &conditions, &own);
                let looked_up = under(&frontier, &conditions, &looked_up);
                let most_s = looked_up.iteration_time_s;
                let new = frontier.replanned(Some(&own), &conditions, Due::AtMost(most_s)).unwrap();
                let predicted = under(&frontier, &conditions, &new);
                assert_eq!(new.predicted, Some(predicted));
                assert!(predicted.iteration_time_s <= most_s * (1.0 + 1e-6));
                let points = saved(predicted, under(&frontier, &conditions, &own))
                    - saved(looked_up, under(&frontier, &conditions, &own));
                assert!(points > -0.02, "stage {slow} x{factor} {deadline}: {points}");
                more.push(points);
            }
        }
    }
    let mean = more.iter().sum::<f64>() / more.len() as f64;
    assert!(mean > LEAST_POINTS, "{mean}: {more:?}");
}

#[test]
fn a_slow_stage_that_is_not_throttled_gets_the_time_back() {
    let Some(frontier) = frontier(A100, 12) else { return };
    let own = plan(&frontier, "fastest");
    let conditions = stage(0, Condition::Slowed(1.15));
    let before = under(&frontier, &conditions, &own);
    let asked_s = own.predicted.unwrap().iteration_time_s;
    let new = frontier
        .replanned(Some(&own), &conditions, Due::AtMost(asked_s))
        .unwrap()
        .predicted
        .unwrap();
    let gained = 1.0 - new.iteration_time_s / before.iteration_time_s;
    assert!(gained > 0.05, "{gained}");
    assert!(new.iteration_energy_j < before.iteration_energy_j);
}

#[test]
fn beside_a_stage_that_is_held_at_a_clock_the_others_give_up_what_they_would_wait_for() {
    for (gpu, held) in [(A100, 900), (A40, 1005)] {
        let Some(frontier) = frontier(gpu, 12) else { return };
        let own = plan(&frontier, "fastest");
        let conditions = [Instruction::Forward, Instruction::Backward]
            .map(|instruction| {
                let row = frontier.pipeline().profile().at(Stage(0), instruction, Mhz(held));
                ((Stage(0), instruction), Condition::Held(row.unwrap().time_s))
            })
            .into();
        let looked_up = looked_up(&frontier, &conditions, &own);
        let looked_up = under(&frontier, &conditions, &looked_up);
        let most_s = looked_up.iteration_time_s;
        let new = frontier.replanned(Some(&own), &conditions, Due::AtMost(most_s)).unwrap();
        let points = saved(new.predicted.unwrap(), looked_up);
        assert!(points > 0.5, "{}: {points}", gpu.0);
        for (new, own) in new.stages[0].instructions.iter().zip(&own.stages[0].instructions) {
            if own.frequency_mhz > Mhz(held) {
                assert_eq!(new, own, "that it is held shows there");
            }
        }
    }
}

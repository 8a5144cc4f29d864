//! What must hold for every profile, however noisy: checked on small random ones.

use pfo_planner::{
    Deadline, Due, Frontier, Instruction, LowerBound, Measurement, Mhz, Options, Pipeline, Plan,
    Point, Prediction, Profile, Schedule, Spread, Stage, Straggler, Watts, replay,
};
use proptest::prelude::*;

const P2P_POWER: Watts = Watts(75.0);

/// Of sums of a few dozen energies.
const ROUNDING_J: f64 = 1e-6;

/// Rows of forward and of backward of each stage.
type Tables = Vec<[Vec<(f64, f64)>; 2]>;

/// Tables of any shape, noise included: time need not rise nor energy fall as clocks fall.
fn tables(stages: std::ops::RangeInclusive<usize>, clocks: usize) -> impl Strategy<Value = Tables> {
    let table = || prop::collection::vec((times_s(), 1.0_f64..60.0), 1..=clocks);
    prop::collection::vec([table(), table()], stages)
}

/// Seconds, as averages are: no multiples of anything.
fn times_s() -> impl Strategy<Value = f64> {
    0.01_f64..0.2
}

fn profile(tables: &Tables) -> Profile {
    let mut rows = Vec::new();
    for (stage, tables) in (0..).map(Stage).zip(tables) {
        let instructions = [Instruction::Forward, Instruction::Backward];
        for (instruction, table) in instructions.into_iter().zip(tables) {
            for (index, &(time_s, energy_j)) in (0..).zip(table) {
                let frequency = Mhz(1400 - 15 * index);
                rows.push((stage, instruction, Measurement { frequency, time_s, energy_j }));
            }
        }
    }
    Profile::from_measurements(rows).unwrap()
}

fn optimized(profile: &Profile, microbatches: u32) -> (Frontier, LowerBound) {
    let schedule = Schedule::OneForwardOneBackward;
    let pipeline = Pipeline::new(profile, schedule, microbatches).unwrap();
    let options = Options { plans: 24, spread: Spread::Even };
    let frontier = Frontier::optimize(&pipeline, P2P_POWER, options, &|_| {}).unwrap();
    (frontier, LowerBound::new(&pipeline, P2P_POWER))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_plan_costs_what_it_says_when_it_is_replayed(tables in tables(1..=4, 6), m in 1_u32..6) {
        let profile = profile(&tables);
        let (frontier, _) = optimized(&profile, m);
        for (place, point) in frontier.plans().enumerate() {
            let plan = frontier.plan(place).unwrap();
            let replayed = replay(&profile, &plan, P2P_POWER).unwrap();
            prop_assert!((replayed.iteration_time_s - point.iteration_time_s).abs() < 1e-9);
            prop_assert!((replayed.iteration_energy_j - point.iteration_energy_j).abs() < 1e-9);
            let predicted = plan.predicted.unwrap();
            prop_assert_eq!(predicted.iteration_time_s, point.iteration_time_s);
            prop_assert_eq!(predicted.iteration_energy_j, point.iteration_energy_j);
            let read = Plan::from_json(plan.to_json().unwrap().as_bytes()).unwrap();
            prop_assert_eq!(read.stages, plan.stages);
        }
    }

    #[test]
    fn no_plan_takes_less_energy_than_the_bound(tables in tables(1..=4, 6), m in 1_u32..6) {
        let (frontier, bound) = optimized(&profile(&tables), m);
        for point in frontier.plans() {
            let least_j = bound.energy_j(point.iteration_time_s);
            prop_assert!(point.iteration_energy_j > least_j - ROUNDING_J, "{point:?} {least_j}");
            prop_assert!(point.iteration_time_s > bound.fastest_s() - 1e-9);
        }
    }

    #[test]
    fn points_go_from_the_fastest_time_to_the_least_energy_without_a_step_back(
        tables in tables(1..=4, 6), m in 1_u32..6,
    ) {
        let (frontier, bound) = optimized(&profile(&tables), m);
        let points: Vec<Point> = frontier.points().collect();
        prop_assert!((points[0].iteration_time_s - bound.fastest_s()).abs() < 1e-6);
        for pair in points.windows(2) {
            prop_assert!(pair[0].iteration_time_s < pair[1].iteration_time_s);
            prop_assert!(pair[0].iteration_energy_j > pair[1].iteration_energy_j);
        }
        let least = points[points.len() - 1].iteration_energy_j;
        for point in frontier.plans() {
            prop_assert!(point.iteration_energy_j >= least);
        }
    }

    #[test]
    fn the_plan_for_a_deadline_keeps_it(
        tables in tables(1..=4, 6), m in 1_u32..6, factor in 1.0_f64..2.0,
    ) {
        let profile = profile(&tables);
        let (frontier, _) = optimized(&profile, m);
        let fastest = frontier.points().next().unwrap().iteration_time_s;
        let place = frontier.pick(Deadline::Factor(factor)).unwrap();
        let replayed = replay(&profile, &frontier.plan(place).unwrap(), P2P_POWER).unwrap();
        prop_assert!(replayed.iteration_time_s <= factor * fastest + 1e-9);
    }

    #[test]
    fn a_plan_that_is_made_for_a_time_keeps_it_and_is_no_worse_than_one_that_is_looked_up(
        tables in tables(1..=4, 6), m in 1_u32..6, factor in 1.0_f64..2.0,
    ) {
        let profile = profile(&tables);
        let (frontier, bound) = optimized(&profile, m);
        let until_s = frontier.seconds(Deadline::Factor(factor));
        let waiting_w = P2P_POWER.0 * tables.len() as f64;
        let straggler = Straggler::new(factor).unwrap();
        for (due, place, waiting_w) in [
            (Due::AtMost(until_s), frontier.pick(Deadline::Factor(factor)).unwrap(), 0.0),
            (frontier.due_for(straggler), frontier.pick_for_straggler(straggler).unwrap(), waiting_w),
        ] {
            let made = frontier.plan_for(due).unwrap();
            let replayed: Prediction = replay(&profile, &made, P2P_POWER).unwrap().into();
            prop_assert_eq!(made.predicted, Some(replayed));
            prop_assert!(replayed.iteration_time_s <= until_s);
            let until_j = |plan: Prediction| {
                plan.iteration_energy_j + waiting_w * (until_s - plan.iteration_time_s)
            };
            let looked_up = frontier.plan(place).unwrap().predicted.unwrap();
            prop_assert!(until_j(replayed) <= until_j(looked_up));
            if waiting_w > 0.0 {
                prop_assert!(until_j(replayed) > bound.energy_j(until_s) - ROUNDING_J);
            }
        }
    }

    #[test]
    fn the_slowest_plan_has_every_instruction_at_the_clock_that_takes_least(
        tables in tables(1..=4, 6), m in 1_u32..6,
    ) {
        let (frontier, _) = optimized(&profile(&tables), m);
        let slowest = frontier.plans().last().unwrap();
        let waiting_w = P2P_POWER.0 * tables.len() as f64;
        let effective_j = slowest.iteration_energy_j - waiting_w * slowest.iteration_time_s;
        let least_j = |table: &Vec<(f64, f64)>| {
            let effective = table.iter().map(|(time_s, joules)| joules - P2P_POWER.0 * time_s);
            f64::from(m) * effective.fold(f64::INFINITY, f64::min)
        };
        let least_j: f64 = tables.iter().flatten().map(least_j).sum();
        prop_assert!((effective_j - least_j).abs() < ROUNDING_J, "{effective_j} {least_j}");
    }

    #[test]
    fn every_frequency_is_one_that_was_measured(tables in tables(1..=4, 6), m in 1_u32..6) {
        let profile = profile(&tables);
        let (frontier, _) = optimized(&profile, m);
        for place in 0..frontier.plans().len() {
            for stage in frontier.plan(place).unwrap().stages {
                for planned in stage.instructions {
                    let row = profile.at(stage.stage, planned.instruction, planned.frequency_mhz);
                    prop_assert!(row.is_some());
                }
            }
        }
    }
}

#[test]
fn a_time_that_is_no_multiple_of_a_ns_is_no_reason_for_a_faster_clock() {
    let table = |fast_s: f64, slow_s: f64| vec![(fast_s, 40.0), (slow_s, 30.0)];
    let tables = vec![[table(0.050_000_000_4, 0.056_000_000_4), table(0.1, 0.112_000_000_7)]; 2];
    for m in [1, 4] {
        let (frontier, _) = optimized(&profile(&tables), m);
        let plan = frontier.plan(frontier.pick(Deadline::MinEnergy).unwrap()).unwrap();
        for planned in plan.stages.iter().flat_map(|stage| &stage.instructions) {
            assert_eq!(planned.frequency_mhz, Mhz(1385), "{m}");
        }
    }
}

/// Every plan there is, as (time, energy).
fn exhaustively(profile: &Profile, plan: &Plan) -> Vec<Point> {
    let mut plan = plan.clone();
    let slots: Vec<(usize, usize)> = (0..plan.stages.len())
        .flat_map(|s| (0..plan.stages[s].instructions.len()).map(move |i| (s, i)))
        .collect();
    let clocks: Vec<Vec<Mhz>> = slots
        .iter()
        .map(|&(s, i)| {
            let instruction = plan.stages[s].instructions[i].instruction;
            let table = profile.table(plan.stages[s].stage, instruction);
            table.iter().map(|row| row.frequency).collect()
        })
        .collect();
    let mut digits = vec![0; slots.len()];
    let mut points = Vec::new();
    loop {
        for ((&(s, i), &digit), clocks) in slots.iter().zip(&digits).zip(&clocks) {
            plan.stages[s].instructions[i].frequency_mhz = clocks[digit];
        }
        let replayed = replay(profile, &plan, P2P_POWER).unwrap();
        points.push(Point {
            iteration_time_s: replayed.iteration_time_s,
            iteration_energy_j: replayed.iteration_energy_j,
        });
        let Some(next) = (0..digits.len()).find(|&d| digits[d] + 1 < clocks[d].len()) else {
            return points;
        };
        digits[..next].fill(0);
        digits[next] += 1;
    }
}

/// Checks the bound and the frontier against all plans; returns the worst excess energy (share)
/// of ours over the best plan that is no slower.
fn excess_over_optimum(profile: &Profile, microbatches: u32) -> f64 {
    let (frontier, bound) = optimized(profile, microbatches);
    let all = exhaustively(profile, &frontier.plan(0).unwrap());
    for point in &all {
        let least_j = bound.energy_j(point.iteration_time_s);
        assert!(point.iteration_energy_j > least_j - ROUNDING_J);
    }
    let fastest = all.iter().map(|p| p.iteration_time_s).fold(f64::INFINITY, f64::min);
    let points: Vec<Point> = frontier.points().collect();
    assert!((points[0].iteration_time_s - fastest).abs() < 1e-9, "the fastest time is exact");
    let worst = points.iter().map(|ours| {
        let no_slower = all.iter().filter(|p| p.iteration_time_s <= ours.iteration_time_s + 1e-9);
        let optimum = no_slower.map(|p| p.iteration_energy_j).fold(f64::INFINITY, f64::min);
        assert!(ours.iteration_energy_j > optimum - ROUNDING_J, "no plan beats all plans");
        ours.iteration_energy_j / optimum - 1.0
    });
    worst.fold(0.0, f64::max)
}

#[test]
fn on_a_tiny_regular_pipeline_plans_are_within_two_percent_of_the_exhaustive_optimum() {
    let profile = profile(&vec![
        [vec![(0.050, 20.0), (0.056, 17.0), (0.068, 15.5)], vec![(0.100, 41.0), (0.115, 35.0)]],
        [vec![(0.060, 25.0), (0.070, 21.0)], vec![(0.120, 50.0), (0.133, 45.0), (0.155, 41.0)]],
    ]);
    let excess = excess_over_optimum(&profile, 2);
    assert!(excess < 0.02, "{excess}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn on_tiny_random_pipelines_plans_are_close_to_the_exhaustive_optimum(
        two in tables(2..=2, 2),
        three in tables(2..=2, 2),
    ) {
        prop_assert!(excess_over_optimum(&profile(&two), 3) < 0.15);
        prop_assert!(excess_over_optimum(&profile(&three), 1) < 0.15);
    }
}

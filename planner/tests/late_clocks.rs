//! Plans made for late clocks beside those that know nothing of them, both replayed with late
//! clocks.

use crate::measured_data::data;
use pfo_planner::{
    Delays, Due, Frontier, Instruction, LowerBound, Measurement, Mhz, Options, Pipeline, Point,
    Profile, Schedule, Settings, Spread, Stage, Watts, replay,
};
use proptest::prelude::*;

/// What a driver takes to change a clock.
const LATENCY_S: f64 = 0.015;

fn pipeline(profile: &Profile, microbatches: u32, switch_latency_s: f64) -> Pipeline {
    let delays = Delays { switch_latency_s, ..Delays::default() };
    let settings = Settings { delays, ..Settings::default() };
    let schedule = Schedule::OneForwardOneBackward;
    Pipeline::with_settings(profile, schedule, microbatches, &settings).unwrap()
}

fn optimized(pipeline: &Pipeline, p2p_power: Watts, plans: usize) -> Frontier {
    let options = Options { plans, spread: Spread::Useful };
    Frontier::optimize(pipeline, p2p_power, options, &|_| {}).unwrap()
}

/// Forward and backward of each stage: seconds at the highest clock, how much of them grows as the
/// clock falls, and how much of the power falls with it.
type Tables = Vec<[(f64, f64, f64); 2]>;

fn profile(stages: &Tables) -> Profile {
    const HIGHEST: f64 = 1400.0;
    let mut rows = Vec::new();
    for (stage, tables) in (0..).map(Stage).zip(stages) {
        let instructions = [Instruction::Forward, Instruction::Backward];
        for (instruction, &(shortest_s, bound, dynamic)) in instructions.into_iter().zip(tables) {
            for mhz in (800..=1400).step_by(100) {
                let ratio = HIGHEST / f64::from(mhz);
                let time_s = shortest_s * (1.0 - bound + bound * ratio);
                let power_w = 90.0 + 250.0 * (1.0 - dynamic + dynamic / ratio.powi(3));
                let energy_j = power_w * time_s;
                let measured = Measurement { frequency: Mhz(mhz), time_s, energy_j };
                rows.push((stage, instruction, measured));
            }
        }
    }
    Profile::from_measurements(rows).unwrap()
}

/// The plans that know nothing of late clocks, as late clocks run them, by rising time.
fn surprised(profile: &Profile, microbatches: u32, p2p_power: Watts, plans: usize) -> Vec<Point> {
    let prompt = optimized(&pipeline(profile, microbatches, 0.0), p2p_power, plans);
    let mut points: Vec<Point> = (0..prompt.plans().len())
        .map(|place| {
            let mut plan = prompt.plan(place).unwrap();
            plan.delays.switch_latency_s = LATENCY_S;
            let replayed = replay(profile, &plan, p2p_power).unwrap();
            Point {
                iteration_time_s: replayed.iteration_time_s,
                iteration_energy_j: replayed.iteration_energy_j,
            }
        })
        .collect();
    points.sort_by(|a, b| a.iteration_time_s.total_cmp(&b.iteration_time_s));
    points
}

/// Joules that the frontier's plan of no more time takes less than each of the points, if waiting
/// for the point's time is paid for.
fn savings_j(frontier: &Frontier, points: &[Point], p2p_power: Watts) -> Vec<f64> {
    let waiting_w = p2p_power.0 * f64::from(frontier.pipeline().profile().num_stages());
    let saving_j = |point: &Point| {
        let in_time =
            frontier.plans().filter(|ours| ours.iteration_time_s <= point.iteration_time_s + 1e-9);
        let ours_j = in_time.map(|ours| {
            let waited_s = point.iteration_time_s - ours.iteration_time_s;
            ours.iteration_energy_j + waiting_w * waited_s
        });
        point.iteration_energy_j - ours_j.fold(f64::INFINITY, f64::min)
    };
    points.iter().map(saving_j).collect()
}

/// The same for plans that are made for each point's time.
fn savings_of_made_j(frontier: &Frontier, points: &[Point]) -> Vec<f64> {
    let saving_j = |point: &Point| {
        let until_s = point.iteration_time_s + 1e-9;
        let made = frontier.plan_for(Due::Waiting(until_s)).unwrap();
        point.iteration_energy_j - frontier.energy_until_j(&made, until_s)
    };
    points.iter().map(saving_j).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_plan_for_late_clocks_is_never_worse_than_one_that_knows_nothing_of_them(
        stages in prop::collection::vec(
            prop::array::uniform2((0.02_f64..0.1, 0.3_f64..1.0, 0.3_f64..1.0)),
            2..=4,
        ),
        microbatches in 2_u32..6,
    ) {
        let (profile, p2p_power) = (profile(&stages), Watts(80.0));
        let late = pipeline(&profile, microbatches, LATENCY_S);
        let bound = LowerBound::new(&late, p2p_power);
        let frontier = optimized(&late, p2p_power, 20);
        for (place, point) in frontier.plans().enumerate() {
            let plan = frontier.plan(place).unwrap();
            let replayed = replay(&profile, &plan, p2p_power).unwrap();
            prop_assert!((replayed.iteration_time_s - point.iteration_time_s).abs() < 1e-9);
            prop_assert!((replayed.iteration_energy_j - point.iteration_energy_j).abs() < 1e-9);
            prop_assert!(point.iteration_energy_j > bound.energy_j(point.iteration_time_s) - 1e-6);
        }
        let unaware = surprised(&profile, microbatches, p2p_power, 20);
        for saving_j in savings_j(&frontier, &unaware, p2p_power) {
            prop_assert!(saving_j > -1e-6, "{saving_j} J");
        }
        let fastest_s = frontier.plans().next().unwrap().iteration_time_s;
        prop_assert!(fastest_s < bound.fastest_s() + 1e-6, "nothing is late at the highest clocks");
    }
}

#[test]
fn where_stages_alternate_between_clocks_plans_for_late_ones_save_energy() {
    // Short forwards that hardly need the clock, backwards that live on it.
    let stage = |scale: f64| [(0.02 * scale, 0.3, 1.0), (0.04 * scale, 1.0, 0.4)];
    let profile = profile(&[1.0, 0.9, 0.95, 1.1].map(stage).to_vec());
    let p2p_power = Watts(80.0);
    let unaware = surprised(&profile, 8, p2p_power, 40);
    let frontier = optimized(&pipeline(&profile, 8, LATENCY_S), p2p_power, 40);
    let savings_j = savings_j(&frontier, &unaware, p2p_power);
    let mean_j = savings_j.iter().sum::<f64>() / savings_j.len() as f64;
    let share = mean_j / unaware[0].iteration_energy_j;
    assert!(share > 0.003, "{:.3} % saved", 100.0 * share);
}

#[test]
fn on_measured_profiles_plans_for_late_clocks_are_nowhere_worse_and_save_energy() {
    for (file, power_w) in [("gpt3-175b-a100.csv", 83.64), ("gpt3-175b-a40.csv", 70.38)] {
        let Some(csv) = data(&format!("profiles/{file}")) else { return };
        let profile = Profile::from_csv(std::fs::File::open(csv).unwrap()).unwrap();
        let p2p_power = Watts(power_w);
        let unaware = surprised(&profile, 8, p2p_power, 20);
        let frontier = optimized(&pipeline(&profile, 8, LATENCY_S), p2p_power, 20);
        let savings_j = savings_j(&frontier, &unaware, p2p_power);
        assert!(savings_j.iter().all(|&saving_j| saving_j > -1e-6), "{file}: {savings_j:?}");
        let savings_j = savings_of_made_j(&frontier, &unaware);
        let mean_j = savings_j.iter().sum::<f64>() / savings_j.len() as f64;
        let share = mean_j / unaware[0].iteration_energy_j;
        assert!(share > 0.0002, "{file}: {:.3} % saved", 100.0 * share);
    }
}

//! The frontier of profiles that were measured on real GPUs, judged by the yardstick in Python.

use std::fs::{self, File};
use std::path::Path;

use crate::measured_data::data;
use crate::yardstick::judged_by_python;
use pfo_planner::{
    Deadline, Due, Frontier, LowerBound, Options, Pipeline, Point, Profile, Schedule, Spread,
    Watts, replay,
};

const A100: (&str, Watts) = ("gpt3-175b-a100.csv", Watts(83.64));
const A40: (&str, Watts) = ("gpt3-175b-a40.csv", Watts(70.38));

fn pipeline(csv: &Path, microbatches: u32) -> Pipeline {
    let profile = Profile::from_csv(File::open(csv).unwrap()).unwrap();
    Pipeline::new(&profile, Schedule::OneForwardOneBackward, microbatches).unwrap()
}

fn frontier(pipeline: &Pipeline, p2p_power: Watts, plans: usize, spread: Spread) -> Frontier {
    Frontier::optimize(pipeline, p2p_power, Options { plans, spread }, &|_| {}).unwrap()
}

#[test]
fn the_python_yardstick_agrees_with_every_prediction() {
    for (name, p2p_power) in [A100, A40] {
        let Some(csv) = data(&format!("profiles/{name}")) else { return };
        let frontier = frontier(&pipeline(&csv, 12), p2p_power, 6, Spread::Useful);
        let directory = tempfile::tempdir().unwrap();
        for (place, point) in frontier.plans().enumerate() {
            let path = directory.path().join("plan.json");
            fs::write(&path, frontier.plan(place).unwrap().to_json().unwrap()).unwrap();
            let Some((time_s, energy_j)) = judged_by_python(&csv, &path) else { return };
            assert!((time_s - point.iteration_time_s).abs() < 1e-9, "{name} {place}");
            assert!(
                (energy_j - point.iteration_energy_j).abs() < 1e-9 * energy_j,
                "{name} {place}"
            );
        }
    }
}

#[test]
fn the_bound_has_the_ends_that_the_reference_gives() {
    let Some(csv) = data("profiles/gpt3-175b-a100.csv") else { return };
    let bound = LowerBound::new(&pipeline(&csv, 12), A100.1);
    assert!((bound.fastest_s() - 2.837).abs() < 1e-3, "{}", bound.fastest_s());
    assert!((bound.cheapest_s() - 3.274).abs() < 1e-3, "{}", bound.cheapest_s());
    assert!((bound.slowest_s() - 4.244).abs() < 1e-3, "{}", bound.slowest_s());
}

#[test]
fn plans_lie_above_the_bound_and_close_to_it() {
    for ((name, p2p_power), most_percent) in [(A100, 0.3), (A40, 1.0)] {
        let Some(csv) = data(&format!("profiles/{name}")) else { return };
        let pipeline = pipeline(&csv, 12);
        let bound = LowerBound::new(&pipeline, p2p_power);
        let frontier = frontier(&pipeline, p2p_power, 40, Spread::Even);
        for Point { iteration_time_s, iteration_energy_j } in frontier.points() {
            let gap_percent = 100.0 * (iteration_energy_j / bound.energy_j(iteration_time_s) - 1.0);
            assert!(
                (-1e-3..most_percent).contains(&gap_percent),
                "{name} {iteration_time_s}: {gap_percent} %"
            );
        }
    }
}

#[test]
fn plans_for_a_time_are_close_to_the_bound_with_the_wait_until_then() {
    const DEADLINES: u32 = 100;
    const MOST_BEYOND_CHEAPEST_PERCENT: f64 = 0.08;
    for (name, p2p_power) in [A100, A40] {
        let Some(csv) = data(&format!("profiles/{name}")) else { return };
        let pipeline = pipeline(&csv, 12);
        let bound = LowerBound::new(&pipeline, p2p_power);
        let frontier = frontier(&pipeline, p2p_power, 200, Spread::Useful);
        let fastest_s = frontier.seconds(Deadline::Fastest);
        let mut beyond_percent = Vec::new();
        for number in 0..DEADLINES {
            let slower = 0.6 * f64::from(number) / f64::from(DEADLINES - 1);
            let until_s = fastest_s * (1.0 + slower);
            let plan = frontier.plan_for(Due::Waiting(until_s)).unwrap().predicted.unwrap();
            let wait_j = 8.0 * p2p_power.0 * (until_s - plan.iteration_time_s);
            assert!(wait_j >= 0.0, "{name} {until_s}");
            let until_j = plan.iteration_energy_j + wait_j;
            let percent = 100.0 * (until_j / bound.energy_j(until_s) - 1.0);
            assert!((-1e-3..0.8).contains(&percent), "{name} {until_s}: {percent} %");
            if until_s > bound.cheapest_s() {
                beyond_percent.push(percent);
            }
        }
        let mean = beyond_percent.iter().sum::<f64>() / beyond_percent.len() as f64;
        assert!(mean < MOST_BEYOND_CHEAPEST_PERCENT, "{name}: {mean} % in {beyond_percent:?}");
    }
}

#[test]
fn where_lowtimes_claims_are_possible_a_plan_matches_them_to_two_per_mille() {
    let Some(csv) = data("profiles/gpt3-175b-a100.csv") else { return };
    let Some(claims) = data("frontiers/lowtime-gpt3-175b-a100-8x12.csv") else { return };
    let frontier = frontier(&pipeline(&csv, 12), A100.1, 60, Spread::Useful);
    let mut claims: Vec<(f64, f64)> = fs::read_to_string(claims)
        .unwrap()
        .lines()
        .skip(1)
        .map(|line| line.split_once(',').unwrap())
        .map(|(time, energy)| (time.parse().unwrap(), energy.parse().unwrap()))
        .collect();
    claims.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut compared = 0;
    // Its fastest claims lie below the bound: no plan takes so little.
    let fastest_s = frontier.points().next().unwrap().iteration_time_s;
    for &(time_s, claimed_j) in claims.iter().filter(|claim| claim.0 > 1.04 * fastest_s) {
        let plan = frontier.plan(frontier.pick(Deadline::Seconds(time_s)).unwrap()).unwrap();
        let ours = replay(frontier.pipeline().profile(), &plan, A100.1).unwrap();
        assert!(ours.iteration_time_s <= time_s);
        assert!(ours.iteration_energy_j < 1.002 * claimed_j, "{time_s} s");
        compared += 1;
    }
    assert!(compared > 100);
}

#[test]
fn the_fastest_time_beats_the_highest_clocks_where_these_are_dominated() {
    // No instruction of the measured profiles is as bad as that; the rule must hold anyway.
    let csv = "stage,instruction,frequency,time,energy\n\
               0,forward,1740,0.11,34\n0,forward,1575,0.10,30\n0,backward,1740,0.2,60\n";
    let profile = Profile::from_csv(csv.as_bytes()).unwrap();
    let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, 3).unwrap();
    let frontier = frontier(&pipeline, Watts(70.0), 5, Spread::Useful);
    let fastest_s = frontier.points().next().unwrap().iteration_time_s;
    assert!((fastest_s - 0.9).abs() < 1e-9, "{fastest_s}");
}

#[test]
fn a_frontier_file_takes_less_than_a_byte_for_each_operation_of_a_plan() {
    let Some(csv) = data("profiles/gpt3-175b-a100.csv") else { return };
    let pipeline = pipeline(&csv, 12);
    let frontier = frontier(&pipeline, A100.1, 80, Spread::Even);
    let bytes = frontier.to_bytes().unwrap();
    // 3,495 plans of 8 x 96 are 5.4 million; 0.7 of a byte each keeps them under 4 MiB.
    let plans = frontier.plans().len();
    assert!(bytes.len() < plans * 8 * 2 * 12 * 7 / 10, "{} for {plans} plans", bytes.len());
    let read = Frontier::from_bytes(&bytes).unwrap();
    assert!(read.points().eq(frontier.points()));
    assert_eq!(read.plan(7).unwrap(), frontier.plan(7).unwrap());
}

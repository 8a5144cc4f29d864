//! How long the exact frontier and a number of plans take, and how far the plans are from the
//! lower bound: `frontier_speed PROFILE.csv MICROBATCHES WATTS [PLANS]` prints one JSON object.

use std::error::Error;
use std::fs::File;
use std::time::Instant;

use pfo_planner::{
    Frontier, LowerBound, Options, Pipeline, Point, Profile, Schedule, Spread, Watts,
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [csv, microbatches, watts, more @ ..] = &arguments[..] else {
        return Err("usage: frontier_speed PROFILE.csv MICROBATCHES WATTS [PLANS]".into());
    };
    let plans = more.first().map_or(Ok(100), |plans| plans.parse())?;
    let p2p_power = Watts(watts.parse()?);

    let began = Instant::now();
    let profile = Profile::from_csv(File::open(csv)?)?;
    let schedule = Schedule::OneForwardOneBackward;
    let pipeline = Pipeline::new(&profile, schedule, microbatches.parse()?)?;
    let read_s = began.elapsed().as_secs_f64();

    let began = Instant::now();
    let bound = LowerBound::new(&pipeline, p2p_power);
    let exact_s = began.elapsed().as_secs_f64();

    let options = Options { plans, spread: Spread::Even };
    let began = Instant::now();
    let frontier = Frontier::optimize(&pipeline, p2p_power, options, &|_| {})?;
    let plans_s = began.elapsed().as_secs_f64();

    let gaps = gaps_percent(&frontier, &bound, p2p_power);
    let mean = |gaps: &[f64]| gaps.iter().sum::<f64>() / gaps.len() as f64;
    let worst = |gaps: &[f64]| gaps.iter().copied().fold(0.0, f64::max);
    let parts: Vec<_> = [(0, 5), (5, 15), (15, 30), (30, 60), (60, 100)]
        .iter()
        .map(|&(from, to)| {
            let part = &gaps[from..to];
            serde_json::json!({"from": from, "to": to, "mean": mean(part), "worst": worst(part)})
        })
        .collect();
    println!(
        "{:#}",
        serde_json::json!({
            "profile": csv,
            "stages": profile.num_stages(),
            "microbatches": pipeline.num_microbatches(),
            "read_s": read_s,
            "exact_frontier_s": exact_s,
            "exact_frontier_pieces": bound.pieces(),
            "plans": plans,
            "plans_s": plans_s,
            "gap_percent": {"mean": mean(&gaps), "worst": worst(&gaps), "by_percent_of_range": parts},
        })
    );
    Ok(())
}

/// How much more energy than the lower bound the best plan takes at 100 deadlines, evenly from the
/// fastest to the slowest, all stages waiting until the deadline.
fn gaps_percent(frontier: &Frontier, bound: &LowerBound, p2p_power: Watts) -> Vec<f64> {
    let points: Vec<Point> = frontier.plans().collect();
    let idle_w = p2p_power.0 * f64::from(frontier.pipeline().profile().num_stages());
    // The bound is early by less than a ns per instruction.
    let fastest_s = bound.fastest_s() + 1e-6;
    let range_s = bound.slowest_s() - fastest_s;
    let deadlines = (0..100).map(|i| fastest_s + range_s * f64::from(i) / 99.0);
    deadlines
        .map(|deadline_s| {
            let least_j = points
                .iter()
                .filter(|point| point.iteration_time_s <= deadline_s)
                .map(|p| p.iteration_energy_j + idle_w * (deadline_s - p.iteration_time_s))
                .fold(f64::INFINITY, f64::min);
            100.0 * (least_j / bound.energy_j(deadline_s) - 1.0)
        })
        .collect()
}

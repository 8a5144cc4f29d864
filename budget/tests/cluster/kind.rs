//! What jobs of a cluster are like: pipelines of published profiles where these are there, and made up
//! ones.

use std::fs::File;
use std::path::PathBuf;

use pfo_budget::Point;
use pfo_planner::{Frontier, Mhz, Options, Pipeline, Profile, Schedule, Spread, Watts, replay};

/// Measured profiles, and what a GPU draws there while it waits.
const MEASURED: [(&str, f64); 7] = [
    ("profiles/gpt3-175b-a100.csv", 83.64),
    ("profiles/gpt3-175b-a40.csv", 70.38),
    ("measured/a100-bert-huge-uncased.profile.csv", 83.64),
    ("measured/a100-gpt3-xl.profile.csv", 83.64),
    ("measured/a40-gpt3-2.7b.profile.csv", 70.38),
    ("measured/a40-t5-3b.profile.csv", 70.38),
    ("measured/a40-wide-resnet101_8.profile.csv", 70.38),
];

/// A pipeline: what it draws and how long its step takes, under plans and under one clock for all.
pub(crate) struct Kind {
    pub(crate) gpus: f64,
    pub(crate) plans: Vec<Point>,
    /// The tag is the clock in thousandths of the highest.
    pub(crate) uniform: Vec<Point>,
}

/// All kinds. Measured ones that are not there are named on standard error.
pub(crate) fn kinds() -> Vec<Kind> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
    let data = std::env::var_os("PFO_DATA_DIR").map_or_else(|| root.into(), PathBuf::from);
    let mut kinds: Vec<Kind> = (0..4).map(f64::from).map(made_up).collect();
    for (name, p2p_w) in MEASURED {
        match File::open(data.join(name)) {
            Ok(file) => kinds.push(measured(&Profile::from_csv(file).unwrap(), Watts(p2p_w))),
            Err(error) => eprintln!("skipped: {name} in {}: {error}", data.display()),
        }
    }
    kinds
}

fn measured(profile: &Profile, p2p_power: Watts) -> Kind {
    let pipeline = Pipeline::new(profile, Schedule::OneForwardOneBackward, 8).unwrap();
    let options = Options { plans: 60, spread: Spread::Useful };
    let frontier = Frontier::optimize(&pipeline, p2p_power, options, &|_| {}).unwrap();
    let points = (0..).zip(frontier.plans()).map(|(tag, plan)| Point {
        time_s: plan.iteration_time_s,
        power_w: plan.iteration_energy_j / plan.iteration_time_s,
        tag,
    });
    let mut clocks: Vec<Mhz> = profile.rows().map(|(.., row)| row.frequency).collect();
    clocks.sort_unstable();
    clocks.dedup();
    let highest = clocks[clocks.len() - 1];
    let uniform = clocks.iter().filter_map(|&clock| {
        let mut plan = frontier.plan(0).unwrap();
        plan.waits.clear();
        for planned in plan.stages.iter_mut().flat_map(|stage| &mut stage.instructions) {
            planned.frequency_mhz = clock;
        }
        // Not every stage was measured at every clock.
        let step = replay(profile, &plan, p2p_power).ok()?;
        Some(Point {
            time_s: step.iteration_time_s,
            power_w: step.iteration_energy_j / step.iteration_time_s,
            tag: 1000 * clock.0 / highest.0,
        })
    });
    let gpus = profile.num_stages().into();
    Kind { gpus, plans: points.collect(), uniform: uniform.collect() }
}

/// A pipeline whose time is partly memory's, on GPUs whose power rises with the clock to the power of
/// 2.4. Plans spare a share of the energy of one clock for all, most at the highest clocks.
fn made_up(number: f64) -> Kind {
    let (gpus, memory) = (8.0 * (1.0 + number), 0.1 + 0.1 * number);
    let at = |tag: u32, spared: f64| {
        let clock = f64::from(tag) / 1000.0;
        let slow = memory + (1.0 - memory) / clock;
        let power_w = gpus * (95.0 + (280.0 - 10.0 * number) * clock.powf(2.4));
        Point { time_s: (2.0 + number) * slow, power_w: power_w * (1.0 - spared / slow), tag }
    };
    let uniform = (600..=1000).step_by(10).map(|tag| at(tag, 0.0));
    let plans = (550..=1000).step_by(3).map(|tag| at(tag, 0.12));
    Kind { gpus, plans: plans.collect(), uniform: uniform.collect() }
}

//! What jobs of a cluster are like: pipelines of published profiles where these are there, and made up
//! ones.

use std::fs::File;
use std::path::PathBuf;

use pfo_budget::Point;
use pfo_planner::{
    Frontier, Mhz, Options, Pipeline, Plan, Profile, Schedule, Spread, Watts, replay,
};

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

/// From this tag on a point is one clock for all, of a job that has a frontier.
pub(crate) const LOWER: u32 = 100_000;

/// The lowest clock, in thousandths of the highest.
const LOWEST: u32 = 300;

/// Of a step.
const MICROBATCHES: u32 = 8;

/// A pipeline: what it draws and how long its step takes, under plans and under one clock for all.
pub(crate) struct Kind {
    pub(crate) gpus: f64,
    pub(crate) plans: Vec<Point>,
    /// The tag is the clock in thousandths of the highest.
    pub(crate) uniform: Vec<Point>,
    /// Each GPU runs the highest clock whose mean power over a step is within a level. The tag is this level, in watts.
    pub(crate) steered: Vec<Point>,
}

impl Kind {
    /// The plans of its frontier, and one clock for all where that is slower and draws less.
    pub(crate) fn plans_and_lower_clocks(&self) -> Vec<Point> {
        let slowest = self.plans.iter().max_by(|a, b| a.time_s.total_cmp(&b.time_s)).unwrap();
        let is_below =
            |point: &&Point| point.time_s > slowest.time_s && point.power_w < slowest.power_w;
        let lower = self.uniform.iter().filter(is_below);
        let lower = lower.map(|point| Point { tag: LOWER + point.tag, ..*point });
        self.plans.iter().copied().chain(lower).collect()
    }
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
    let pipeline = Pipeline::new(profile, Schedule::OneForwardOneBackward, MICROBATCHES).unwrap();
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
    let of_clocks = Clocks { profile, p2p_power, plan: frontier.plan(0).unwrap() };
    let stages = usize::from(profile.num_stages());
    let uniform = clocks.iter().filter_map(|&clock| {
        // Not every stage was measured at every clock.
        of_clocks.point(&vec![clock; stages], 1000 * clock.0 / highest.0)
    });
    let gpus = f64::from(profile.num_stages());
    let mut uniform: Vec<Point> = uniform.collect();
    uniform.sort_by(|a, b| a.time_s.total_cmp(&b.time_s));
    let mut steered = of_clocks.steered();
    let lower = lower_clocks(uniform[uniform.len() - 1], gpus * p2p_power.0);
    let of_level = |point: &Point| Point { tag: (point.power_w / gpus).ceil() as u32, ..*point };
    let lowest_w = steered.last().map_or(f64::INFINITY, |point| point.power_w);
    steered.extend(lower.iter().map(of_level).filter(|point| point.power_w < lowest_w));
    uniform.extend(lower);
    Kind { gpus, plans: points.collect(), uniform, steered }
}

/// Clocks below those that were measured, where the voltage does not fall any more: a GPU takes as much longer as
/// its clock is lower, and draws less by that share of what it does not draw while it waits.
fn lower_clocks(lowest: Point, waiting_w: f64) -> Vec<Point> {
    let tags = (LOWEST..lowest.tag).rev().step_by(10);
    let at = |tag: u32| {
        let share = f64::from(tag) / f64::from(lowest.tag);
        let power_w = waiting_w + (lowest.power_w - waiting_w) * share;
        Point { time_s: lowest.time_s / share, power_w, tag }
    };
    tags.map(at).collect()
}

/// A pipeline whose stages each run one clock.
struct Clocks<'a> {
    profile: &'a Profile,
    p2p_power: Watts,
    plan: Plan,
}

impl Clocks<'_> {
    /// Its step; none if a stage was not measured at its clock.
    fn point(&self, clocks: &[Mhz], tag: u32) -> Option<Point> {
        let mut plan = self.plan.clone();
        plan.waits.clear();
        for (stage, clock) in plan.stages.iter_mut().zip(clocks) {
            stage.instructions.iter_mut().for_each(|planned| planned.frequency_mhz = *clock);
        }
        let step = replay(self.profile, &plan, self.p2p_power).ok()?;
        let power_w = step.iteration_energy_j / step.iteration_time_s;
        Some(Point { time_s: step.iteration_time_s, power_w, tag })
    }

    /// What a stage draws in a step, in watts: its instructions, and its waits for the others.
    fn stage_w(&self, stage: u16, clock: Mhz, step_s: f64) -> f64 {
        let rows =
            self.profile.rows().filter(|(of, _, row)| of.0 == stage && row.frequency == clock);
        let (mut busy_s, mut energy_j) = (0.0, 0.0);
        for (.., row) in rows {
            busy_s += f64::from(MICROBATCHES) * row.time_s;
            energy_j += f64::from(MICROBATCHES) * row.energy_j;
        }
        (energy_j + self.p2p_power.0 * (step_s - busy_s)) / step_s
    }

    /// A point for each level of watts, from one that limits no stage down to one that no clock keeps. Clocks
    /// fall one by one, always that of a stage above the level, for as long as there is one.
    fn steered(&self) -> Vec<Point> {
        let ladder = |stage: u16| -> Vec<Mhz> {
            let rows = self.profile.rows().filter(|(of, ..)| of.0 == stage);
            let mut clocks: Vec<Mhz> = rows.map(|(.., row)| row.frequency).collect();
            clocks.sort_unstable();
            clocks.dedup();
            clocks
        };
        let mut ladders: Vec<Vec<Mhz>> = (0..self.profile.num_stages()).map(ladder).collect();
        let now = |ladders: &[Vec<Mhz>]| -> Vec<Mhz> {
            ladders.iter().map(|ladder| ladder[ladder.len() - 1]).collect()
        };
        let mut points = Vec::new();
        let mut level = 1000;
        let mut clocks = now(&ladders);
        while let Some(point) = self.point(&clocks, level) {
            let above = (0_u16..)
                .zip(&clocks)
                .map(|(stage, clock)| (stage, self.stage_w(stage, *clock, point.time_s)));
            let Some((stage, power_w)) = above.max_by(|a, b| a.1.total_cmp(&b.1)) else { break };
            if power_w <= f64::from(level) {
                points.push(Point { tag: power_w.ceil() as u32, ..point });
                level = power_w.ceil() as u32 - 1;
                continue;
            }
            if ladders[usize::from(stage)].len() == 1 {
                break;
            }
            ladders[usize::from(stage)].pop();
            clocks = now(&ladders);
        }
        points
    }
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
    let uniform: Vec<Point> = (LOWEST..=1000).step_by(10).map(|tag| at(tag, 0.0)).collect();
    let plans = (550..=1000).step_by(3).map(|tag| at(tag, 0.12));
    // All of its GPUs draw alike.
    let level = |point: &Point| Point { tag: (point.power_w / gpus).ceil() as u32, ..*point };
    let steered = uniform.iter().map(level).collect();
    Kind { gpus, plans: plans.collect(), uniform, steered }
}

//! What a tune takes and finds, in virtual time, for each condition of a job: `make bench` prints it. The
//! same seeds give the same figures on every machine.

#[path = "../tests/it/world.rs"]
#[allow(dead_code)]
mod world;

use pfo_experiment::{Interval, Terms, TuneError, Verdict};

use crate::world::{Disturbance, World};

const MAX_SLOWDOWN: f64 = 0.01;

type Row = (&'static str, (u16, u32, f64), Disturbance);

fn conditions() -> Vec<Row> {
    let quiet = Disturbance::default();
    let job = (4, 8, 3.0);
    vec![
        ("2 stages", (2, 8, 3.0), quiet),
        ("4 stages", job, quiet),
        ("16 stages", (16, 32, 3.0), quiet),
        ("steps of 0.2 s", (4, 8, 0.2), quiet),
        ("steps of 60 s", (4, 8, 60.0), quiet),
        ("noise of 1 %", job, Disturbance { noise: 0.01, ..quiet }),
        ("steps that wander", job, Disturbance { wandering: (0.9, 0.01), ..quiet }),
        ("heat, +5 % in an hour", job, Disturbance { heat_per_h: 0.05, ..quiet }),
        ("a neighbour, +5 %", job, Disturbance { neighbour: (0.05, 15.0, 30.0), ..quiet }),
        ("checkpoints each 50 steps", job, Disturbance { checkpoint: (50, 1.0), ..quiet }),
        ("data loading in bursts", job, Disturbance { loading: (20, 3, 0.04), ..quiet }),
        ("+20 % from step 40 on", job, Disturbance { jump: (40, 0.2), ..quiet }),
        ("counters each 500 ms", job, Disturbance { refresh_s: 0.5, kind_error: 0.05, ..quiet }),
        ("changes hold up, 0.3 ms", (4, 8, 0.2), Disturbance { change_s: 0.0003, ..quiet }),
    ]
}

/// The median.
fn middle(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What came of the tunes of one condition.
#[derive(Default)]
struct Outcome {
    /// Each figure of each tune.
    all: [Vec<f64>; 8],
    kept: u32,
    /// Of the intervals that were stated, those that hold the truth.
    held: u32,
    stated: u32,
}

impl Outcome {
    fn add(&mut self, mut world: World) -> Result<(), TuneError> {
        let terms = Terms { max_slowdown: MAX_SLOWDOWN, guard: false, ..Terms::default() };
        let tuned = world.tuned(terms)?;
        let (saving, slowdown) = world.kept().unwrap_or((0.0, 0.0));
        let figures = [
            world.first_plan.map_or(f64::INFINITY, |step| step as f64),
            world.steps as f64,
            world.lost_s,
            100.0 * world.lost_s / world.time_s(),
            world.longest,
            100.0 * saving,
            100.0 * (world.optimum() - saving),
            100.0 * slowdown,
        ];
        self.all.iter_mut().zip(figures).for_each(|(all, figure)| all.push(figure));
        let best = tuned.report.tried.iter().find(|tried| tried.verdict == Verdict::Kept);
        if let Some(tried) = best.filter(|_| world.kept().is_some()) {
            let within =
                |interval: Interval, truth: f64| (interval.low..=interval.high).contains(&truth);
            let compared = tried.compared;
            self.kept += 1;
            self.held += u32::from(within(compared.saving, saving));
            self.held += u32::from(within(compared.slowdown, slowdown));
            self.stated += 2;
        }
        Ok(())
    }
}

fn main() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(100);
    println!(
        "Tunes in virtual time, at most {} % slower, {seeds} seeds each: medians, and how often the stated \
         intervals hold the truth",
        100.0 * MAX_SLOWDOWN
    );
    println!(
        "{:26} {:>6} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7} {:>6} {:>7} {:>5}",
        "condition",
        "first",
        "verdict",
        "lost s",
        "lost %",
        "longest",
        "saving",
        "short",
        "slower",
        "kept",
        "hold"
    );
    for (name, job, disturbance) in conditions() {
        // Planning for many stages takes seconds, for each plan that is tried.
        let seeds = if job.0 > 8 { seeds.min(4) } else { seeds };
        let mut outcome = Outcome::default();
        for seed in 0..seeds {
            if let Err(error) = outcome.add(World::new(job, disturbance, seed)) {
                println!("{name}, seed {seed}: {error}");
            }
        }
        let Outcome { all, kept, held, stated } = outcome;
        let [first, verdict, lost, share, longest, saving, short, slower] = all.map(middle);
        println!(
            "{name:26} {first:6.0} {verdict:8.0} {lost:8.1} {share:8.2} {longest:8.2} {saving:7.2} \
             {short:7.2} {slower:6.2} {kept:>3}/{seeds:<3} {:5.1}",
            100.0 * f64::from(held) / f64::from(stated.max(1))
        );
    }
}

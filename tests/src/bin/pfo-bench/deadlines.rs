//! Plans that are made for a deadline, beside the least energy that any could take, both with the
//! wait until then.

use std::time::Instant;

use pfo_planner::{
    Deadline, Due, Frontier, LowerBound, Options, Pipeline, Prediction, Profile, Schedule, Watts,
};

use crate::Result;
use crate::bench_profile::BenchProfile;
use crate::extent::Extent;
use crate::report::{Cell, Report};

/// The last deadline, in times of the fastest.
const LAST: f64 = 1.6;

const MICROBATCHES: [u32; 2] = [12, 96];

/// The shares of the fastest time that the first deadlines lie within; the others are up to the
/// least energy, and beyond it.
const FIRST: [f64; 2] = [0.05, 0.15];

/// A plan that is made for a deadline.
pub(crate) struct Planned {
    pub(crate) until_s: f64,
    /// With the wait until then.
    pub(crate) energy_j: f64,
}

/// Plans for some deadlines, evenly from the fastest to [`LAST`] times that.
pub(crate) fn planned(frontier: &Frontier, deadlines: usize) -> Result<Vec<Planned>> {
    let fastest_s = frontier.seconds(Deadline::Fastest);
    let planned = |number: usize| -> Result<Planned> {
        let slower = (LAST - 1.0) * number as f64 / (deadlines - 1) as f64;
        let until_s = fastest_s * (1.0 + slower);
        let plan = frontier.plan_for(Due::Waiting(until_s))?;
        Ok(Planned { until_s, energy_j: frontier.energy_until_j(&plan, until_s) })
    };
    (0..deadlines).map(planned).collect()
}

/// The energy (J) of the best of some plans with the wait until a time (s), if one is in time.
pub(crate) fn best_until_j(plans: &[Prediction], until_s: f64, waiting_w: f64) -> Option<f64> {
    // A hair more: sums of the same times in another order.
    let in_time = plans.iter().filter(|plan| plan.iteration_time_s <= until_s * (1.0 + 1e-12));
    let until_j = |plan: &Prediction| {
        plan.iteration_energy_j + waiting_w * (until_s - plan.iteration_time_s).max(0.0)
    };
    in_time.map(until_j).min_by(f64::total_cmp)
}

/// Measures how far plans for deadlines are from the bound, on each profile and for steps of both
/// lengths.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    let bench = BenchProfile::find()?;
    let deadlines = extent.of(100, 4);
    let mut rows = Vec::new();
    for microbatches in MICROBATCHES.map(|count| extent.of(count, count / 12)) {
        rows.push(row(bench.name, &bench.profile, bench.p2p_power, microbatches, deadlines)?);
        if let Some(stepped) = bench.stepped() {
            let BenchProfile { name, profile, p2p_power, .. } = &stepped;
            rows.push(row(name, profile, *p2p_power, microbatches, deadlines)?);
        }
    }
    report.table(
        "planning_deadlines",
        &format!(
            "Plans for {deadlines} deadlines, from the fastest to {LAST} times that, with the wait until \
             then:\n% over the bound, mean/most"
        ),
        &[
            ("profile", "profile"),
            ("pipeline", "stages x microbatches"),
            ("first", "first 5 %"),
            ("second", "to 15 %"),
            ("third", "to the least energy"),
            ("beyond", "beyond it"),
            ("all", "all"),
            ("each_ms", "ms each"),
        ],
        &rows,
    );
    Ok(())
}

fn row(
    name: &str,
    profile: &Profile,
    p2p_power: Watts,
    microbatches: u32,
    deadlines: usize,
) -> Result<Vec<Cell>> {
    let pipeline = Pipeline::new(profile, Schedule::OneForwardOneBackward, microbatches)?;
    let frontier = Frontier::optimize(&pipeline, p2p_power, Options::default(), &|_| {})?;
    let bound = LowerBound::new(&pipeline, p2p_power);
    let began = Instant::now();
    let planned = planned(&frontier, deadlines)?;
    let each_ms = 1e3 * began.elapsed().as_secs_f64() / deadlines as f64;
    let fastest_s = frontier.seconds(Deadline::Fastest);
    let [first_s, second_s] = FIRST.map(|share| fastest_s * (1.0 + share));
    let cheapest_s = bound.cheapest_s();
    let regions: [(f64, f64); 5] = [
        (0.0, first_s),
        (first_s, second_s),
        (second_s, cheapest_s),
        (cheapest_s, f64::INFINITY),
        (0.0, f64::INFINITY),
    ];
    let mut row =
        vec![Cell::text(name), Cell::Text(format!("{} x {microbatches}", profile.num_stages()))];
    row.extend(regions.map(|(after_s, until_s)| {
        let within = planned.iter().filter(|p| after_s < p.until_s && p.until_s <= until_s);
        let percent = within.map(|p| 100.0 * (p.energy_j / bound.energy_j(p.until_s) - 1.0));
        mean_and_most(&percent.collect::<Vec<_>>())
    }));
    row.push(Cell::Figure(each_ms, 1));
    Ok(row)
}

fn mean_and_most(percent: &[f64]) -> Cell {
    if percent.is_empty() {
        return Cell::text("-");
    }
    let mean = percent.iter().sum::<f64>() / percent.len() as f64;
    let most = percent.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Cell::Text(format!("{mean:.3}/{most:.3}"))
}

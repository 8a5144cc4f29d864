//! How much more energy lowtime's plans take than ours in the same time, and why.

use pfo_planner::{Attribution, Frontier, LowerBound, Lowtime, Pipeline, Watts};

use crate::Result;
use crate::lowtime_run::LowtimeRun;
use crate::report::Cell;

/// Of one of lowtime's plans, all at the time that it takes when replayed.
struct Excess {
    time_s: f64,
    lowtime_j: f64,
    ours_j: f64,
    attribution: Attribution,
}

/// The times of lowtime's plans, and that of the least energy.
struct Range {
    fastest_s: f64,
    cheapest_s: f64,
    slowest_s: f64,
}

/// Some of lowtime's plans, by the time that they take.
type Region = (&'static str, fn(&Range, f64) -> bool);

/// Its ends and its middle are a tenth of its range each.
const REGIONS: [Region; 4] = [
    ("fast end", |range, time_s| time_s <= range.fastest_s + 0.1 * range.length_s()),
    ("least energy", |range, time_s| (time_s - range.cheapest_s).abs() <= 0.05 * range.length_s()),
    ("slow end", |range, time_s| time_s >= range.slowest_s - 0.1 * range.length_s()),
    ("all", |_, _| true),
];

impl Range {
    fn length_s(&self) -> f64 {
        self.slowest_s - self.fastest_s
    }
}

pub(crate) const COLUMNS: [(&str, &str); 10] = [
    ("planner", "planner"),
    ("region", "where"),
    ("plans", "plans"),
    ("mean", "over pfo %"),
    ("least", "least"),
    ("most", "most"),
    ("filter", "filter %"),
    ("fit", "fit %"),
    ("rounding", "rounding %"),
    ("pfo", "pfo %"),
];

/// A row for each region.
pub(crate) fn rows(
    run: &LowtimeRun,
    frontier: &Frontier,
    pipeline: &Pipeline,
    p2p_power: Watts,
) -> Result<Vec<Vec<Cell>>> {
    let times_s: Vec<f64> = run.replayed.iter().map(|plan| plan.iteration_time_s).collect();
    let lowtime = Lowtime { filter: run.filter, ..Lowtime::default() };
    let attributions = lowtime.attribution(pipeline, p2p_power, &times_s)?;
    let idle_w = p2p_power.0 * f64::from(pipeline.profile().num_stages());
    let ours: Vec<_> = frontier.plans().collect();
    let excesses = run.replayed.iter().zip(attributions).filter_map(|(plan, attribution)| {
        // A hair more: sums of the same times in another order.
        let time_s = plan.iteration_time_s * (1.0 + 1e-12);
        let in_time = ours.partition_point(|ours| ours.iteration_time_s <= time_s);
        // It waits for the rest of the time, as if a straggler had asked for it.
        let ours = ours.get(in_time.checked_sub(1)?)?;
        let waiting_j = idle_w * (time_s - ours.iteration_time_s);
        let ours_j = ours.iteration_energy_j + waiting_j;
        Some(Excess { time_s, lowtime_j: plan.iteration_energy_j, ours_j, attribution })
    });
    let excesses: Vec<Excess> = excesses.collect();

    let range = Range {
        fastest_s: times_s.iter().copied().fold(f64::INFINITY, f64::min),
        cheapest_s: LowerBound::new(pipeline, p2p_power).cheapest_s(),
        slowest_s: times_s.iter().copied().fold(0.0, f64::max),
    };
    let row = |(region, is_in): Region| {
        let chosen = excesses.iter().filter(|excess| is_in(&range, excess.time_s));
        row(run.name(), region, &chosen.collect::<Vec<_>>())
    };
    Ok(REGIONS.map(row).into())
}

fn row(planner: &str, region: &str, excesses: &[&Excess]) -> Vec<Cell> {
    let percent =
        |part: fn(&Excess) -> f64| excesses.iter().map(move |excess| 100.0 * part(excess));
    let mean = |part| Cell::Figure(percent(part).sum::<f64>() / excesses.len() as f64, 3);
    let over_ours = |excess: &Excess| excess.lowtime_j / excess.ours_j - 1.0;
    let least = percent(over_ours).fold(f64::INFINITY, f64::min);
    let most = percent(over_ours).fold(f64::NEG_INFINITY, f64::max);
    vec![
        Cell::text(planner),
        Cell::text(region),
        Cell::count(excesses.len() as u64),
        mean(over_ours),
        Cell::Figure(least, 3),
        Cell::Figure(most, 3),
        mean(|e| (e.attribution.filtered_j - e.attribution.bound_j) / e.attribution.bound_j),
        mean(|e| (e.attribution.fitted_j - e.attribution.filtered_j) / e.attribution.bound_j),
        mean(|e| (e.lowtime_j - e.attribution.fitted_j) / e.attribution.bound_j),
        mean(|e| (e.ours_j - e.attribution.bound_j) / e.attribution.bound_j),
    ]
}

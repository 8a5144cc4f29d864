//! lowtime's best plan beside the one that ours makes, for the same deadlines and with the wait until
//! then: on other GPUs, for longer steps and for another schedule, too.

use pfo_planner::{Filter, Frontier, Options, Pipeline, Schedule};

use crate::Result;
use crate::bench_profile::BenchProfile;
use crate::deadlines;
use crate::extent::Extent;
use crate::lowtime_run::LowtimeRun;
use crate::report::{Cell, Column, Report};

pub(crate) const TITLE: &str = "Energy of lowtime's best plan over ours at deadlines from the fastest to 1.6 times \
     that, both with the\nwait until then";

pub(crate) const COLUMNS: [Column; 9] = [
    ("profile", "profile"),
    ("pipeline", "pipeline"),
    ("planner", "planner"),
    ("unit_ms", "its unit ms"),
    ("deadlines", "deadlines"),
    ("better", "lowtime takes less at"),
    ("mean", "over pfo %"),
    ("least", "least"),
    ("most", "most"),
];

/// A step on which both are compared.
struct Case {
    is_stepped: bool,
    schedule: Schedule,
    microbatches: u32,
    /// Coarser for long steps: it makes a plan for each, and would take an hour.
    unit_time_s: f64,
}

const CASES: [Case; 4] = [
    Case { is_stepped: false, schedule: Schedule::GPipe, microbatches: 12, unit_time_s: 0.002 },
    Case {
        is_stepped: true,
        schedule: Schedule::OneForwardOneBackward,
        microbatches: 12,
        unit_time_s: 0.002,
    },
    Case {
        is_stepped: false,
        schedule: Schedule::OneForwardOneBackward,
        microbatches: 96,
        unit_time_s: 0.005,
    },
    Case {
        is_stepped: true,
        schedule: Schedule::OneForwardOneBackward,
        microbatches: 96,
        unit_time_s: 0.02,
    },
];

/// Runs both on other steps; none in a short run. What lowtime cannot plan is noted.
pub(crate) fn others(
    bench: &BenchProfile,
    extent: Extent,
    report: &mut Report,
) -> Result<Vec<Vec<Cell>>> {
    let stepped = bench.stepped();
    let mut rows = Vec::new();
    for case in &CASES[..extent.of(CASES.len(), 0)] {
        let bench = match (case.is_stepped, &stepped) {
            (false, _) => bench,
            (true, Some(stepped)) => stepped,
            (true, None) => continue,
        };
        let pipeline = Pipeline::new(&bench.profile, case.schedule, case.microbatches)?;
        let lowtime = match LowtimeRun::new(bench, &pipeline, Filter::Effective, case.unit_time_s) {
            Ok(lowtime) => lowtime,
            Err(error) => {
                let (schedule, microbatches) = (case.schedule, case.microbatches);
                report.note(&format!(
                    "lowtime cannot plan {}, {schedule} x {microbatches}: {error}",
                    bench.name
                ));
                continue;
            }
        };
        let frontier = Frontier::optimize(&pipeline, bench.p2p_power, Options::default(), &|_| {})?;
        rows.push(row(&lowtime, &frontier, bench, case.unit_time_s, extent)?);
    }
    Ok(rows)
}

/// Its plans beside those that ours makes for the same deadlines.
pub(crate) fn row(
    lowtime: &LowtimeRun,
    frontier: &Frontier,
    bench: &BenchProfile,
    unit_time_s: f64,
    extent: Extent,
) -> Result<Vec<Cell>> {
    let pipeline = frontier.pipeline();
    let stages = bench.profile.num_stages();
    let waiting_w = bench.p2p_power.0 * f64::from(stages);
    let planned = deadlines::planned(frontier, extent.of(100, 4))?;
    let over = planned.iter().filter_map(|ours| {
        let theirs_j = deadlines::best_until_j(&lowtime.replayed, ours.until_s, waiting_w)?;
        Some(100.0 * (theirs_j / ours.energy_j - 1.0))
    });
    let over: Vec<f64> = over.collect();
    // Where both run everything at its cheapest, the same sums come in another order.
    let better = over.iter().filter(|&&over| over < -1e-6).count();
    let (schedule, microbatches) = (pipeline.schedule(), pipeline.num_microbatches());
    Ok(vec![
        Cell::text(bench.name),
        Cell::Text(format!("{schedule}, {stages} x {microbatches}")),
        Cell::text(lowtime.name()),
        Cell::Figure(1e3 * unit_time_s, 0),
        Cell::count(over.len() as u64),
        Cell::count(better as u64),
        Cell::Figure(over.iter().sum::<f64>() / over.len() as f64, 3),
        Cell::Figure(over.iter().copied().fold(f64::INFINITY, f64::min), 3),
        Cell::Figure(over.iter().copied().fold(f64::NEG_INFINITY, f64::max), 3),
    ])
}

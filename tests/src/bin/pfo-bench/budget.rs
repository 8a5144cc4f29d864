//! Clusters below a power budget: what this project loses beside caps, and what a decision costs.

use std::time::Instant;

use pfo_budget::{Curve, Job, Point, Room, decide};

use crate::Result;
use crate::cluster::Cluster;
use crate::cluster::kind::kinds;
use crate::cluster::policy::Policy;
use crate::extent::Extent;
use crate::report::{Cell, Report};

/// Runs the simulated cluster, and decides for many jobs at once.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    let (kinds, jobs, seconds) = (kinds(), extent.of(300, 20), extent.of(4.0 * 3600.0, 600.0));
    let run = |policy, budget_w: f64| {
        Cluster::new(&kinds, jobs, 1).run(policy, seconds, |_| budget_w, |_, _, _| {})
    };
    let full_w = run(Policy::Frontiers, 1e12)?.mean_w;
    let mut rows = Vec::new();
    for share in [0.95, 0.9, 0.8, 0.7] {
        for policy in Policy::ALL {
            let outcome = run(policy, share * full_w)?;
            rows.push(vec![
                Cell::Figure(100.0 * share, 0),
                Cell::text(policy.name()),
                Cell::Figure(100.0 * outcome.progress / outcome.optimum, 2),
                Cell::Figure(outcome.energy_kwh, 0),
                Cell::Figure(outcome.above_s, 0),
                Cell::Figure(outcome.longest_s, 0),
                Cell::Figure(outcome.slowest_step_s, 0),
                Cell::Figure(outcome.changes as f64, 0),
            ]);
        }
    }
    report.table(
        "budget",
        "A simulated cluster below a budget: progress of what perfect knowledge could have had",
        &[
            ("budget", "budget %"),
            ("policy", "policy"),
            ("progress", "progress %"),
            ("energy_kwh", "kWh"),
            ("above_s", "above, s"),
            ("longest_s", "longest, s"),
            ("slowest_step_s", "slowest step, s"),
            ("changes", "changes"),
        ],
        &rows,
    );
    decision(extent, report)
}

/// How long one decision takes, beside reading every point once.
fn decision(extent: Extent, report: &mut Report) -> Result<()> {
    let (jobs, points) = (extent.of(1000, 50), extent.of(10_000, 200));
    let curve = |job: u32| {
        let point = |place: u32| {
            let slow = 1.0 + f64::from(place) / f64::from(points);
            let power_w = (1000.0 + f64::from(job)) / slow.powf(1.5 + f64::from(job % 17) / 50.0);
            Point { time_s: slow, power_w, tag: place }
        };
        Curve::new((0..points).map(point), None)
    };
    let curves = (0..jobs).map(curve).collect::<std::result::Result<Vec<Curve>, _>>()?;
    let names: Vec<String> = (0..jobs).map(|job| format!("job-{job}")).collect();
    let listed: Vec<Job<'_>> =
        names.iter().zip(&curves).map(|(name, curve)| Job { name, curve, weight: 1.0 }).collect();
    let began = Instant::now();
    let all_w: f64 = curves.iter().flat_map(Curve::points).map(|point| point.power_w).sum();
    let reading_s = began.elapsed().as_secs_f64();
    let budget_w = all_w / f64::from(points);
    let began = Instant::now();
    let decision = decide(&listed, Room { budget_w, base_w: 0.0 })?;
    let deciding_s = began.elapsed().as_secs_f64();
    report.table(
        "budget_decision",
        "One decision for all jobs, beside reading every point once",
        &[
            ("jobs", "jobs"),
            ("points", "points of each"),
            ("deciding_ms", "deciding, ms"),
            ("ratio", "of reading"),
            ("gap", "loss above the bound %"),
        ],
        &[vec![
            Cell::count(jobs.into()),
            Cell::count(points.into()),
            Cell::Figure(1e3 * deciding_s, 1),
            Cell::Figure(deciding_s / reading_s, 2),
            Cell::Figure(100.0 * (decision.loss / decision.bound - 1.0), 6),
        ]],
    );
    Ok(())
}

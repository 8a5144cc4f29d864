//! Clusters below a power budget: what this project loses beside caps, and what a decision costs.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use pfo_budget::{Curve, Job, Point, Room, decide};

use crate::Result;
use crate::cluster::kind::kinds;
use crate::cluster::policy::Policy;
use crate::cluster::{Cluster, SHARES, WITHOUT};
use crate::extent::Extent;
use crate::report::{Cell, Report};

/// Where `tests/bench/budget-before` leaves what the controller of 5b97333 makes of the same cluster.
const BEFORE: &str = "target/before-0.2/target/release/examples/shares";

/// Runs the simulated cluster, and decides for many jobs at once.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    let (kinds, jobs, seconds) = (kinds(), extent.of(100, 20), extent.of(3600.0, 600.0));
    let before = before(jobs, seconds)?;
    let mut rows = Vec::new();
    for without in WITHOUT {
        let run = |policy, budget_w: f64| {
            Cluster::new(&kinds, jobs, without, 1).run(policy, seconds, |_| budget_w, |_, _, _| {})
        };
        let full = run(Policy::Frontiers, 1e12)?;
        for share in SHARES {
            let begin = || [Cell::Figure(25.0 * without as f64, 0), Cell::Figure(100.0 * share, 0)];
            let budget_w = Cluster::budget_w(&full, share);
            let ours = run(Policy::Frontiers, budget_w)?;
            for policy in Policy::ALL {
                let outcome = match policy {
                    Policy::Frontiers => ours,
                    _ => run(policy, budget_w)?,
                };
                let figures = [
                    outcome.progress / ours.optimum,
                    outcome.used_j / outcome.usable_j,
                    outcome.above_s,
                    outcome.longest_s,
                    outcome.slowest_step_s,
                    outcome.changes as f64,
                ];
                rows.push(begin().into_iter().chain(row(policy.name(), figures)).collect());
                let former = before.iter().find(|former| former.0 == (without, share.to_string()));
                if let Some((_, figures)) = former.filter(|_| policy == Policy::Frontiers) {
                    rows.push(begin().into_iter().chain(row("5b97333", *figures)).collect());
                }
            }
        }
    }
    report.table(
        "budget",
        "A simulated cluster below a budget: progress of what perfect knowledge could have had",
        &[
            ("without", "without frontier %"),
            ("budget", "of jobs' power %"),
            ("policy", "policy"),
            ("progress", "progress %"),
            ("used", "used %"),
            ("above_s", "above, s"),
            ("longest_s", "longest, s"),
            ("slowest_step_s", "slowest step, s"),
            ("changes", "changes"),
        ],
        &rows,
    );
    decision(extent, report)
}

fn row(policy: &str, figures: [f64; 6]) -> Vec<Cell> {
    let [progress, used, others @ ..] = figures;
    let shares = [progress, used].map(|share| Cell::Figure(100.0 * share, 2));
    let others = others.map(|figure| Cell::Figure(figure, 0));
    [Cell::text(policy)].into_iter().chain(shares).chain(others).collect()
}

/// A row of the former controller: how many of four jobs had no frontier, the budget's share, and the figures.
type Former = ((usize, String), [f64; 6]);

/// What the controller of 5b97333 makes of it; nothing if it was not built.
fn before(jobs: usize, seconds: f64) -> Result<Vec<Former>> {
    let root = pfo_tests::programs::source_root();
    let program = root.join(BEFORE);
    if !program.exists() {
        return Ok(Vec::new());
    }
    let data =
        std::env::var_os("PFO_DATA_DIR").map_or_else(|| root.join("../shared/data"), PathBuf::from);
    let arguments = [jobs.to_string(), seconds.to_string()];
    let output = Command::new(program).args(arguments).env("PFO_DATA_DIR", data).output()?;
    let text = String::from_utf8(output.stdout)?;
    let row = |line: &str| -> Result<Former> {
        let fields: Vec<&str> = line.split('\t').collect();
        let [without, share, figures @ ..] = &fields[..] else { return Err(line.into()) };
        let figures = figures.iter().map(|figure| figure.parse());
        let figures: Vec<f64> = figures.collect::<std::result::Result<_, _>>()?;
        let figures = figures.try_into().map_err(|_| format!("6 figures in: {line}"))?;
        Ok(((without.parse()?, (*share).to_owned()), figures))
    };
    text.lines().map(row).collect()
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

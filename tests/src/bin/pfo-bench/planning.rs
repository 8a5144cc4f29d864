//! The planner on a profile of usual size, from the CSV to the frontier file.

use std::fs::File;
use std::time::{Duration, Instant};

use pfo_planner::{Frontier, LowerBound, Options, Pipeline, Profile, Schedule, Spread};

use crate::Result;
use crate::bench_profile::BenchProfile;
use crate::extent::Extent;
use crate::report::{Cell, Report};

const EXACT_AIM_S: f64 = 0.1;
/// Numbers of plans, the last one lowtime's for this profile, and the seconds they may take.
const PLANS: [(usize, f64); 3] = [(100, 0.5), (1000, 1.0), (3495, 1.5)];

/// Measures the exact frontier, and plans made from it.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    let bench = BenchProfile::find()?;
    let microbatches = extent.of(96, 12);
    let repetitions = extent.of(5, 1);
    let pipeline = pipeline(&bench.profile, microbatches)?;
    let mut exact = Vec::new();
    let mut plans = PLANS.map(|_| Vec::new());
    let mut sizes = [0; PLANS.len()];
    for _ in 0..repetitions {
        let began = Instant::now();
        LowerBound::new(&pipeline, bench.p2p_power);
        exact.push(began.elapsed());
        for (((count, _), times), size) in PLANS.into_iter().zip(&mut plans).zip(&mut sizes) {
            let began = Instant::now();
            *size = frontier_file(&bench, microbatches, extent.of(count, 20))?;
            times.push(began.elapsed());
        }
    }
    let row = |what: String, times: &mut [Duration], aim_s: f64| {
        times.sort_unstable();
        let seconds = |time: &Duration| Cell::Figure(time.as_secs_f64(), 3);
        let (median, worst) = (&times[repetitions / 2], &times[repetitions - 1]);
        let aim =
            if bench.is_measured() { Cell::Figure(aim_s, 1) } else { Cell::text("measured only") };
        vec![Cell::Text(what), seconds(median), seconds(worst), aim]
    };
    let mut rows = vec![row("exact frontier".into(), &mut exact, EXACT_AIM_S)];
    for (((count, aim_s), mut times), size) in PLANS.into_iter().zip(plans).zip(sizes) {
        let kib = size / 1024;
        let what = format!("{count} deadlines, from CSV to a frontier file of {kib} KiB");
        rows.push(row(what, &mut times, aim_s));
    }
    report.table(
        "planning",
        &format!(
            "The planner, {} stages x {microbatches} microbatches ({})",
            bench.profile.num_stages(),
            bench.name
        ),
        &[("what", "what"), ("median_s", "median s"), ("worst_s", "worst s"), ("aim_s", "aim s")],
        &rows,
    );
    Ok(())
}

fn pipeline(profile: &Profile, microbatches: u32) -> Result<Pipeline> {
    Ok(Pipeline::new(profile, Schedule::OneForwardOneBackward, microbatches)?)
}

/// The size in bytes of the file.
fn frontier_file(bench: &BenchProfile, microbatches: u32, plans: usize) -> Result<usize> {
    let profile = Profile::from_csv(File::open(&bench.path)?)?;
    let options = Options { plans, spread: Spread::Even };
    let pipeline = pipeline(&profile, microbatches)?;
    let frontier = Frontier::optimize(&pipeline, bench.p2p_power, options, &|_| {})?;
    Ok(frontier.to_bytes()?.len())
}

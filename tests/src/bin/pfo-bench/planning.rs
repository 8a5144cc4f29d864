//! The planner on a measured profile of usual size.

use std::time::{Duration, Instant};

use pfo_planner::{Frontier, LowerBound, Options, Pipeline, Schedule, Spread};

use crate::Result;
use crate::bench_profile::BenchProfile;
use crate::report::{Cell, Report};

const MICROBATCHES: u32 = 96;
const PLANS: usize = 100;
const REPETITIONS: usize = 5;

/// Measures the exact frontier and a hundred plans made from it.
pub(crate) fn measure(report: &mut Report) -> Result<()> {
    let bench = BenchProfile::find()?;
    let schedule = Schedule::OneForwardOneBackward;
    let pipeline = Pipeline::new(&bench.profile, schedule, MICROBATCHES)?;
    let options = Options { plans: PLANS, spread: Spread::Even };
    let (mut exact, mut plans) = (Vec::new(), Vec::new());
    let mut pieces = 0;
    for _ in 0..REPETITIONS {
        let began = Instant::now();
        pieces = LowerBound::new(&pipeline, bench.p2p_power).pieces();
        exact.push(began.elapsed());
        let began = Instant::now();
        Frontier::optimize(&pipeline, bench.p2p_power, options, &|_| {})?;
        plans.push(began.elapsed());
    }
    let row = |what: String, mut times: Vec<Duration>, aim_s: f64| {
        times.sort_unstable();
        let seconds = |time: &Duration| Cell::Figure(time.as_secs_f64(), 3);
        let (median, worst) = (&times[REPETITIONS / 2], &times[REPETITIONS - 1]);
        let aim =
            if bench.is_measured() { Cell::Figure(aim_s, 1) } else { Cell::text("measured only") };
        vec![Cell::Text(what), seconds(median), seconds(worst), aim]
    };
    report.table(
        "planning",
        &format!(
            "The planner, {} stages x {MICROBATCHES} microbatches ({})",
            bench.profile.num_stages(),
            bench.name
        ),
        &[("what", "what"), ("median_s", "median s"), ("worst_s", "worst s"), ("aim_s", "aim s")],
        &[
            row(format!("exact frontier ({pieces} pieces)"), exact, 0.1),
            row(format!("{PLANS} realised plans, frontier included"), plans, 0.5),
        ],
    );
    Ok(())
}

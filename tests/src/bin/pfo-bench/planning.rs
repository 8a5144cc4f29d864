//! The planner on a measured profile of usual size.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pfo_planner::{Frontier, LowerBound, Options, Pipeline, Profile, Schedule, Spread, Watts};

use crate::Result;
use crate::report::{Cell, Report};

/// Where measured profiles are, when the environment does not say.
const DATA: &str = "../shared/data";
const PROFILE: &str = "profiles/gpt3-175b-a100.csv";
/// What an A100 draws in this profile while it waits for its neighbour.
const P2P_POWER: Watts = Watts(83.64);
const MICROBATCHES: u32 = 96;
const PLANS: usize = 100;
const REPETITIONS: usize = 5;

/// Measures the exact frontier and a hundred plans made from it.
pub(crate) fn measure(report: &mut Report) -> Result<()> {
    let data = std::env::var_os("PFO_DATA_DIR").map_or_else(|| DATA.into(), PathBuf::from);
    let path = data.join(PROFILE);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) => {
            let path = path.display();
            report.note(&format!("Planning is skipped: {path}: {error}; set PFO_DATA_DIR"));
            return Ok(());
        }
    };
    let profile = Profile::from_csv(file)?;
    let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, MICROBATCHES)?;
    let options = Options { plans: PLANS, spread: Spread::Even };
    let (mut exact, mut plans) = (Vec::new(), Vec::new());
    let mut pieces = 0;
    for _ in 0..REPETITIONS {
        let began = Instant::now();
        pieces = LowerBound::new(&pipeline, P2P_POWER).pieces();
        exact.push(began.elapsed());
        let began = Instant::now();
        Frontier::optimize(&pipeline, P2P_POWER, options, &|_| {})?;
        plans.push(began.elapsed());
    }
    let row = |what: String, mut times: Vec<Duration>, aim_s: f64| {
        times.sort_unstable();
        let seconds = |time: &Duration| Cell::Figure(time.as_secs_f64(), 3);
        let (median, worst) = (&times[REPETITIONS / 2], &times[REPETITIONS - 1]);
        vec![Cell::Text(what), seconds(median), seconds(worst), Cell::Figure(aim_s, 1)]
    };
    report.table(
        "planning",
        &format!(
            "The planner, {} stages x {MICROBATCHES} microbatches of a measured profile",
            profile.num_stages()
        ),
        &[("what", "what"), ("median_s", "median s"), ("worst_s", "worst s"), ("aim_s", "aim s")],
        &[
            row(format!("exact frontier ({pieces} pieces)"), exact, 0.1),
            row(format!("{PLANS} realised plans, frontier included"), plans, 0.5),
        ],
    );
    Ok(())
}

//! Our planner on a profile, as somebody runs it.

use std::process::{Command, Stdio};
use std::time::Instant;

use pfo_planner::{Frontier, Prediction, replay};
use pfo_tests::programs;
use tempfile::TempDir;

use crate::Result;
use crate::bench_profile::BenchProfile;

/// Of each time, the middle one is taken.
const REPETITIONS: usize = 5;

/// What became of it.
pub(crate) struct OurRun {
    /// From the profile to a frontier file, and from that to plan files.
    pub(crate) optimize_s: f64,
    pub(crate) sample_s: f64,
    pub(crate) frontier: Frontier,
}

impl OurRun {
    pub(crate) fn new(bench: &BenchProfile, microbatches: u32, plans: usize) -> Result<Self> {
        let directory = TempDir::with_prefix("pfo-bench-")?;
        let frontier = directory.path().join("frontier");
        let mut optimize = Command::new(programs::program("pfoctl"));
        optimize.args(["plan", "optimize"]).arg(&bench.path);
        optimize.args(["--microbatches", &microbatches.to_string(), "--plans"]);
        optimize.args([&plans.to_string(), "--p2p-power", &bench.p2p_power.0.to_string(), "-o"]);
        optimize.arg(&frontier);
        let mut optimize_s = Vec::new();
        let mut sample_s = Vec::new();
        for repetition in 0..REPETITIONS {
            optimize_s.push(seconds(&mut optimize)?);
            let mut sample = Command::new(programs::program("pfoctl"));
            sample.args(["plan", "sample", "-n", "1", "--format", "zeus"]).arg(&frontier);
            sample.arg("-o").arg(directory.path().join(repetition.to_string()));
            sample_s.push(seconds(&mut sample)?);
        }
        let median = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[REPETITIONS / 2]
        };
        Ok(Self {
            optimize_s: median(optimize_s),
            sample_s: median(sample_s),
            frontier: Frontier::from_bytes(&std::fs::read(frontier)?)?,
        })
    }

    /// What its plans are predicted to take, and what they take.
    pub(crate) fn claims(
        &self,
        bench: &BenchProfile,
    ) -> Result<(Vec<Prediction>, Vec<Prediction>)> {
        let mut claims = (Vec::new(), Vec::new());
        for place in 0..self.frontier.plans().len() {
            let plan = self.frontier.plan(place)?;
            claims.0.extend(plan.predicted);
            claims.1.push(replay(&bench.profile, &plan, bench.p2p_power)?.into());
        }
        Ok(claims)
    }
}

fn seconds(command: &mut Command) -> Result<f64> {
    let began = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    if !status.success() {
        return Err(format!("{command:?}: {status}").into());
    }
    Ok(began.elapsed().as_secs_f64())
}

//! lowtime itself on a profile, through a script of ours that uses it as its users do.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use pfo_planner::{Filter, LowtimePlan, Pipeline, Prediction, replay};
use pfo_tests::programs;
use serde::Deserialize;
use tempfile::TempDir;

use crate::Result;
use crate::bench_profile::BenchProfile;

/// The environment that `scripts/setup --bench` installs it into.
const PYTHON: &str = "target/lowtime/bin/python";
const SCRIPT: &str = "tests/bench/run_lowtime.py";
/// Its own default of the unit of time, which its plans are apart by.
pub(crate) const UNIT_TIME_S: f64 = 0.001;

/// What became of a run.
pub(crate) struct LowtimeRun {
    pub(crate) filter: Filter,
    /// Of the whole process, from the profile to plan files.
    pub(crate) total_s: f64,
    /// Of that, what its solver took.
    pub(crate) solve_s: f64,
    /// Plan by plan.
    pub(crate) claimed: Vec<Prediction>,
    pub(crate) replayed: Vec<Prediction>,
}

#[derive(Deserialize)]
struct Said {
    solve_s: f64,
}

/// Whether it is installed.
pub(crate) fn is_installed() -> bool {
    programs::source_root().join(PYTHON).exists()
}

impl LowtimeRun {
    /// Runs it, and replays what it makes.
    pub(crate) fn new(
        bench: &BenchProfile,
        pipeline: &Pipeline,
        filter: Filter,
        unit_time_s: f64,
    ) -> Result<Self> {
        let root = programs::source_root();
        let plans = TempDir::with_prefix("pfo-bench-")?;
        let energy = match filter {
            Filter::Raw => "raw",
            Filter::Effective => "effective",
        };
        eprintln!("pfo-bench: running lowtime (candidates by {energy} energy) …");
        let began = Instant::now();
        let output = Command::new(root.join(PYTHON))
            .args(["-W", "ignore"])
            .arg(root.join(SCRIPT))
            .arg(&bench.path)
            .arg(pipeline.num_microbatches().to_string())
            .args([&bench.p2p_power.0.to_string(), &unit_time_s.to_string(), energy])
            .arg(pipeline.schedule().to_string())
            .arg(plans.path())
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()?;
        let total_s = began.elapsed().as_secs_f64();
        if !output.status.success() {
            return Err(format!("lowtime: {}", output.status).into());
        }
        let Said { solve_s } = serde_json::from_slice(&output.stdout)?;
        let claimed = read_claims(&plans.path().join("claims.csv"))?;
        let replayed = (0..claimed.len())
            .map(|number| {
                let path = plans.path().join(format!("freqs_pipeline_{number:05}.py"));
                let plan = LowtimePlan::from_bytes(&fs::read(path)?)?.plan(pipeline)?;
                Ok(replay(pipeline.profile(), &plan, bench.p2p_power)?.into())
            })
            .collect::<Result<_>>()?;
        Ok(Self { filter, total_s, solve_s, claimed, replayed })
    }

    /// Whose script filters like this.
    pub(crate) fn name(&self) -> &'static str {
        match self.filter {
            Filter::Raw => "lowtime, Perseus' filter",
            Filter::Effective => "lowtime, Zeus' filter",
        }
    }
}

fn read_claims(path: &Path) -> Result<Vec<Prediction>> {
    let read = |line: &str| {
        let (time, energy) = line.split_once(',').ok_or("no claim")?;
        Ok(Prediction { iteration_time_s: time.parse()?, iteration_energy_j: energy.parse()? })
    };
    fs::read_to_string(path)?.lines().skip(1).map(read).collect()
}

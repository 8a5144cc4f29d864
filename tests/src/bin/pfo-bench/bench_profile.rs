//! The profile that planners are measured on.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

use pfo_planner::{Profile, Watts};
use pfo_tests::programs;
use tempfile::TempDir;

use crate::Result;

/// Where measured profiles are, when the environment does not say.
const DATA: &str = "../shared/data";
const MEASURED: &str = "profiles/gpt3-175b-a100.csv";
const STEPPED: &str = "gpt3-175b-a40.csv";
/// What an A40 draws in that profile while it waits for its neighbour.
const STEPPED_P2P_POWER: Watts = Watts(70.38);
/// What an A100 draws in this profile while it waits for its neighbour.
const P2P_POWER: Watts = Watts(83.64);

/// Eight stages.
pub(crate) struct BenchProfile {
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) profile: Profile,
    pub(crate) p2p_power: Watts,
    /// Where it is, if it was made for this run.
    made_in: Option<TempDir>,
}

impl BenchProfile {
    /// The measured one or, where that is not, what the simulated GPUs would give.
    pub(crate) fn find() -> Result<Self> {
        let data = std::env::var_os("PFO_DATA_DIR").map_or_else(|| DATA.into(), PathBuf::from);
        let measured = data.join(MEASURED);
        if measured.exists() {
            return Self::read("GPT-3 175B, measured on A100", measured, None);
        }
        let directory = TempDir::with_prefix("pfo-bench-")?;
        let path = directory.path().join("profile.csv");
        let mut command = Command::new(programs::program("pfo-sim"));
        command.args(["profile", "--ideal", "--gpu", "A100", "--stages", "8", "-o"]).arg(&path);
        if !command.status()?.success() {
            return Err("pfo-sim makes no profile".into());
        }
        Self::read("made up: PFO_DATA_DIR has no measured one", path, Some(directory))
    }

    /// Whether it is of real GPUs, which is what planning times are aimed at.
    pub(crate) fn is_measured(&self) -> bool {
        self.made_in.is_none()
    }

    /// Beside a measured profile, that of GPUs that get slower at some higher clocks, because they run
    /// into their power limit.
    pub(crate) fn stepped(&self) -> Option<Self> {
        let path = self.path.with_file_name(STEPPED);
        let is_there = self.is_measured() && path.exists();
        let stepped =
            is_there.then(|| Self::read("GPT-3 175B, measured on A40", path, None))?.ok()?;
        Some(Self { p2p_power: STEPPED_P2P_POWER, ..stepped })
    }

    fn read(name: &'static str, path: PathBuf, directory: Option<TempDir>) -> Result<Self> {
        let profile = Profile::from_csv(File::open(&path)?)?;
        Ok(Self { name, path, profile, p2p_power: P2P_POWER, made_in: directory })
    }
}

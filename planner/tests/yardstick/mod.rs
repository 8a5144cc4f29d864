//! The data measured on real GPUs, and the judge of plans in Python beside it.
//!
//! Neither is part of this repository: `PFO_DATA_DIR` says where the data is, or it lies in
//! `shared/data` beside the project. Where it is absent, the tests that need it say so and pass.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a file of the measured data is, or nothing and a word about it.
pub(crate) fn data(path: &str) -> Option<PathBuf> {
    let directory = std::env::var_os("PFO_DATA_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"),
        PathBuf::from,
    );
    let found = Some(directory.join(path)).filter(|path| path.exists());
    if found.is_none() {
        eprintln!("skipped: there is no {}", directory.join(path).display());
    }
    found
}

/// What the Python yardstick says of plan files; nothing and a word where it is absent.
pub(crate) fn judged_by_python(csv: &Path, plan: &Path) -> Option<(f64, f64)> {
    let tool = csv.parent()?.join("../../tools/evaluate_plan.py");
    let output = Command::new("python3").arg(&tool).arg(csv).arg(plan).output().ok();
    let Some(output) = output.filter(|output| output.status.success()) else {
        eprintln!("skipped: python3 {} does not run here", tool.display());
        return None;
    };
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    Some((json["iteration_time_s"].as_f64()?, json["iteration_energy_j"].as_f64()?))
}

//! The judge of plans in Python, which lies beside the measured data.

use std::path::Path;
use std::process::Command;

use crate::measured_data::data;

/// What the Python yardstick says of plan files; nothing and a word where it is absent.
pub(crate) fn judged_by_python(csv: &Path, plan: &Path) -> Option<(f64, f64)> {
    let tool = data("../tools/evaluate_plan.py")?;
    let output = Command::new("python3").arg(&tool).arg(csv).arg(plan).output().ok();
    let Some(output) = output.filter(|output| output.status.success()) else {
        eprintln!("skipped: python3 {} does not run here", tool.display());
        return None;
    };
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    Some((json["iteration_time_s"].as_f64()?, json["iteration_energy_j"].as_f64()?))
}

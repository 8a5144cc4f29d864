//! The replay of order files in Python: another program, which shares nothing with this crate.

use std::path::Path;
use std::process::Command;

use pfo_planner::Plan;
use serde_json::Value;

/// A plan for an order file, and the profile that it is over.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) csv: String,
    pub(crate) order: String,
    pub(crate) plan: Plan,
}

/// Compares what the plans predict with what Python makes of their files; says so where there is no
/// Python.
pub(crate) fn replayed_by_python(cases: &[Case]) {
    let directory = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/second_replay/replay_order.py");
    let mut command = Command::new("python3");
    command.arg(script);
    for (number, Case { csv, order, plan, .. }) in cases.iter().enumerate() {
        let plan = plan.to_json().unwrap();
        for (kind, text) in [("csv", csv), ("order.json", order), ("plan.json", &plan)] {
            let path = directory.path().join(format!("{number}.{kind}"));
            std::fs::write(&path, text).unwrap();
            command.arg(path);
        }
    }
    let Ok(output) = command.output() else {
        eprintln!("skipped: python3 does not run here");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let mut lines = lines.lines();
    for Case { name, plan, .. } in cases {
        let replayed: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
        let predicted = plan.predicted.unwrap();
        for (quantity, predicted) in [
            ("iteration_time_s", predicted.iteration_time_s),
            ("iteration_energy_j", predicted.iteration_energy_j),
        ] {
            let replayed = replayed[quantity].as_f64().unwrap();
            let off = (replayed / predicted - 1.0).abs();
            assert!(off < 1e-9, "{name}: {quantity} {predicted}, by Python {replayed}");
        }
    }
}

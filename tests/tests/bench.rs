//! The benchmark itself: figures are worth nothing in a test, but every part has to run to its end.

use std::process::{Command, Stdio};

use pfo_tests::{Ran, programs};

#[test]
fn every_part_of_the_benchmark_runs_after_the_others() {
    let mut command = Command::new(programs::program("pfo-bench"));
    command.args(["--short", "--json"]).current_dir(programs::source_root()).stdin(Stdio::null());
    let report = Ran::from(command.output().unwrap());
    assert_eq!(report.code, Some(0), "{report:?}");
    let tables = [
        "footprint",
        "event_path",
        "recording",
        "accuracy",
        "p2p_accuracy",
        "tune_accuracy",
        "abuse",
        "call",
        "call_beside_readers",
        "planning",
        "planning_growth",
    ];
    let report = report.json();
    for table in tables {
        assert!(!report[table].as_array().unwrap().is_empty(), "no row of {table}: {report:#}");
    }
}

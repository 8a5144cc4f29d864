//! What else is measured of a job over four nodes, with the commands that measure a job of one.

use std::collections::BTreeSet;
use std::fs;

use pfo_tests::{Identity, STAGES, kept_plan};
use serde_json::Value;

use super::cluster::JOB;
use super::staged::{MICROBATCHES, compare};
use super::trained::{REPLICAS, Trained};

const RANKS: usize = STAGES as usize * REPLICAS;
const STEPS: usize = 2;

fn ran(trained: &Trained, node: usize, arguments: &[&str]) -> Value {
    trained.nodes[node].pfoctl(&Identity::own(), arguments).json()
}

/// Every instruction of every rank is there once.
pub(crate) fn samples(trained: &Trained) {
    let steps = STEPS.to_string();
    let samples = ["profile", "samples", JOB, "--mhz", "1740", "--steps", &steps, "--json"];
    let rows = ran(trained, 2, &samples);
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), RANKS * STEPS * 2 * MICROBATCHES as usize, "{rows:?}");
    let ranks: BTreeSet<_> = rows.iter().map(|row| row["rank"].to_string()).collect();
    assert_eq!(ranks.len(), RANKS, "{rows:?}");
}

/// A dump in the format of Perseus' artifact has the instructions of every stage.
pub(crate) fn perseus(trained: &Trained, plan: &str) {
    let directory = trained.nodes[1].directory().join("perseus");
    let (dump, csv) = (directory.display().to_string(), directory.with_extension("csv"));
    let csv = csv.display().to_string();
    let steps = STEPS.to_string();
    let sweep = ["compare", "sweep", JOB, plan, "--steps", &steps, "-o", &csv, "--json"];
    let measured = ran(trained, 1, &[&sweep[..], &["--perseus", &dump]].concat());
    assert_eq!(measured["plans"].as_array().unwrap().len(), 1, "{measured}");
    let written = fs::read_dir(&directory).unwrap().count();
    assert!(written >= 2, "{written} files in {dump}");
}

/// The waits of all ranks are measured, and the job runs what it ran before.
pub(crate) fn p2p_power(trained: &Trained, watts: f64) {
    let before = trained.nodes[0].job(JOB).plan.map(|plan| Value::from(plan.label)).unwrap();
    let measure = ["p2p", "measure", "--job", JOB, "--steps", "5", "--clocks", "1740", "--json"];
    let kept = ran(trained, 3, &measure);
    let powers: Vec<_> =
        kept.as_array().unwrap().iter().filter_map(|power| power["power_w"].as_f64()).collect();
    assert!(!powers.is_empty(), "{kept}");
    assert!(powers.iter().all(|power_w| (power_w / watts - 1.0).abs() < 0.1), "{kept}");
    trained.assert_all_run(&before);
}

/// Power limits are searched, proved and kept on all nodes.
pub(crate) fn power_limits(trained: &Trained) {
    let loosely = ["--max-slowdown", "60%", "--steps", "3", "--search-steps", "1"];
    let zeus = ["--policy", "zeus-global", "--zeus-eta", "1", "--power-step-w", "100"];
    let report = compare(&trained.nodes[1], &[&zeus[..], &loosely].concat());
    let kept: Vec<u32> = serde_json::from_value(report["kept"]["power_limits_w"].clone()).unwrap();
    assert_eq!(kept.len(), STAGES as usize, "{report}");
    trained.assert_all_run(&report["kept"]["label"]);
    for node in &trained.nodes {
        let in_force: Vec<_> = (0..2).map(|gpu| node.machine.power_limit_w(gpu)).collect();
        assert!(in_force.iter().all(|limit_w| *limit_w == f64::from(kept[0])), "{in_force:?}");
    }
    assert!(kept_plan(&report)["saving"]["low"].as_f64() > Some(0.0), "{report}");
}

/// What a calibration asks for, one stage's GPUs alone would be asked for.
pub(crate) fn calibration_is_refused(trained: &Trained, profile: &str) {
    let calibrate = ["gpu", "calibrate", JOB, "--profile", profile];
    let refused = trained.nodes[0].pfoctl(&Identity::own(), &calibrate);
    assert_ne!(refused.code, Some(0), "{refused:?}");
    assert!(refused.stderr.contains("has ranks on other nodes"), "{refused:?}");
}

//! `pfoctl tune` of a training of two replicas over four nodes: it saves what the simulator's tables say,
//! and what the same training saves on one node.

use std::collections::BTreeSet;

use pfo_protocol::{SweepState, SweepStatus};
use pfo_tests::{Identity, Node, kept_plan, true_profile};

use super::cluster::{JOB, NODES, PATIENCE, STAGES};
use super::measured;
use super::possible::{P2P_POWER, number, possible_saving};
use super::staged::{MICROBATCHES, TIME_SCALE, frontier, pfoctl};
use super::swept::until_swept_within;
use super::trained::{REPLICAS, Trained};

/// Sweeps a few clocks, and keeps a plan that saves whatever else the machine does.
const SHORT: [&str; 6] =
    ["--max-slowdown", "50%", "--set", "sweep_stride=350", "--set", "sweep_steps=3"];

#[test]
fn replicas_over_four_nodes_are_tuned_and_their_plan_is_swept_as_on_one_node() {
    let Some(trained) = Trained::over_nodes() else { return };
    let plans = trained.nodes[1].directory().join("plans");
    std::fs::create_dir(&plans).unwrap();
    let plan = plans.join("kept.json").display().to_string();
    let report = trained.tune(1, &[&SHORT[..], &["--output", &plan]].concat());
    assert_eq!(report["profile_origin"], "measured", "{report}");
    assert!(number(&kept_plan(&report)["saving"]["low"]) > 0.0, "{report}");
    assert_replicas_shared_the_clocks(&profile_rows(&trained.nodes[1]));
    trained.assert_all_run(&report["kept"]["label"]);
    // Nothing but the sweep changes the job.
    let off = trained.nodes[2].pfoctl(&Identity::own(), &["plan", "guard", JOB, "--off"]);
    assert_eq!(off.code, Some(0), "{off:?}");
    trained.assert_all_run(&report["kept"]["label"]);
    measured::perseus(&trained, &plans.display().to_string());
    trained.training.stop();
}

#[test]
fn a_sweep_over_four_nodes_waits_for_a_node_that_is_away_and_loses_nothing() {
    let Some(mut trained) = Trained::over_nodes() else { return };
    sweep_while_a_node_leaves(&mut trained);
    trained.training.stop();
}

#[test]
fn samples_of_replicas_over_four_nodes_are_of_every_rank() {
    let Some(trained) = Trained::over_nodes() else { return };
    measured::samples(&trained);
    trained.training.stop();
}

#[test]
fn a_job_over_four_nodes_is_not_calibrated() {
    let Some(trained) = Trained::over_nodes() else { return };
    let profile = trained.nodes[0].plan_file("profile.csv", true_profile(TIME_SCALE).as_bytes());
    measured::calibration_is_refused(&trained, &profile);
    trained.training.stop();
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn power_limits_of_replicas_over_four_nodes_are_searched_and_kept_on_all() {
    let Some(trained) = Trained::over_nodes() else { return };
    measured::power_limits(&trained);
    trained.training.stop();
}

fn until_swept(node: &Node, what: &str, so: impl Fn(&SweepStatus) -> bool) -> SweepStatus {
    until_swept_within(PATIENCE, node, what, so)
}

/// A sweep for a profile waits while a node is away, says for which one, and loses nothing.
fn sweep_while_a_node_leaves(trained: &mut Trained) {
    const AWAY: usize = 2;
    let user = Identity::own();
    let sweep = ["profile", "start", JOB, "--steps", "2", "--stride", "570", "--min-mhz", "600"];
    let _ = trained.nodes[0].pfoctl(&user, &sweep).printed();
    let before = until_swept(&trained.nodes[0], "a clock is measured", |sweep| sweep.measured > 0);
    trained.nodes[AWAY].kill_agent();
    let waits = until_swept(&trained.nodes[0], "it waits for a node", |sweep| match &sweep.state {
        SweepState::Waiting { why } => why.contains(NODES[AWAY]),
        _ => false,
    });
    assert!(waits.measured >= before.measured, "{before:?}, then {waits:?}");
    let status = trained.nodes[0].pfoctl(&user, &["profile", "status"]).printed();
    assert!(status.contains(NODES[AWAY]), "{status}");
    trained.nodes[AWAY].start_agent();
    let is_over = |sweep: &SweepStatus| matches!(sweep.state, SweepState::Ended(_));
    let ended = until_swept(&trained.nodes[0], "it goes on to its end", is_over);
    assert!(ended.measured > waits.measured, "{waits:?}, then {ended:?}");
    let rows = profile_rows(&trained.nodes[0]);
    let clocks: BTreeSet<_> = rows.iter().map(|row| row[2].clone()).collect();
    assert_eq!(clocks.len(), ended.measured as usize, "{rows:?}");
}

/// The fields of each row of the stored profile.
fn profile_rows(node: &Node) -> Vec<Vec<String>> {
    let csv = node.pfoctl(&Identity::own(), &["profile", "export", JOB]).printed();
    let fields = |row: &str| row.split(',').map(str::to_owned).collect::<Vec<_>>();
    csv.lines().skip(1).map(fields).collect()
}

/// All replicas have measured the first clock, and another one for each of them came next.
fn assert_replicas_shared_the_clocks(rows: &[Vec<String>]) {
    let has = |stage: u32| rows.iter().any(|row| row[0] == stage.to_string());
    assert!((0..STAGES).all(has), "{rows:?}");
    let mut clocks: Vec<u32> = rows.iter().map(|row| row[2].parse().unwrap()).collect();
    clocks.dedup();
    let replicas = |mhz: &u32| {
        let own = rows.iter().filter(|row| row[2] == mhz.to_string());
        own.map(|row| row[9].clone()).collect::<BTreeSet<_>>()
    };
    let of_each: Vec<_> = clocks.iter().map(replicas).collect();
    assert_eq!(of_each[0].len(), REPLICAS, "{rows:?}");
    assert!(of_each[1].len() == 1 && of_each[1] != of_each[2], "{rows:?}");
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn replicas_over_four_nodes_save_what_is_possible_and_as_much_as_on_one() {
    const MAX_SLOWDOWN: f64 = 0.04;
    let Some(trained) = Trained::over_nodes() else { return };
    let csv = true_profile(TIME_SCALE);
    let tune = |node: usize| {
        let csv = &csv;
        move |trained: &Trained| {
            let file = trained.nodes[node].plan_file("profile.csv", csv.as_bytes());
            let microbatches = format!("microbatches={MICROBATCHES}");
            let power = format!("p2p_power_w=[{}]", P2P_POWER.0);
            let given = ["--profile", &file, "--set", &microbatches];
            let within = ["--set", &power, "--max-slowdown", "4%"];
            let report = trained.tune(node, &[given, within].concat());
            let kept = kept_plan(&report);
            assert!(number(&kept["slowdown"]["estimate"]) <= MAX_SLOWDOWN, "{report}");
            let possible = possible_saving(csv, REPLICAS, &report);
            assert!(number(&kept["saving"]["low"]) > 0.0, "{report}");
            assert!(number(&kept["saving"]["low"]) < possible + 0.01, "not {possible}: {report}");
            assert_eq!(number(&report["guard"]["max_slowdown"]), MAX_SLOWDOWN, "{report}");
            report
        }
    };
    let (over_nodes, report) = trained.saved_by(tune(3));
    let (on_one, other) = Trained::on_one_node().saved_by(tune(0));
    assert!(
        (over_nodes - on_one).abs() <= 0.005,
        "{over_nodes} saved over nodes, {on_one} on one: {report}, {other}"
    );
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn the_waits_of_replicas_over_four_nodes_show_the_p2p_blocking_power() {
    let Some(trained) = Trained::over_nodes() else { return };
    let [_, plan] = frontier(&trained.nodes[1], "1.02x");
    let _ = pfoctl(&trained.nodes[1], &["plan", "swap", JOB, &plan, "--wait"]);
    measured::p2p_power(&trained, P2P_POWER.0);
    trained.training.stop();
}

//! `pfoctl tune` of a training over four nodes: it saves what the simulator's tables say, on all of them.

use pfo_tests::{Identity, Ran, Setup, kept_plan, true_profile};

use super::cluster::{JOB, STAGES};
use super::possible::{P2P_POWER, number, possible_saving};
use super::staged::{MICROBATCHES, Staged, TIME_SCALE};

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn a_job_over_four_nodes_saves_what_is_possible_within_the_slowdown_asked_for() {
    const MAX_SLOWDOWN: f64 = 0.04;
    let Some(staged) = Staged::start_with(|_| Setup::default()) else { return };
    let csv = true_profile(TIME_SCALE);
    let file = staged.nodes[1].plan_file("profile.csv", csv.as_bytes());
    let microbatches = format!("microbatches={MICROBATCHES}");
    let power = format!("p2p_power_w=[{}]", P2P_POWER.0);
    let given = ["--profile", &file, "--set", &microbatches, "--set", &power];
    let report = staged.tune(1, &[&given[..], &["--max-slowdown", "4%"]].concat());
    let kept = kept_plan(&report);
    assert!(number(&kept["slowdown"]["estimate"]) <= MAX_SLOWDOWN, "{report}");
    let possible = possible_saving(&csv, 1, &report);
    let saving = &kept["saving"];
    assert!(number(&saving["high"]) > possible - 0.01, "not {possible}: {report}");
    assert!(number(&saving["low"]) < possible + 0.01, "not {possible}: {report}");
    assert!((number(&saving["estimate"]) - possible).abs() < 0.03, "not {possible}: {report}");
    assert_eq!(number(&report["guard"]["max_slowdown"]), MAX_SLOWDOWN, "{report}");
    staged.assert_all_run(report["kept"]["label"].as_str().unwrap());
    staged.training.stop();
}

#[test]
fn a_job_over_four_nodes_is_swept_and_tuned_with_one_command() {
    let Some(staged) = Staged::start_with(|_| Setup::default()) else { return };
    let short = ["--max-slowdown", "50%", "--set", "sweep_stride=350", "--set", "sweep_steps=2"];
    let report = staged.tune(0, &short);
    assert_eq!(report["profile_origin"], "measured", "{report}");
    let power_w = number(&report["p2p_power"]["watts"]);
    assert!((power_w / P2P_POWER.0 - 1.0).abs() < 0.1, "{report}");
    let kept = kept_plan(&report);
    assert!(number(&kept["saving"]["low"]) > 0.0, "{report}");
    staged.assert_all_run(report["kept"]["label"].as_str().unwrap());
    // The profile has the rows of every stage.
    let profiles = staged.nodes[0].pfoctl(&Identity::own(), &["profile", "export", JOB]).printed();
    let has = |stage: u32| profiles.lines().any(|row| row.starts_with(&format!("{stage},")));
    assert!((0..STAGES).all(has), "{profiles}");
    let ran = staged.nodes[3].pfoctl(&Identity::own(), &["plan", "rollback", JOB, "--wait"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    staged.training.stop();
}

#[test]
fn a_tune_over_four_nodes_ends_with_the_job_and_leaves_no_lock() {
    let Some(staged) = Staged::start_with(|_| Setup::default()) else { return };
    let Staged { training, nodes, .. } = staged;
    let [asked, last] = [&nodes[0], &nodes[3]];
    let order = ["tune", JOB, "--max-slowdown", "50%", "--set", "sweep_steps=1000"];
    let tuning = asked.begin_pfoctl(&Identity::own(), &order);
    asked.until_so("the job is measured", || asked.job(JOB).plan.is_some());
    training.stop();
    let ran = Ran::from(tuning.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.stderr.contains("job pipeline has ended: it has no rank on this node"), "{ran:?}");
    for node in [asked, last] {
        let owes = || (node.machine.sm_lock(0).map(|_| ()), node.ledger_entries());
        node.until_is("nothing is owed", &(None, 0), owes);
    }
}

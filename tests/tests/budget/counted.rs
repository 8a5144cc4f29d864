//! What counts for a budget that nobody can read, and what is said of a job that no budget covers.

use pfo_tests::{Identity, Training};

use crate::{FIRST, SCALE, admin, node, status};

#[test]
fn a_gpu_that_reports_no_power_counts_with_its_last_one_and_a_job_without_a_budget_is_told_so() {
    let node = node();
    let user = Identity::trainer();
    let options = ["--time-scale", SCALE, "--gpus", "0,1,2,3"];
    let training = Training::start(&node, FIRST, &user, &options);
    training.until_leased(&node);
    let uncovered = node.pfoctl(&user, &["budget", "explain", FIRST]);
    assert_eq!(uncovered.code, Some(4), "{uncovered:?}");
    let none = "no power budget takes anything from job first: none covers it";
    assert!(uncovered.stderr.contains(none), "{uncovered:?}");

    let _ = admin(&node, &["budget", "set", "9kW"]);
    let base_w = || status(&node)["budgets"][0]["base_w"].as_f64().unwrap();
    node.until_so("the budget counts", || base_w() > 0.0);
    let idle_w = base_w();
    node.machine.fault("nvmlDeviceGetPowerUsage", "unknown", Some(8));
    let problem = || status(&node)["budgets"][0]["problem"].as_str().map(str::to_owned);
    node.until_so("what counts for the GPU", || {
        problem().is_some_and(|why| why.starts_with("GPU 8 reports no power: its last "))
    });
    assert!(base_w() > 0.9 * idle_w, "{} W of {idle_w} W", base_w());
    node.machine.clear_faults();
    node.until_is("what is wrong", &None, problem);

    let cleared = admin(&node, &["budget", "clear"]);
    assert!(!cleared.contains(FIRST), "{cleared}");
    training.stop();
}

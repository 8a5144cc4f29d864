//! `pfoctl plan evaluate` and `plan export` with a measured step: what is in no instruction.

use crate::pfoctl::Bench;
use serde_json::Value;

fn planned() -> Bench {
    let bench = Bench::new();
    let optimize = ["plan", "optimize", "profile.csv", "--p2p-power", "80", "--plans", "20"];
    bench.done(&[&optimize[..], &["--microbatches", "4", "-o", "frontier"]].concat());
    bench.done(&["plan", "export", "frontier", "--deadline", "1.1x", "-o", "plan.json"]);
    bench
}

fn evaluated(bench: &Bench, rest: &[&str]) -> Value {
    let evaluate = ["plan", "evaluate", "profile.csv", "plan.json", "--json"];
    serde_json::from_str(&bench.done(&[&evaluate[..], rest].concat())).unwrap()
}

#[test]
fn what_a_measured_step_takes_beside_its_instructions_is_as_long_as_if_it_was_given() {
    let bench = planned();
    let highest_s = evaluated(&bench, &[])["all_max"]["iteration_time_s"].as_f64().unwrap();
    let step = format!("{}s", highest_s + 0.05);
    let (measured, given) =
        (evaluated(&bench, &["--measured-step", &step]), evaluated(&bench, &["--rest-ms", "50"]));
    let rest_s = measured["expected"]["rest_s"].as_f64().unwrap();
    assert!((rest_s - 0.05).abs() < 1e-9, "{measured}");
    for (quantity, added) in [("iteration_time_s", 0.05), ("iteration_energy_j", 0.05 * 80.0 * 2.0)]
    {
        let alone = evaluated(&bench, &[])["expected"][quantity].clone();
        for (end, share) in [(0, 0.95), (1, 1.05)] {
            let figure = |of: &Value| of["expected"][quantity][end].as_f64().unwrap();
            let off = figure(&measured) - alone[end].as_f64().unwrap() - share * added;
            assert!(off.abs() < 1e-6, "{quantity}: {measured}");
            assert!((figure(&measured) - figure(&given)).abs() < 1e-6, "{given}");
        }
    }
}

#[test]
fn a_step_that_says_nothing_of_a_plan_is_refused_with_the_reason() {
    let bench = planned();
    let evaluate = |rest: &[&str]| {
        bench.run(&[&["plan", "evaluate", "profile.csv", "plan.json"][..], rest].concat())
    };
    assert_printed!(
        evaluate(&["--measured-step", "10ms"]),
        evaluate(&["--measured-step", "10s"]),
        evaluate(&["--measured-step", "10"]),
        evaluate(&["--measured-step", "2s", "--rest-ms", "3"]),
        evaluate(&["--rest-ms", "-3"]),
        evaluate(&["--rest-ms", "50"]),
        evaluate(&["--rest-ms", "300000"]),
        evaluate(&["--rest-ms", "1e300"]),
        bench.run(&[
            "plan",
            "export",
            "frontier",
            "--deadline",
            "1.1x",
            "--rest-ms",
            "50",
            "-o",
            "p.json"
        ]),
    );
}

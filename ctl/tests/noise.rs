//! `pfoctl plan` with profiles that were measured more than once, and not well.

use std::fmt::Write;
use std::fs;

use crate::pfoctl::Bench;

const PIPELINE: [&str; 4] = ["--microbatches", "4", "--p2p-power", "80"];

/// One stage, three windows of 24 clocks; the error of each is drawn from a fixed sequence.
fn noisy(error: f64) -> String {
    let mut csv = "window,stage,instruction,frequency,time,energy\n".to_owned();
    let mut state = 1_u64;
    let mut off = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        1.0 + error * ((state >> 40) as f64 / f64::from(1 << 23) - 1.0)
    };
    for (instruction, seconds) in [("forward", 0.05), ("backward", 0.1)] {
        for mhz in (1065..=1410).step_by(15) {
            for window in 0..3 {
                let clock = f64::from(mhz) / 1410.0;
                let time_s = seconds / clock * off();
                let energy_j = time_s * (100.0 + 300.0 * clock.powi(3)) * off();
                writeln!(csv, "{window},0,{instruction},{mhz},{time_s},{energy_j}").unwrap();
            }
        }
    }
    csv
}

fn bench(csv: &str) -> Bench {
    let bench = Bench::new();
    bench.write("profile.csv", csv);
    bench
}

#[test]
fn a_plan_over_the_smoothed_profile_costs_what_was_predicted() {
    let bench = bench(&noisy(0.1));
    for noise in ["auto", "isotonic", "off", "factor=5%"] {
        let how = ["profile.csv", "--noise", noise, "-o"];
        bench.done(&[&["plan", "smooth"], &how[..], &["smooth.csv"]].concat());
        bench.done(&[&["plan", "optimize"], &how[..], &["frontier"], &PIPELINE].concat());
        bench.done(&["plan", "export", "frontier", "--deadline", "1.05x", "-o", "plan.json"]);
        let evaluated = bench.done(&["plan", "evaluate", "smooth.csv", "plan.json", "--json"]);
        let evaluated: serde_json::Value = serde_json::from_str(&evaluated).unwrap();
        let plan: serde_json::Value =
            serde_json::from_slice(&fs::read(bench.path("plan.json")).unwrap()).unwrap();
        for figure in ["iteration_time_s", "iteration_energy_j"] {
            let of = |json: &serde_json::Value| json[figure].as_f64().unwrap();
            let (predicted, replayed) = (of(&plan["predicted"]), of(&evaluated));
            assert!((predicted / replayed - 1.0).abs() < 1e-9, "{noise}: {predicted} {replayed}");
        }
    }
}

#[test]
fn who_plans_with_a_noisy_profile_is_told_once_what_was_done_about_it() {
    let bench = bench(&noisy(0.1));
    let optimize = ["plan", "optimize", "profile.csv", "-o", "frontier"];
    assert_printed!(
        bench.run(&[&optimize[..], &PIPELINE].concat()),
        bench.run(&[&optimize[..], &PIPELINE, &["--noise", "off"]].concat()),
    );
}

#[test]
fn a_clean_profile_is_planned_with_as_it_is_and_nothing_is_told() {
    let bench = Bench::new();
    let ran = bench.run(&["plan", "smooth", "profile.csv", "-o", "-"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let values = |csv: &str| -> Vec<Vec<String>> {
        let number = |field: &str| field.parse().map_or(field.to_owned(), |n: f64| n.to_string());
        let mut rows: Vec<_> =
            csv.lines().map(|line| line.split(',').map(number).collect()).collect();
        rows.sort();
        rows
    };
    let measured = fs::read_to_string(bench.path("profile.csv")).unwrap();
    assert_eq!(values(&ran.stdout), values(&measured));
}

#[test]
fn what_is_odd_about_a_profile_is_told_with_its_place_and_as_json() {
    let odd: String = noisy(0.002)
        .lines()
        .filter(|line| !line.contains(",1200,"))
        .map(|line| match line.strip_prefix("1,0,forward,1305,") {
            Some(_) => "1,0,forward,1305,0.5,16\n".to_owned(),
            None => format!("{line}\n"),
        })
        .collect();
    let bench = bench(&odd);
    bench.frontier("frontier", 20);
    bench.done(&["plan", "export", "frontier", "--deadline", "fastest", "-o", "plan.json"]);
    assert_printed!(bench.run(&["plan", "evaluate", "profile.csv", "plan.json", "--json"]));
}

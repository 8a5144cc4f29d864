//! `pfoctl plan optimize` for every schedule:
//! what they are predicted to take is what a replay of the file takes.

use crate::pfoctl::Bench;
use serde_json::Value;

/// Optimizes with these arguments, and gives the plan of 1.1 times the fastest time.
fn plan(bench: &Bench, arguments: &[&str]) -> Value {
    let optimize = ["plan", "optimize", "profile.csv", "--p2p-power", "80", "--plans", "20"];
    let output = ["-o", "frontier"];
    bench.done(&[&optimize[..], arguments, &output].concat());
    bench.done(&["plan", "export", "frontier", "--deadline", "1.1x", "-o", "plan.json"]);
    let evaluated = bench.done(&["plan", "evaluate", "profile.csv", "plan.json", "--json"]);
    let evaluated: Value = serde_json::from_str(&evaluated).unwrap();
    let plan = std::fs::read(bench.path("plan.json")).unwrap();
    let plan: Value = serde_json::from_slice(&plan).unwrap();
    for quantity in ["iteration_time_s", "iteration_energy_j"] {
        let predicted = plan["predicted"][quantity].as_f64().unwrap();
        let replayed = evaluated[quantity].as_f64().unwrap();
        assert!((predicted - replayed).abs() < 1e-9, "{arguments:?}: {predicted} {replayed}");
    }
    plan
}

fn first_stage(plan: &Value) -> Vec<String> {
    let instructions = plan["stages"][0]["instructions"].as_array().unwrap();
    let written = |planned: &Value| {
        let chunk = planned["chunk"].as_u64().map_or(String::new(), |chunk| format!(".{chunk}"));
        format!("{} {}{chunk}", planned["instruction"].as_str().unwrap(), planned["microbatch"])
    };
    instructions.iter().map(written).collect()
}

/// A profile with rows of these instructions like those of `backward`.
fn with_rows_of(bench: &Bench, instructions: &[&str]) {
    let profile = std::fs::read_to_string(bench.path("profile.csv")).unwrap();
    let mut more = profile.clone();
    for instruction in instructions {
        for line in profile.lines().filter(|line| line.contains(",backward,")) {
            more += &format!("{}\n", line.replace(",backward,", &format!(",{instruction},")));
        }
    }
    bench.write("profile.csv", &more);
}

#[test]
fn every_schedule_makes_plans_that_cost_what_they_say() {
    let bench = Bench::new();
    let others = ["forward_backward", "recomputation", "backward_input", "backward_weight"];
    with_rows_of(&bench, &others);
    for (schedule, instructions) in [
        ("1f1b", 8),
        ("gpipe", 8),
        ("envpipe", 8),
        ("early-recomputation-1f1b", 9),
        ("zb-h1", 12),
        ("zb-v", 24),
        // Three pairs of a forward and a backward are one instruction each, and one.
        ("dualpipe-v", 16),
        ("dualpipe", 8),
        ("interleaved-1f1b", 16),
    ] {
        let plan = plan(&bench, &["--microbatches", "4", "--schedule", schedule]);
        assert_eq!(plan["schedule"], schedule);
        assert_eq!(first_stage(&plan).len(), instructions, "{schedule}");
    }
}

#[test]
fn the_order_of_a_schedule_is_planned_alike_from_its_file() {
    let bench = Bench::new();
    with_rows_of(&bench, &["forward_backward", "backward_input", "backward_weight"]);
    for schedule in ["1f1b", "zb-v", "dualpipe"] {
        let arguments = ["--microbatches", "4", "--schedule", schedule];
        let by_name = plan(&bench, &arguments);
        let order = ["plan", "order", "profile.csv", "-o", "order.json"];
        bench.done(&[&order[..], &arguments].concat());
        let by_file = plan(&bench, &["--order", "order.json"]);
        assert_eq!(by_file["schedule"], "custom");
        assert_eq!(by_file["stages"], by_name["stages"], "{schedule}");
        assert_eq!(by_file["predicted"], by_name["predicted"], "{schedule}");
    }
}

#[test]
fn an_order_file_holds_the_time_of_transfers_and_any_other_given_one_counts() {
    let bench = Bench::new();
    let (four, late) = (["--microbatches", "4"], ["--transfer-ms", "20"]);
    let order = ["plan", "order", "profile.csv", "-o", "order.json"];
    bench.done(&[&order[..], &four, &late].concat());
    assert!(bench.text("order.json").contains("\"transfer_time_s\": 0.02,"));
    let predicted = |arguments: &[&str]| plan(&bench, arguments)["predicted"].clone();
    let by_name = |ms: &str| predicted(&[&four[..], &["--transfer-ms", ms]].concat());
    let by_file = |ms: &str| predicted(&["--order", "order.json", "--transfer-ms", ms]);
    assert_eq!(predicted(&["--order", "order.json"]), by_name("20"));
    for ms in ["0", "7"] {
        assert_eq!(by_file(ms), by_name(ms), "{ms} ms");
    }
}

#[test]
fn an_option_that_changes_nothing_is_refused_with_what_it_is_for() {
    let bench = Bench::new();
    let four = ["plan", "order", "profile.csv", "--microbatches", "4"];
    let refused = |more: &[&str]| {
        let ran = bench.run(&[&four[..], more].concat());
        assert_eq!(ran.code, Some(2), "{ran:?}");
        ran.stderr
    };
    insta::assert_snapshot!(
        [
            refused(&["--chunks", "4"]),
            refused(&["--schedule", "zb-v", "--microbatch-group", "5"]),
            refused(&["--schedule", "gpipe", "--extra-warm-up"]),
            refused(&["--memory-limit", "1"]),
            refused(&["--switch-latency-ms", "3"]),
            refused(&["--held-up-ms", "0"]),
        ]
        .join("")
    );
}

/// Writes the order of `dualpipe-v` with instructions of two, and takes their rows from the profile. Returns
/// the order.
fn pairs_without_rows(bench: &Bench) -> Value {
    with_rows_of(bench, &["backward_input", "backward_weight"]);
    let without = std::fs::read_to_string(bench.path("profile.csv")).unwrap();
    with_rows_of(bench, &["forward_backward"]);
    let order = ["plan", "order", "profile.csv", "-o", "order.json"];
    bench.done(&[&order[..], &DUALPIPE_V].concat());
    bench.write("profile.csv", &without);
    serde_json::from_slice(&std::fs::read(bench.path("order.json")).unwrap()).unwrap()
}

const DUALPIPE_V: [&str; 4] = ["--microbatches", "4", "--schedule", "dualpipe-v"];

#[test]
fn pairs_that_the_profile_has_no_rows_of_are_planned_one_after_the_other_from_a_file_too() {
    let bench = Bench::new();
    assert!(pairs_without_rows(&bench).to_string().contains("forward_backward"));
    let (by_name, by_file) = (plan(&bench, &DUALPIPE_V), plan(&bench, &["--order", "order.json"]));
    assert_eq!(by_file["stages"], by_name["stages"]);
    assert_eq!(by_file["predicted"], by_name["predicted"]);
}

#[test]
fn an_order_that_says_what_waits_for_pairs_without_rows_is_refused_for_what_the_profile_lacks() {
    let bench = Bench::new();
    let mut order = pairs_without_rows(&bench);
    let last = order["stages"][0].as_array().unwrap().last().unwrap().clone();
    let mut of = serde_json::json!({ "stage": 0 });
    of.as_object_mut().unwrap().extend(last.as_object().unwrap().clone());
    order["dependencies"] = serde_json::json!([{ "of": of, "after": [] }]);
    bench.write("order.json", &order.to_string());
    let optimize = ["plan", "optimize", "profile.csv", "--p2p-power", "80", "-o", "frontier"];
    assert_printed!(bench.run(&[&optimize[..], &["--order", "order.json"]].concat()));
}

#[test]
fn a_pipeline_runs_1f1b_unless_another_schedule_is_asked_for() {
    let bench = Bench::new();
    bench.frontier("frontier", 5);
    assert_printed!(bench.run(&["plan", "show", "frontier"]));
}

#[test]
fn gpipe_runs_every_forward_first_and_a_memory_limit_holds_envpipe_back() {
    let bench = Bench::new();
    let of = |arguments: &[&str]| {
        let arguments = [&["--microbatches", "6"], arguments].concat();
        let order = first_stage(&plan(&bench, &arguments));
        order.iter().position(|written| written.starts_with("backward")).unwrap()
    };
    assert_eq!(of(&["--schedule", "gpipe"]), 6);
    assert_eq!(of(&["--schedule", "envpipe"]), 3);
    assert_eq!(of(&["--schedule", "envpipe", "--memory-limit", "0"]), 2);
    assert_eq!(of(&["--schedule", "envpipe", "--memory-limit", "1,0"]), 3);
}

#[test]
fn interleaved_plans_name_the_chunk() {
    let bench = Bench::new();
    let schedule = ["--microbatches", "2", "--schedule", "interleaved-1f1b", "--chunks", "3"];
    let order = first_stage(&plan(&bench, &schedule));
    assert_eq!(order.len(), 12);
    assert_eq!(order[..3], ["forward 0", "forward 1", "forward 0.1"]);
}

#[test]
fn transfers_and_fixed_instructions_take_their_time() {
    let bench = Bench::new();
    with_rows_of(&bench, &["load"]);
    let fastest_s = |arguments: &[&str]| {
        plan(&bench, &[&["--microbatches", "1"], arguments].concat());
        let csv = bench.done(&["plan", "show", "frontier", "--csv"]);
        csv.lines().nth(1).unwrap().split_once(',').unwrap().0.parse::<f64>().unwrap()
    };
    let plain_s = fastest_s(&[]);
    // One activation and one gradient.
    assert!((fastest_s(&["--transfer-ms", "2.5"]) - plain_s - 0.005).abs() < 1e-9);
    // The mean of four rows on each stage; the last one loads when its input has come.
    assert!((fastest_s(&["--fixed", "load"]) - plain_s - 0.125 - 0.1495).abs() < 1e-9);
    let planned = plan(&bench, &["--microbatches", "1", "--transfer-ms", "2.5"]);
    assert_eq!(planned["transfer_time_s"], 0.0025);
}

#[test]
fn late_clocks_are_counted_in_plans_and_wherever_they_are_replayed() {
    let bench = Bench::new();
    let mut planned = plan(&bench, &["--microbatches", "2", "--switch-latency-ms", "15"]);
    assert_eq!(planned["switch_latency_s"], 0.015);
    let instructions = planned["stages"][0]["instructions"].as_array_mut().unwrap();
    for (instruction, mhz) in instructions.iter_mut().zip([1370, 1400].into_iter().cycle()) {
        instruction["frequency_mhz"] = mhz.into();
    }
    bench.write("plan.json", &planned.to_string());
    let evaluated_s = |arguments: &[&str]| {
        let evaluate = ["plan", "evaluate", "profile.csv", "plan.json", "--json"];
        let json = bench.done(&[&evaluate, arguments].concat());
        serde_json::from_str::<Value>(&json).unwrap()["iteration_time_s"].as_f64().unwrap()
    };
    let prompt_s = evaluated_s(&["--switch-latency-ms", "0"]);
    assert!((evaluated_s(&[]) - prompt_s).abs() > 1e-3, "no clock was late");
    assert_eq!(evaluated_s(&["--switch-latency-ms", "15"]), evaluated_s(&[]));
}

#[test]
fn a_set_call_may_last_longer_than_a_clock_is_late() {
    let bench = Bench::new();
    let latency = ["--microbatches", "2", "--switch-latency-ms", "23"];
    let planned = plan(&bench, &[&latency[..], &["--set-call-ms", "8"]].concat());
    assert_eq!(planned["set_call_s"], 0.008);
    let planned = plan(&bench, &[&latency[..], &["--set-call-ms", "24"]].concat());
    assert_eq!(planned["set_call_s"], 0.024);
}

#[test]
fn a_clock_for_each_stage_is_one_that_never_changes() {
    let bench = Bench::new();
    let planned = plan(&bench, &["--microbatches", "4", "--clock-per", "stage"]);
    for stage in planned["stages"].as_array().unwrap() {
        let instructions = stage["instructions"].as_array().unwrap();
        let first = &instructions[0]["frequency_mhz"];
        assert!(instructions.iter().all(|planned| planned["frequency_mhz"] == *first), "{stage}");
    }
    assert_printed!(bench.run(&["plan", "evaluate", "profile.csv", "plan.json"]));
}

#[test]
fn clocks_for_waits_save_energy_in_the_same_time() {
    let bench = Bench::new();
    plan(&bench, &["--microbatches", "4", "--switch-latency-ms", "15"]);
    let export = ["plan", "export", "frontier", "--deadline", "1.1x", "-o", "plan.json"];
    bench.done(&[&export[..], &["--wait-power", "210:40,1400:80"]].concat());
    let plan = std::fs::read(bench.path("plan.json")).unwrap();
    let plan: Value = serde_json::from_slice(&plan).unwrap();
    let waits = plan["waits"].as_array().unwrap();
    assert!(!waits.is_empty() && waits.iter().all(|wait| wait["frequency_mhz"] == 210));
    let json = bench.done(&["plan", "evaluate", "profile.csv", "plan.json", "--json"]);
    let evaluated: Value = serde_json::from_str(&json).unwrap();
    let without = &evaluated["without_waits"];
    let number = |value: &Value| value.as_f64().unwrap();
    assert_eq!(evaluated["iteration_time_s"], without["iteration_time_s"]);
    let energy_j = number(&evaluated["iteration_energy_j"]);
    assert_eq!(energy_j, number(&plan["predicted"]["iteration_energy_j"]));
    assert!(energy_j < number(&without["iteration_energy_j"]));
}

#[test]
fn an_order_may_come_from_a_file() {
    let bench = Bench::new();
    let unit = |instruction: &str, microbatch: u32| {
        format!(r#"{{"instruction": "{instruction}", "microbatch": {microbatch}}}"#)
    };
    let stage = [unit("forward", 0), unit("forward", 1), unit("backward", 1), unit("backward", 0)];
    let stage = stage.join(", ");
    let order = format!(r#"{{"format": "pfo-order/1", "stages": [[{stage}], [{stage}]]}}"#);
    bench.write("order.json", &order);
    let planned = plan(&bench, &["--order", "order.json"]);
    assert_eq!(planned["schedule"], "custom");
    assert_eq!(first_stage(&planned)[2], "backward 1");

    let refused = |arguments: &[&str]| {
        let common = ["plan", "optimize", "profile.csv", "--p2p-power", "80", "-o", "frontier"];
        bench.run(&[&common[..], arguments].concat())
    };
    bench.write("broken.json", &order.replacen("backward", "sideways", 1));
    assert_printed!(
        refused(&["--order", "order.json", "--microbatches", "3"]),
        refused(&["--order", "broken.json"]),
        refused(&["--order", "order.json", "--schedule", "gpipe"]),
        refused(&[]),
        refused(&["--microbatches", "4", "--schedule", "2f2b"]),
        refused(&["--microbatches", "4", "--schedule", "zb-h1"]),
        refused(&["--microbatches", "4", "--transfer-ms", "-1"]),
    );
}

#[test]
fn an_order_may_say_what_waits_for_what() {
    let bench = Bench::new();
    let on = |stage: u32, instruction: &str| {
        format!(r#"{{"stage": {stage}, "instruction": "{instruction}", "microbatch": 0}}"#)
    };
    let stage = r#"[{"instruction": "forward", "microbatch": 0},
                    {"instruction": "backward", "microbatch": 0}]"#;
    let order = |dependencies: &str| {
        bench.write(
            "order.json",
            &format!(
                r#"{{"format": "pfo-order/1", "stages": [{stage}, {stage}],
                     "dependencies": [{dependencies}]}}"#
            ),
        );
    };
    let time_s = || {
        let planned = plan(&bench, &["--order", "order.json"]);
        planned["predicted"]["iteration_time_s"].as_f64().unwrap()
    };
    order("");
    let by_rule_s = time_s();
    // The second stage need not wait for the first, nor the first for the second's gradient.
    let freed = |stage, name: &str| format!(r#"{{"of": {}, "after": []}}"#, on(stage, name));
    order(&[freed(1, "forward"), freed(0, "backward")].join(", "));
    let freed_s = time_s();
    assert!(freed_s < 0.7 * by_rule_s, "{freed_s} {by_rule_s}");
    bench.done(&["plan", "plot", "frontier", "--kind", "timeline", "-o", "a.svg"]);

    order(&format!(r#"{{"of": {}, "after": [{}]}}"#, on(0, "forward"), on(1, "forward")));
    let optimize = ["plan", "optimize", "profile.csv", "--p2p-power", "80", "-o", "frontier"];
    assert_printed!(bench.run(&[&optimize[..], &["--order", "order.json"]].concat()));
}

#[test]
fn ranks_of_a_stage_are_combined_as_asked() {
    let bench = Bench::new();
    let profile = std::fs::read_to_string(bench.path("profile.csv")).unwrap();
    let of_two_ranks: String = profile
        .lines()
        .enumerate()
        .map(|(line, row)| match line {
            0 => format!("dp_rank,{row}\n"),
            _ => format!("0,{row}\n1,{row}\n"),
        })
        .collect();
    bench.write("profile.csv", &of_two_ranks);
    let energy_j = |combine: &[&str], power: &str| {
        let optimize = ["plan", "optimize", "profile.csv", "--microbatches", "3", "-o", "frontier"];
        bench.done(&[&optimize[..], &["--p2p-power", power], combine].concat());
        bench.done(&["plan", "export", "frontier", "--deadline", "1.1x", "-o", "plan.json"]);
        let evaluate = ["plan", "evaluate", "profile.csv", "plan.json", "--json"];
        let evaluated = bench.done(&[&evaluate[..], combine].concat());
        let evaluated: Value = serde_json::from_str(&evaluated).unwrap();
        evaluated["iteration_energy_j"].as_f64().unwrap()
    };
    let of_all = energy_j(&["--combine", "slowest"], "160");
    assert!((of_all - 2.0 * energy_j(&[], "80")).abs() < 1e-9);
}

//! `pfo-sim`: what it prints, what it refuses, and with which exit code.

use std::process::{Command, Output};

use serde_json::Value;

fn pfo_sim(state: &tempfile::TempDir, arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pfo-sim"))
        .args(arguments.split_whitespace())
        .env("PFO_SIM_STATE", state.path().join("state"))
        .output()
        .expect("pfo-sim runs")
}

fn machine(gpus: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    assert!(pfo_sim(&directory, &format!("create --gpus {gpus}")).status.success());
    directory
}

fn show(machine: &tempfile::TempDir) -> Value {
    let output = pfo_sim(machine, "show --json --calls");
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).expect("valid JSON")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_new_machine_is_idle_and_unlocked() {
    let machine = machine("2xA100,1xV100");
    let view = show(&machine);
    let gpus = view["gpus"].as_array().unwrap();
    assert_eq!(gpus.len(), 3);
    assert_eq!(gpus[2]["model"], "V100");
    for gpu in gpus {
        assert_eq!(gpu["locked_sm_mhz"], Value::Null);
        assert_eq!(gpu["activity"], "idle");
        assert_eq!(gpu["set_calls"], 0);
        assert!(gpu["uuid"].as_str().unwrap().starts_with("GPU-"));
    }
    let table = text(&pfo_sim(&machine, "show").stdout);
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.contains("LOCKED SM"), "{table}");
}

#[test]
fn where_nobody_looks_clocks_and_power_are_printed_once_without_escape_codes() {
    let machine = machine("2xA100");
    let drawn = text(&pfo_sim(&machine, "watch --seconds 0.3").stdout);
    assert_eq!(drawn.lines().count(), 2, "{drawn}");
    assert!(
        drawn.contains("GPU 1") && drawn.contains(" MHz ") && !drawn.contains('\x1b'),
        "{drawn}"
    );
    assert!(drawn.lines().all(|line| line.chars().count() < 80), "{drawn}");
    let gone = pfo_sim(&machine, "watch --until-end-of 4194305");
    assert!(gone.status.success() && gone.stdout.is_empty(), "{gone:?}");
}

#[test]
fn faults_and_caps_are_shown_and_a_reset_takes_them_back() {
    let machine = machine("A100");
    let fault = "fault --function nvmlDeviceGetName --kind latency:50 --gpu 0 --count 3";
    assert!(pfo_sim(&machine, fault).status.success());
    assert!(pfo_sim(&machine, "power-cap --gpu 0 300").status.success());
    assert!(pfo_sim(&machine, "mig --gpu 0 on").status.success());
    let view = show(&machine);
    assert_eq!(view["faults"][0]["kind"], "latency:50");
    assert_eq!(view["faults"][0]["remaining"], 3);
    assert_eq!(view["gpus"][0]["power_limit_w"], 300.0);
    assert_eq!(view["gpus"][0]["mig"], true);
    let table = text(&pfo_sim(&machine, "show").stdout);
    assert!(
        table.contains("fault: nvmlDeviceGetName on GPU 0: latency:50, 3 calls left"),
        "{table}"
    );
    assert!(pfo_sim(&machine, "power-cap --gpu 0 --off").status.success());
    assert_eq!(show(&machine)["gpus"][0]["power_limit_w"], 400.0);
    assert!(pfo_sim(&machine, "reset").status.success());
    let view = show(&machine);
    assert_eq!(view["faults"].as_array().unwrap().len(), 0);
    assert_eq!(view["gpus"][0]["mig"], false);
}

#[test]
fn what_cannot_be_done_is_code_1_and_what_makes_no_sense_code_2() {
    let machine = machine("A100");
    let nothing = tempfile::tempdir().unwrap();
    for (state, arguments, code, culprit) in [
        (&nothing, "show", 1, "pfo-sim create"),
        (&machine, "power-cap --gpu 1 300", 1, "no GPU 1"),
        (&machine, "fault --function nvmlInit_v2 --kind hang --gpu 4", 1, "no GPU 4"),
        (&machine, "profile --work /does/not/exist", 1, "/does/not/exist"),
        (&machine, "create --gpus 2xB300", 2, "B300"),
        (&machine, "create --gpus A100 --settle-ms -3", 2, "settle-ms"),
        (&machine, "fault", 2, "--function"),
        (&machine, "fault --function frobnicate --kind hang", 2, "frobnicate"),
        (&machine, "fault --function nvmlInit_v2 --kind melt", 2, "melt"),
        (&machine, "power-cap --gpu 0 -5", 2, "-5"),
        (&machine, "profile --gpu A100 --time-scale 0", 2, "above 0"),
    ] {
        let output = pfo_sim(state, arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments}: {message}");
        assert!(message.contains(culprit), "{arguments}: {message}");
    }
}

#[test]
fn a_profile_has_no_clock_that_the_default_power_limit_does_not_let_the_gpu_hold() {
    let machine = machine("A100");
    let profile = text(&pfo_sim(&machine, "profile --gpu A100 --stages 1").stdout);
    let numbers = profile.lines().skip(1).map(|line| line.splitn(3, ',').nth(2).unwrap());
    let mut highest = 0.0_f64;
    for row in numbers {
        let [mhz, time_s, energy_j] =
            [0, 1, 2].map(|column| row.split(',').nth(column).unwrap().parse::<f64>().unwrap());
        assert!(energy_j / time_s <= 400.1, "{row}");
        highest = highest.max(mhz);
    }
    assert!((1290.0..1395.0).contains(&highest), "{highest}");
}

#[test]
fn a_profile_holds_every_stage_instruction_and_clock_of_a_sensible_range_once() {
    let machine = machine("A100");
    let profile = text(&pfo_sim(&machine, "profile --ideal --gpu A100 --stages 4").stdout);
    let mut lines = profile.lines();
    assert_eq!(lines.next(), Some("stage,instruction,frequency,time,energy"));
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    let clocks = (1410 - 810) / 15 + 1;
    assert_eq!(rows.len(), 4 * 2 * clocks);
    let number = |row: &[&str], column: usize| row[column].parse::<f64>().unwrap();
    assert!(rows.iter().all(|row| (810.0..=1410.0).contains(&number(row, 2))));
    let first = rows.iter().find(|row| row[..3] == ["0", "forward", "1410"]).unwrap();
    assert!((number(first, 4) / number(first, 3) - 475.0).abs() < 10.0, "W at full clock");

    let path = machine.path().join("p.csv");
    std::fs::write(&path, &profile).unwrap();
    let again = pfo_sim(&machine, &format!("profile --ideal --work {}", path.display()));
    let again = text(&again.stdout);
    for (one, other) in rows.iter().zip(again.lines().skip(1)) {
        let other: Vec<_> = other.split(',').collect();
        assert_eq!(one[..3], other[..3]);
        assert!((number(one, 4) - number(&other, 4)).abs() < 1e-3, "{one:?} became {other:?}");
    }
}

//! The orders of schedules and of files, held against the code of those who run them: PyTorch,
//! Megatron-Core and DeepSpeed, where they are installed. `PFO_PEERS_PYTHON` is their interpreter.

use std::path::Path;
use std::process::Command;

use pfo_planner::{Instruction, Measurement, Mhz, Order, Profile, Schedule, Settings, Stage};
use serde::Deserialize;

/// What a peer runs, in its own words.
#[derive(Deserialize)]
struct Run {
    schedule: Schedule,
    stages: u16,
    microbatches: u32,
    chunks: u16,
    group: Option<u32>,
    extra: bool,
    file: String,
}

/// A profile in which every kind that schedules run has a row.
fn profile(stages: u16) -> Profile {
    use Instruction::{Backward, BackwardInput, BackwardWeight, Forward, ForwardBackward};

    let kinds = [Forward, Backward, BackwardInput, BackwardWeight, ForwardBackward];
    let row = Measurement { frequency: Mhz(1400), time_s: 0.1, energy_j: 20.0 };
    let rows = (0..stages).flat_map(|stage| kinds.map(|kind| (Stage(stage), kind, row)));
    Profile::from_measurements(rows).unwrap()
}

#[test]
fn every_schedule_is_what_its_peers_own_code_runs() {
    let python = std::env::var("PFO_PEERS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers_orders/peers.py");
    let Ok(output) = Command::new(python).arg(script).output() else {
        eprintln!("skipped: python3 does not run here");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    said.lines().filter(|line| line.starts_with("skipped")).for_each(|line| eprintln!("{line}"));
    let lines = String::from_utf8(output.stdout).unwrap();
    let mut compared = std::collections::BTreeMap::new();
    // Peers print lines of their own.
    for line in lines.lines().filter(|line| line.starts_with('{')) {
        let run: Run = serde_json::from_str(line).unwrap();
        let Run { schedule, stages, microbatches, chunks, group, extra, file } = &run;
        let what = format!("{schedule} {stages}x{microbatches}x{chunks} {group:?} {extra}");
        let settings = Settings {
            chunks: *chunks,
            microbatch_group: *group,
            extra_warm_up: *extra,
            ..Settings::default()
        };
        let named = schedule.order(&profile(*stages), *microbatches, &settings);
        let named = named.unwrap_or_else(|error| panic!("{what}: {error}"));
        let read = Order::from_file(file.as_bytes());
        let read = read.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(read.stages(), named.stages(), "{what}");
        if *stages > 1 {
            // A single stage lies in a loop and in a V alike.
            assert_eq!(read, named, "{what}");
        }
        *compared.entry(schedule.name()).or_insert(0) += 1;
    }
    eprintln!("compared: {compared:?}");
}

//! The GPU kit, run on simulated GPUs that are like measured ones, finds what was measured.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::machine::{library, test_on};

const PROJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// What the laws below come from.
const PARTS: [&str; 6] =
    ["reads_idle", "idle_quiet", "idle_without_context", "step", "kinds", "minute"];

#[test]
fn the_kit_finds_an_h200_in_a_gpu_that_is_made_of_its_facts() {
    finds_what_was_measured("nvidia-h200.json");
}

#[test]
fn the_kit_finds_an_h100_in_a_gpu_that_is_made_of_its_facts() {
    finds_what_was_measured("nvidia-h100.json");
}

#[test]
fn without_python_the_kit_says_what_it_requires() {
    let run = Path::new(PROJECT).join("gpu-kit/run");
    let ran = Command::new("/bin/sh").arg(run).env("PATH", "/nowhere").output().unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{errors}");
    assert!(errors.contains("the kit requires Python 3.9"), "{errors}");
}

fn finds_what_was_measured(name: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("facts").join(name);
    let measured = facts(&file);
    // Power depends on warmth: as warm as a GPU after a minute.
    test_on(&["--like", file.to_str().unwrap(), "--warm"], |machine, _| {
        let found = run_kit(&machine.state);
        let identity = |facts: &Value, field: &str| facts["parts"]["identity"][field].clone();
        for field in ["model", "power_limit_mw", "supported_clock_mhz", "memory_bus_bits"] {
            assert_eq!(identity(&found, field), identity(&measured, field), "{field}");
        }
        for (law, share) in [
            ("/energy_counter/period_ms", 0.01),
            ("/quiet/counter_at_10_hz/power_instant_w/p50", 0.01),
            ("/kinds/spin/power_instant_w/p50", 0.02),
            ("/minute/power_instant_w/p50", 0.02),
            ("/minute/sm_mhz/p50", 0.02),
        ] {
            let [found, measured] = [&found, &measured].map(|facts| law_of(facts, law));
            let apart = (found / measured - 1.0).abs();
            assert!(apart <= share, "{law}: {found}, measured {measured}");
        }
        // Whatever else the machine does makes calls longer, never shorter.
        for law in ["/read_us/idle/power_limit_mw/p10", "/read_us/idle/sm_mhz/p10"] {
            let [found, measured] = [&found, &measured].map(|facts| law_of(facts, law));
            assert!(found >= 0.9 * measured, "{law}: {found}, measured {measured}");
        }
        assert_eq!(found["laws"]["minute"]["reasons"], measured["laws"]["minute"]["reasons"]);
        let counter_us = law_of(&found, "/read_us/idle/energy_mj/p50");
        let measured_us = law_of(&measured, "/read_us/idle/energy_mj/p50");
        assert!(counter_us > 0.8 * measured_us, "{counter_us}, measured {measured_us}");
    });
}

/// Runs some parts, for a short time each.
fn run_kit(state: &Path) -> Value {
    let out = tempfile::tempdir().unwrap();
    let ran = Command::new("python3")
        .args(["-B", "-m", "gpu_kit", "--share", "0.1", "--library"])
        .arg(library())
        .args(["--sim", env!("CARGO_BIN_EXE_pfo-sim-trainer"), "--out"])
        .arg(out.path())
        .arg("--only")
        .args(PARTS)
        .current_dir(PathBuf::from(PROJECT).join("gpu-kit"))
        .env("PFO_SIM_STATE", state)
        .output()
        .expect("Python runs");
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{errors}");
    facts(&out.path().join("facts.json"))
}

fn facts(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn law_of(facts: &Value, law: &str) -> f64 {
    let laws = &facts["laws"];
    let found = laws.pointer(law).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("{law} is missing; {}", laws["not_seen"]))
}

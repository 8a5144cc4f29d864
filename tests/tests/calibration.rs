//! How long clocks take to be in force is measured with a job's own steps, and used.

use std::fs;
use std::process::Command;

use nvidia_ml::machine::MachinePlan;
use nvidia_ml::sensor::Sensor;
use pfo_tests::programs::{program, program_for_all};
use pfo_tests::{
    Identity, MachineSetup, Node, Ran, STAGES, Setup, Training, assert_printed, honest, profile_of,
};
use serde_json::Value;

const JOB: &str = "job";

/// A job on these GPUs. `time_scale` multiplies the times of the built-in instructions.
fn in_training(
    machine: MachineSetup,
    of_gpus: &[&str],
    time_scale: &str,
) -> (Node, Training, String) {
    let node = Node::start_with(&Setup { machine, ..Setup::default() });
    let profile = node.directory().join("profile.csv");
    fs::write(&profile, profile_of("A100", of_gpus, time_scale)).unwrap();
    let options = ["--time-scale", time_scale];
    let training = Training::start(&node, JOB, &Identity::own(), &options);
    training.until_leased(&node);
    (node, training, profile.to_str().unwrap().to_owned())
}

fn calibrate(node: &Node, profile: &str) -> Ran {
    let arguments = ["gpu", "calibrate", JOB, "--profile", profile, "--json"];
    node.pfoctl(&Identity::own(), &arguments)
}

/// The clocks of the only calibration, each with the milliseconds until it is in force.
fn clocks(json: &Value) -> Vec<(u64, f64)> {
    let [calibration] = &json.as_array().unwrap()[..] else { panic!("{json}") };
    let clocks = calibration["clocks"].as_array().unwrap();
    let of = |clock: &Value| {
        (clock["mhz"].as_u64().unwrap(), clock["settle_us"].as_f64().unwrap() / 1e3)
    };
    clocks.iter().map(of).collect()
}

/// A machine whose locks are in force 24 ms after a call of 6 ms.
fn settling() -> MachineSetup {
    MachineSetup { gpus: "4xA100", set_latency_ms: 6, settle_ms: 24, ..MachineSetup::default() }
}

#[test]
fn pfod_uses_what_is_measured_from_then_on() {
    let (node, training, profile) = in_training(settling(), &["--ideal"], "0.5");
    assert_eq!(node.rank(JOB, 0).settle_ms, 24.0, "as it is configured");
    let ran = calibrate(&node, &profile);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let found = clocks(&ran.json());
    let least = found.iter().map(|clock| clock.1).fold(f64::INFINITY, f64::min);
    let most = found.iter().map(|clock| clock.1).fold(0.0, f64::max);
    for stage in 0..STAGES {
        let used_ms = node.rank(JOB, stage).settle_ms;
        assert!(least <= used_ms && used_ms <= most, "{used_ms} of {found:?}");
    }
    assert!(node.job(JOB).plan.is_none(), "it runs at default clocks again");
    assert_eq!(training.stop()["mismatches"].as_u64().unwrap_or(0), 0);
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn what_is_measured_is_what_the_gpu_does() {
    let (node, training, profile) = in_training(settling(), &["--ideal"], "0.5");
    let json = calibrate(&node, &profile).json();
    let found = clocks(&json);
    assert_eq!(found.len(), 4, "{json}");
    for (mhz, ms) in found {
        assert!((ms - 24.0).abs() < 2.0, "{mhz} MHz after {ms} ms: {json}");
    }
    let call_ms = json[0]["set_call_us"].as_f64().unwrap() / 1e3;
    assert!((5.9..9.0).contains(&call_ms), "{call_ms}");
    training.stop();
}

#[test]
fn a_calibration_outlives_both_daemons() {
    let (mut node, training, profile) = in_training(settling(), &["--ideal"], "0.5");
    assert_eq!(calibrate(&node, &profile).code, Some(0));
    node.kill_agent();
    node.kill_daemon();
    node.start_daemon();
    node.start_agent();
    node.until_so("pfod uses it again", || {
        node.find_rank(JOB, 0).is_some_and(|rank| (rank.settle_ms - 24.0).abs() > 0.01)
    });
    training.stop();
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn lower_clocks_of_an_honest_gpu_take_as_long_as_they_do() {
    let machine = MachineSetup { gpus: "4xA100", made: honest, ..MachineSetup::default() };
    let (node, training, profile) = in_training(machine, &[], "0.5");
    let ran = calibrate(&node, &profile);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let silicon = node.machine.gpu(0).silicon();
    for (mhz, ms) in clocks(&ran.json()) {
        let (to, highest) = (nvidia_ml::units::Mhz(mhz as u32), nvidia_ml::units::Mhz(1410));
        let settle_ns = |occasion| silicon.settling_ns(to, highest, occasion);
        let mut true_ns: Vec<_> =
            (1..400u64).map(|n| settle_ns(n.wrapping_mul(0x9E37_79B9_7F4A_7C15))).collect();
        true_ns.sort_unstable();
        let true_ms = true_ns[200] as f64 / 1e6;
        assert!((ms - true_ms).abs() < 0.25 * true_ms + 2.0, "{mhz} MHz: {ms} ms, not {true_ms}");
    }
    assert_ne!(ran.json()[0]["transfers_wait"], true, "they do not on these GPUs");
    let counter = ran.json()[0]["counter"].clone();
    let watts = |name: &str| counter[name].as_f64().unwrap();
    assert!((0.7..1.3).contains(&(watts("counted_w") / watts("read_w"))), "{counter}");
    assert!(watts("unexplained_w") < 0.7 * watts("unexplained_by_part_w"), "{counter}");
    training.stop();
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn a_counter_of_a_module_that_looks_for_a_part_of_the_time_is_found_out() {
    let machine = MachineSetup {
        gpus: "4xGH200",
        made: |plan| {
            let sensor = Some(Sensor { looks_ns: 25_000_000, period_ns: 100_000_000 });
            MachinePlan { sensor, ..honest(plan) }
        },
        ..MachineSetup::default()
    };
    let (node, training, _) = in_training(machine, &[], "0.5");
    let profile = node.plan_file("gh200.csv", profile_of("GH200", &[], "0.5").as_bytes());
    let ran = calibrate(&node, &profile);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let counter = ran.json()[0]["counter"].clone();
    let watts =
        |name: &str| counter[name].as_f64().unwrap_or_else(|| panic!("{name} of {counter}"));
    let module_w = watts("counted_w") - watts("read_w");
    assert!((module_w - 160.0).abs() < 40.0 + 2.0 * watts("read_error_w"), "{counter}");
    assert!(watts("unexplained_by_part_w") < 0.7 * watts("unexplained_w"), "{counter}");
    assert_eq!(counter["part"], 0.25, "{counter}");
    let shown = node.pfoctl(&Identity::own(), &["gpu", "show"]).printed();
    assert!(shown.contains("It counts a part of the time"), "{shown}");
    assert!(shown.contains("P2P-blocking power depends on the clock was never"), "{shown}");
    training.stop();
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn a_lock_of_the_memory_clock_that_slows_steps_is_found_out_and_is_there_again_afterwards() {
    let machine = MachineSetup {
        gpus: "4xA100",
        made: |plan| MachinePlan { memory_lock_slows_permille: Some(160), ..plan },
        ..MachineSetup::default()
    };
    let (node, training, profile) = in_training(machine, &["--ideal"], "0.5");
    let locked = || node.machine.gpu(2).view().unwrap().memory_lock;
    node.until_so("the memory clock is locked", || locked().is_some());
    let ran = calibrate(&node, &profile);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lock = ran.json()[0]["memory_lock"].clone();
    let share = lock["time"]["share"].as_f64().unwrap_or_else(|| panic!("{lock}"));
    assert!((share - 0.16).abs() < 0.04, "{lock}");
    node.until_so("the memory clock is locked again", || locked().is_some());
    let shown = node.pfoctl(&Identity::own(), &["gpu", "show"]).printed();
    assert!(shown.contains("the lock harms"), "{shown}");
    let doctor = node.pfoctl(&Identity::own(), &["doctor"]).stdout;
    assert!(doctor.contains("lock_memory_clock = false"), "{doctor}");
    assert_eq!(training.stop()["mismatches"].as_u64().unwrap_or(0), 0);
    node.until_so("nothing stays locked", || locked().is_none());
}

/// The memory clock is free in a trial when the daemon is killed: the next one locks it, as for any lease.
#[test]
fn a_daemon_that_is_killed_while_the_memory_clock_is_free_leaves_nothing_behind() {
    let machine = MachineSetup { gpus: "4xA100", ..MachineSetup::default() };
    let (mut node, training, profile) = in_training(machine, &["--ideal"], "0.5");
    let is_locked = |node: &Node| node.machine.gpu(1).view().unwrap().memory_lock.is_some();
    let arguments = ["gpu", "calibrate", JOB, "--profile", &profile];
    let mut calibrating = node.begin_pfoctl(&Identity::own(), &arguments);
    node.until_so("a trial has the memory clock free", || !is_locked(&node));
    node.kill_daemon();
    calibrating.wait().unwrap();
    node.start_daemon();
    node.until_so("the memory clock is locked", || is_locked(&node));
    training.stop();
    node.until_so("nothing stays locked", || !is_locked(&node));
}

#[test]
fn a_memory_clock_that_is_not_locked_is_not_compared() {
    let mut node = Node::start();
    node.kill_daemon();
    let config = fs::read_to_string(node.config()).unwrap();
    let unlocked = config.replace("[clocks]\n", "[clocks]\nlock_memory_clock = false\n");
    assert_ne!(unlocked, config);
    fs::write(node.config(), unlocked).unwrap();
    node.start_daemon();
    let profile = node.plan_file("profile.csv", profile_of("A40", &["--ideal"], "0.5").as_bytes());
    let training = Training::start(&node, JOB, &Identity::own(), &["--time-scale", "0.5"]);
    training.until_leased(&node);
    let ran = calibrate(&node, &profile);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.json()[0]["memory_lock"].is_null(), "{ran:?}");
    assert!(node.machine.gpu(0).view().unwrap().memory_lock.is_none());
    training.stop();
}

#[test]
fn who_gives_another_profile_is_told_and_nothing_is_learned() {
    let (node, training, profile) = in_training(
        MachineSetup { gpus: "4xA100", ..MachineSetup::default() },
        &["--ideal"],
        "0.2",
    );
    let short = fs::read_to_string(&profile).unwrap();
    let stage_0: Vec<_> = short.lines().filter(|line| !line.starts_with(['1', '2', '3'])).collect();
    fs::write(&profile, stage_0.join("\n")).unwrap();
    let ran = calibrate(&node, &profile);
    assert_printed!(ran, node.pfoctl(&Identity::own(), &["gpu", "show"]));
    training.stop();
}

#[test]
fn a_free_gpu_is_calibrated_without_a_job() {
    let machine = MachineSetup {
        gpus: "1xA100",
        set_latency_ms: 4,
        settle_ms: 20,
        ..MachineSetup::default()
    };
    let node = Node::start_with(&Setup { machine, ..Setup::default() });
    let trainer = program_for_all("pfo-sim-trainer", node.directory());
    let state = node.machine.state().display();
    let helper = node.plan_file(
        "helper",
        format!(
            "#!/bin/sh\n{} launch --json --stages 1 --steps 0 --time-scale 0.25 --state {state} \
             --socket \"$PFO_SOCKET\" --job \"$4\" &\ncat; kill $!; wait\n",
            trainer.display()
        )
        .as_bytes(),
    );
    let helper = format!("sh {helper}");
    let mut profile = Command::new(program("pfo-sim"));
    profile.args(["profile", "--gpu", "A100", "--stages", "1", "--time-scale", "0.25", "--ideal"]);
    let profile =
        node.plan_file("profile.csv", Ran::from(profile.output().unwrap()).printed().as_bytes());
    let calibrate = ["gpu", "calibrate", "--gpu", "0", "--helper", &helper, "--json"];
    let ran = node.pfoctl(&Identity::own(), &[&calibrate[..], &["--profile", &profile]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_ne!(clocks(&ran.json()), [], "{ran:?}");
    node.until_so("the helper has ended", || {
        node.status().jobs.iter().all(|job| job.ranks.is_empty())
    });
    assert_eq!(node.machine.sm_lock(0), None);
}

#[test]
fn without_pytorch_it_is_said_what_is_missing() {
    let node = Node::start();
    let calibrate = ["gpu", "calibrate", "--gpu", "0", "--helper", "sh -c false"];
    let both = ["gpu", "calibrate", JOB, "--gpu", "0"];
    assert_printed!(
        node.pfoctl(&Identity::own(), &calibrate),
        node.pfoctl(&Identity::own(), &both),
    );
}

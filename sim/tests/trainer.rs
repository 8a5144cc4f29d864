//! `pfo-sim-trainer`: a training takes what its clocks make it take, and ends as it should.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use crate::machine::{Machine, eventually, is_root, test_on};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvidia_ml::clock_table::ClockRange;
use nvidia_ml::gpu_state::Activity;
use nvidia_ml::model::GpuModel;
use nvidia_ml::units::Mhz;
use serde_json::Value;

/// A trainer without pfo, a tenth as slow as usual.
fn trainer(machine: &Machine, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pfo-sim-trainer"));
    command.args(["launch", "--json", "--no-pfo", "--time-scale", "0.1", "--microbatches", "4"]);
    command.args(arguments.split_whitespace()).env("PFO_SIM_STATE", &machine.state);
    command
}

fn report(output: &Output) -> Value {
    let report = serde_json::from_slice(&output.stdout);
    report.unwrap_or_else(|_| panic!("no report: {}", String::from_utf8_lossy(&output.stderr)))
}

fn train(machine: &Machine, arguments: &str) -> Value {
    let output = trainer(machine, arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    report(&output)
}

fn iteration_s(report: &Value) -> f64 {
    report["mean_iteration_time_s"].as_f64().expect("an iteration")
}

fn all_idle(machine: &Machine) -> bool {
    machine.driver().gpus().all(|gpu| gpu.view().unwrap().activity == Activity::Idle)
}

/// Iteration time in s and energy in J of 4 built-in stages and 4 microbatches at full clocks, at a
/// tenth of the time: the critical path is the first and the last stage's work around the last
/// stage's, and the last stage has the most.
const IDEAL_S: f64 = 0.171_395;
const IDEAL_J: f64 = 200.92;

#[test]
fn an_iteration_takes_the_time_and_the_energy_of_its_critical_path() {
    test_on(&["--ideal", "--gpus", "4xA100"], |machine, _| {
        let report = train(machine, "--steps 5");
        let (time, energy) =
            (iteration_s(&report), report["mean_iteration_energy_j"].as_f64().unwrap());
        // From below it is exact. From above it is as long as the kernel lets it wait, at the power of waits.
        assert!(time >= IDEAL_S, "{time} s");
        let waited_j = 4.0 * GpuModel::A100.facts().p2p_blocking_w * (time - IDEAL_S);
        let off = (energy - waited_j) / IDEAL_J - 1.0;
        assert!(off.abs() < 0.02, "{energy} J in {time} s, {off}");
        assert_eq!(report["failed_steps"], 0);
        assert_eq!(report["ranks"].as_array().unwrap().len(), 4);
        assert_eq!(report["ranks"][3]["steps"].as_array().unwrap().len(), 5);
        assert!(all_idle(machine));
    });
}

#[test]
fn a_locked_gpu_slows_its_stage_and_with_it_the_pipeline() {
    test_on(&["--ideal", "--gpus", "4xA100"], |machine, _| {
        let driver = machine.driver();
        driver.gpu(3).unwrap().lock_clocks(Some(ClockRange::exactly(Mhz(705)))).unwrap();
        let report = train(machine, "--steps 3");
        // Half the clock makes the heaviest stage, on the critical path, 1.84 times as slow.
        assert!(iteration_s(&report) > IDEAL_S * 1.4, "{report}");
    });
}

#[test]
fn a_clock_that_rises_in_the_middle_of_an_instruction_shortens_it() {
    test_on(&["--ideal", "--gpus", "A100"], |machine, _| {
        let driver = machine.driver();
        let gpu = driver.gpu(0).unwrap();
        gpu.lock_clocks(Some(ClockRange::exactly(Mhz(210)))).unwrap();
        let mut command = trainer(machine, "--stages 1 --steps 1 --microbatches 1 --time-scale 10");
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        eventually("the forward runs", || {
            matches!(gpu.view().unwrap().activity, Activity::Computing(_))
        });
        gpu.lock_clocks(None).unwrap();
        let report = report(&child.wait_with_output().unwrap());
        // 2.065 s at full clock, 12 s at the locked one.
        let time = iteration_s(&report);
        assert!((2.065..6.0).contains(&time), "{time} s");
    });
}

#[test]
fn work_comes_from_a_profile_if_one_is_given() {
    test_on(&["--ideal", "--gpus", "2xA100"], |machine, _| {
        let profile = machine.state.with_file_name("profile.csv");
        let rows = "stage,instruction,frequency,time,energy\n\
             0,forward,1410,0.1,10\n0,backward,1410,0.1,10\n\
             1,forward,1410,0.1,20\n1,backward,1410,0.1,20\n";
        std::fs::write(&profile, rows).unwrap();
        let profile = profile.display();
        let report = train(
            machine,
            &format!("--profile {profile} --time-scale 1 --steps 2 --microbatches 1"),
        );
        assert_eq!(report["stages"], 2);
        let time = iteration_s(&report);
        assert!((0.4..0.8).contains(&time), "{time} s");
        let output = trainer(machine, &format!("--profile {profile} --stages 3")).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1));
        assert!(message.contains("2 stages") && message.contains('3'), "{message}");
    });
}

#[test]
fn a_rank_that_dies_takes_the_training_down_and_leaves_its_gpu_idle() {
    test_on(&["--ideal", "--gpus", "4xA100"], |machine, _| {
        let output = trainer(machine, "--steps 5 --die-at 2:1").output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let report = report(&output);
        assert_eq!(report["ranks"][1]["end"], "killed by SIGKILL");
        assert_eq!(report["ranks"][0]["end"], "neighbour_gone");
        assert_eq!(report["ranks"][1]["steps"].as_array().unwrap().len(), 2);
        assert!(report["failed_steps"].as_u64().unwrap() >= 1);
        assert!(all_idle(machine));
    });
}

#[test]
fn asked_to_stop_a_training_ends_in_order_even_with_a_stopped_rank() {
    test_on(&["--ideal", "--gpus", "2xA100"], |machine, _| {
        let mut command = trainer(machine, "--stages 2 --steps 0 --stop-at 3:1");
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let driver = machine.driver();
        let is = |gpu, activity| driver.gpu(gpu).unwrap().view().unwrap().activity == activity;
        eventually("the neighbour of the stopped rank waits", || {
            let waits = is(0, Activity::Blocked);
            thread::sleep(Duration::from_millis(100));
            waits && is(0, Activity::Blocked)
        });
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let report = report(&output);
        assert_eq!((&report["stopped"], &report["failed_steps"]), (&true.into(), &0.into()));
        assert!(all_idle(machine));
    });
}

#[test]
fn ranks_do_not_outlive_a_killed_launcher() {
    test_on(&["--ideal", "--gpus", "4xA100"], |machine, _| {
        let mut command = trainer(machine, "--steps 0");
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        let driver = machine.driver();
        let on_gpus = || driver.gpus().filter(|gpu| !gpu.processes().unwrap().is_empty()).count();
        eventually("all ranks train", || on_gpus() == 4);
        child.kill().unwrap();
        child.wait().unwrap();
        eventually("all ranks are gone", || on_gpus() == 0);
        assert!(all_idle(machine));
    });
}

#[test]
fn ranks_run_as_the_user_that_was_asked_for() {
    if !is_root() {
        return println!("skipped: only root can become another user");
    }
    test_on(&["--ideal", "--gpus", "2xA100"], |machine, _| {
        let report = train(machine, "--stages 2 --steps 1 --uid 54321 --gid 54322 --groups 54323");
        assert_eq!(report["ranks"][0]["uid"], 54321);
        assert_eq!(report["ranks"][1]["uid"], 54321);
    });
}

#[test]
fn without_a_daemon_training_runs_on_and_the_report_says_why_it_was_alone() {
    test_on(&["--ideal", "--gpus", "2xA100"], |machine, _| {
        let socket = machine.state.with_file_name("no.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_pfo-sim-trainer"));
        command.args(["launch", "--json", "--stages", "2", "--time-scale", "0.1", "--steps", "2"]);
        let output = command.arg("--socket").arg(&socket).output().unwrap();
        assert!(output.status.success());
        let report = report(&output);
        assert_eq!(report["failed_steps"], 0);
        assert!(report["dropped_events"].as_u64().unwrap() > 0);
        let message = report["ranks"][0]["problem_at_setup"]["message"].as_str().unwrap();
        assert!(message.contains("no.sock"), "{message}");
    });
}

#[test]
fn work_that_standard_input_orders_takes_what_the_clock_makes_it_take() {
    test_on(&["--ideal", "--gpus", "1xA100"], |machine, _| {
        let mut compute = Command::new(env!("CARGO_BIN_EXE_pfo-sim-trainer"))
            .args(["compute", "--gpu", "0"])
            .env("PFO_SIM_STATE", &machine.state)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut orders = compute.stdin.take().unwrap();
        let mut answers = BufReader::new(compute.stdout.take().unwrap()).lines();
        let mut took_s = || -> f64 {
            orders.write_all(b"begin backward 0.05\nend\n").unwrap();
            answers.next().unwrap().unwrap().parse().unwrap()
        };
        assert_eq!(took_s(), 0.05);
        let half = ClockRange::exactly(Mhz(705));
        machine.driver().gpu(0).unwrap().lock_clocks(Some(half)).unwrap();
        thread::sleep(Duration::from_millis(100));
        // A share of 15.6 % does not depend on the clock, which is half of the highest one.
        assert!((took_s() - 0.05 * (0.156 + 0.844 * 2.0)).abs() < 1e-6);
        drop(orders);
        assert!(compute.wait().unwrap().success());
        eventually("the GPU is idle", || all_idle(machine));
    });
}

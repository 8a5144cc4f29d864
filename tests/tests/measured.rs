//! What the daemon measures, against the driver's own counters.

use std::thread::sleep;
use std::time::{Duration, Instant};

use pfo_tests::{Identity, MachineSetup, Node, Rank, Setup, TestPlan};
use serde_json::Value;

const JOB: &str = "job";

/// How often the simulated counter is refreshed, and a little more.
const REFRESH_S: f64 = 0.025;

/// Differences of joules are not exact.
const ROUNDING_J: f64 = 1e-6;

/// The job as `pfoctl status --json` shows it.
fn reported(node: &Node) -> Value {
    let ran = node.pfoctl(&Identity::own(), &["status", "--json", "--job", JOB]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.json()["jobs"][0].clone()
}

/// Steps of a given length.
fn steps(rank: &Rank, count: u32, each: Duration) {
    for _ in 0..count {
        rank.session.step_begin();
        sleep(each);
        rank.instructions();
        rank.session.step_end();
    }
}

#[test]
fn the_energy_of_a_job_is_the_difference_of_the_drivers_counter() {
    let node = Node::start();
    let computing = node.machine.compute(0);
    sleep(Duration::from_millis(100));
    let before_open = node.machine.energy_j(0);
    let rank = Rank::open(&node, JOB, 0, 1, 2);
    // The session is measured from its own thread.
    sleep(Duration::from_millis(50));
    let after_open = node.machine.energy_j(0);
    steps(&rank, 8, Duration::from_millis(30));
    let before_step = node.machine.energy_j(0);
    rank.session.step_begin();
    node.until_is("the rank's step", &Some(8), || node.rank(JOB, 0).step);
    let seen = node.until("the last step is measured", || {
        match reported(&node)["energy_j"].as_f64().unwrap() {
            energy_j if energy_j >= before_step - after_open => Ok(energy_j),
            energy_j => Err(format!("{energy_j} J since {}", before_step - after_open)),
        }
    });
    let most = node.machine.energy_j(0) - before_open + ROUNDING_J;
    assert!(seen <= most, "{seen} J, but the counter moved by {most} J at most");
    assert!(seen > 30.0, "{seen} J in 240 ms of computing");
    // What is used after the last step began belongs to the job as well.
    sleep(Duration::from_millis(100));
    let before_end = node.machine.energy_j(0);
    drop(rank);
    node.assert_only_locked(&[]);
    node.until_is("sessions", &0, || node.status().daemon.sessions);
    let after_end = node.machine.energy_j(0);
    let energy_j = reported(&node)["energy_j"].as_f64().unwrap();
    let least = before_end - after_open - ROUNDING_J;
    let most = after_end - before_open + ROUNDING_J;
    assert!((least..=most).contains(&energy_j), "{energy_j} J is not between {least} and {most}");
    drop(computing);
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn windows_show_the_measured_time_and_energy_of_a_step_under_each_plan() {
    let node = Node::start();
    let _computing = [node.machine.compute(0), node.machine.compute(1)];
    let ranks = Rank::open_all(&node, JOB, 2, 2);
    let each = Duration::from_millis(25);
    let both = |first: u64| {
        let began = Instant::now();
        for step in first..first + 10 {
            ranks.iter().for_each(|rank| rank.session.step_begin());
            sleep(each);
            // Steps that are read together are measured together.
            node.until_is("ranks in the step", &2, || {
                node.job(JOB).ranks.iter().filter(|rank| rank.step == Some(step)).count()
            });
            ranks.iter().for_each(Rank::instructions);
            ranks.iter().for_each(|rank| rank.session.step_end());
        }
        began.elapsed().as_secs_f64() / 10.0
    };
    let power = || node.machine.power_w(0) + node.machine.power_w(1);
    let default_power = power();
    let default_s = both(0);
    node.take_up(JOB, &TestPlan::new(2, 2, |stage, _| 900 + 15 * stage));
    let plan_s = both(10);
    let plan_power = power();
    assert!(plan_power < 0.8 * default_power);
    ranks.iter().for_each(|rank| rank.session.step_begin());
    // The first step and the one that took up the plan are left out, and the one that runs is not over.
    let windows = node.until("all steps are measured", || {
        let windows = reported(&node)["windows"].as_array().unwrap().clone();
        let steps: Vec<_> = windows.iter().map(|window| window["steps"].as_u64()).collect();
        match steps[..] {
            [Some(8..=9), Some(8..=9)] => Ok(windows),
            _ => Err(format!("{windows:?}")),
        }
    });
    assert_eq!((&windows[0]["plan"], &windows[1]["plan"]["label"]), (&Value::Null, &"test".into()));
    for (window, step_s, power) in
        [(&windows[0], default_s, default_power), (&windows[1], plan_s, plan_power)]
    {
        assert_eq!(window["ranks"], 2);
        let time_s = window["iteration_time_s"].as_f64().unwrap();
        assert!(time_s >= each.as_secs_f64(), "{time_s} s a step, which sleeps for longer");
        assert!(time_s <= step_s * 10.0 / 8.0, "{time_s} s a step instead of {step_s}");
        let energy_j = window["iteration_energy_j"].as_f64().unwrap();
        let expected = power * time_s;
        // The counter was last refreshed at some time before it was read, at both ends.
        let tolerance = power * 2.0 * REFRESH_S / 8.0;
        assert!(
            (energy_j - expected).abs() <= tolerance,
            "{energy_j} J a step instead of {expected} within {tolerance}: {windows:?}"
        );
    }
}

#[test]
fn what_was_measured_stays_when_a_rank_ends() {
    let node = Node::start();
    let rank = Rank::open(&node, JOB, 0, 1, 2);
    // The counter is read for several short steps at once.
    steps(&rank, 30, Duration::from_millis(5));
    drop(rank);
    node.until_is("sessions", &0, || node.status().daemon.sessions);
    let job = reported(&node);
    assert_eq!(job["windows"][0]["plan"], Value::Null, "{job}");
    assert!(job["windows"][0]["steps"].as_u64() >= Some(2), "{job}");
    assert!(job["ranks"].as_array().unwrap().is_empty(), "{job}");
}

/// Runs a step of instructions of 100 ms, whose clocks take 50 ms to settle; before an instruction
/// begins, its clock may settle or not. Returns the seconds that they ran at another clock
/// than planned, and all of their seconds.
fn off_plan(settle_first: bool) -> (f64, f64) {
    let machine = MachineSetup { set_latency_ms: 50, settle_ms: 50, ..MachineSetup::default() };
    let node = Node::start_with(&Setup { machine, ..Setup::default() });
    let rank = Rank::open(&node, JOB, 0, 1, 2);
    let plan = TestPlan::new(1, 2, |_, i| [600, 900][i % 2]);
    node.take_up(JOB, &plan);
    rank.session.step_begin();
    for position in 0..rank.order().len() {
        if settle_first {
            node.until_so("the clock is set", || {
                let calls = node.machine.calls(0);
                calls.len() == position + 1 && calls[position].returned.is_some()
            });
            sleep(Duration::from_millis(20));
        }
        rank.begin(position);
        sleep(Duration::from_millis(100));
        rank.session.instruction_end();
    }
    rank.session.step_end();
    node.until_is("instructions", &4, || node.rank(JOB, 0).instructions);
    let status = node.rank(JOB, 0);
    assert!(status.set_call_mean_us >= 50_000.0, "{status:?}");
    assert!(status.set_call_max_us >= status.set_call_mean_us, "{status:?}");
    (status.off_plan_s, status.instruction_s)
}

#[test]
fn how_long_instructions_ran_at_another_clock_than_planned_is_recorded() {
    let (off_s, all_s) = off_plan(false);
    assert!(all_s >= 0.4, "{all_s} s");
    // All but the first clock were asked for when their instruction began, or later.
    assert!(off_s >= 3.0 * 0.050 && off_s <= all_s, "{off_s} of {all_s} s");
}

#[test]
fn a_clock_that_settles_in_the_bubble_before_an_instruction_costs_nothing() {
    let (off_s, all_s) = off_plan(true);
    assert!(all_s >= 0.4, "{all_s} s");
    assert!(off_s < 0.1, "{off_s} of {all_s} s");
}

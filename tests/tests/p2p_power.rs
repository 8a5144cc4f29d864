//! P2P-blocking power: measured on simulated GPUs, whose true figure is known.

use std::fs;

use nvidia_ml::machine::MachinePlan;
use nvidia_ml::model::GpuModel;
use pfo_protocol::{Mhz, Request, Response};
use pfo_tests::control::job;
use pfo_tests::{
    Identity, MICROBATCHES, MachineSetup, Node, Setup, TestPlan, Training, assert_printed,
    kept_plan, needs_root, programs::program_for_all, true_profile,
};
use serde_json::Value;

const JOB: &str = "job";

/// The helper for simulated GPUs, on this node's.
fn helper(node: &Node) -> String {
    let trainer = program_for_all("pfo-sim-trainer", node.directory());
    format!("{} p2p --state {}", trainer.display(), node.machine.state().display())
}

fn assert_true(power: &Value) {
    let truth = GpuModel::A40.facts().p2p_blocking_w;
    let measured = power["power_w"].as_f64().unwrap();
    assert!((measured / truth - 1.0).abs() < 0.01, "{measured} W instead of {truth} W: {power}");
}

/// Optimises a profile without the power; returns what `pfoctl` prints.
fn optimize(node: &Node, user: &Identity) -> pfo_tests::Ran {
    let profile = node.plan_file("profile.csv", true_profile("1").as_bytes());
    let frontier = std::env::temp_dir().join(format!("pfo-test-{}", user.uid));
    let frontier = frontier.to_str().unwrap();
    let ran =
        node.pfoctl(user, &["plan", "optimize", &profile, "--microbatches", "3", "-o", frontier]);
    let _ = fs::remove_file(frontier);
    ran
}

#[test]
fn two_gpus_that_wait_for_each_other_show_the_power_that_plans_use() {
    let mut node = Node::start();
    let user = Identity::trainer();
    let unknown = optimize(&node, &user);
    assert_printed!(unknown);

    let helper = helper(&node);
    let measure = ["p2p", "measure", "--helper", &helper, "--steps", "3", "--json"];
    let kept = node.pfoctl(&user, &measure).json();
    let kept = kept.as_array().unwrap();
    assert_eq!(kept.len(), 2 * 5, "two GPUs at five clocks: {kept:?}");
    for power in kept {
        assert_true(power);
        assert_eq!((power["count"].as_u64(), &power["source"]), (Some(3), &Value::from("receive")));
    }
    assert_eq!(node.status().jobs.iter().map(|job| job.ranks.len()).sum::<usize>(), 0);
    node.assert_only_locked(&[]);

    node.kill_daemon();
    node.start_daemon();
    let shown = node.pfoctl(&user, &["p2p", "show", "--json"]).json();
    assert_eq!(shown.as_array().unwrap(), kept);
    let planned = optimize(&node, &user).printed();
    assert!(planned.contains("A40 (blocking receive on 2 GPUs at "), "{planned}");
}

#[test]
fn the_waits_of_a_running_job_show_the_power_and_it_runs_on_as_before() {
    let node = Node::start();
    let user = Identity::trainer();
    let training = Training::start(&node, JOB, &user, &["--time-scale", "0.3"]);
    training.until_leased(&node);
    training.until_step(&node, 1);
    let plan = TestPlan::new(4, 3, |_, _| 1500);
    training.take_up(&node, &plan);
    node.until_so("the plan", || node.job(JOB).ranks.iter().all(|rank| rank.plan == Some(1)));
    let measure = ["p2p", "measure", "--job", JOB, "--steps", "5", "--json"];
    let at_two = ["--clocks", "1740,870"];
    let measured = node.pfoctl(&user, &[&measure[..], &at_two].concat());
    let kept = measured.json();
    for power in kept.as_array().unwrap() {
        assert_true(power);
        assert_eq!(power["source"], "waits");
    }
    for mhz in [1740, 870] {
        let at = kept.as_array().unwrap().iter().filter(|power| power["mhz"] == mhz);
        assert!(at.count() > 0, "{measured:?}");
    }
    node.until_so("the plan again", || node.job(JOB).ranks.iter().all(|r| r.plan == Some(1)));
    training.stop();
}

#[test]
fn only_administrators_set_a_power() {
    needs_root!();
    let node = Node::start();
    let (administrator, trainer) = (Identity::administrator(), Identity::trainer());
    let unknown = ["p2p", "set", "65.5", "--model", "NVIDIA A4O"];
    let set = ["p2p", "set", "65.5", "--model", "NVIDIA A40"];
    let forget = ["p2p", "set", "--forget", "--model"];
    assert_printed!(
        node.pfoctl(&administrator, &unknown),
        node.pfoctl(&trainer, &["p2p", "show"]),
        node.pfoctl(&administrator, &[&unknown[..], &["--force"]].concat()),
        node.pfoctl(&administrator, &[&forget[..], &["NVIDIA A4O"]].concat()),
        node.pfoctl(&trainer, &set),
        node.pfoctl(&administrator, &set),
        optimize(&node, &trainer),
        node.pfoctl(&administrator, &[&forget[..], &["NVIDIA A40"]].concat()),
        node.pfoctl(&trainer, &["p2p", "show"]),
    );
}

#[test]
fn what_a_trainer_measured_is_used_by_others_only_after_an_administrator_set_it() {
    needs_root!();
    let node = Node::start();
    let (user, other) = (Identity::trainer(), Identity::other_trainer());
    let helper = helper(&node);
    let measure = ["p2p", "measure", "--helper", &helper, "--steps", "3"];
    let _ = node.pfoctl(&user, &measure).printed();
    assert!(optimize(&node, &user).printed().contains("A40 (blocking receive on 2 GPUs at "));
    let set = ["p2p", "set", "65.5", "--model", "NVIDIA A40"];
    assert_printed!(
        optimize(&node, &other),
        optimize(&node, &Identity::administrator()),
        node.pfoctl(&Identity::administrator(), &set),
        optimize(&node, &other),
    );
}

#[test]
fn a_tuned_job_has_clocks_for_its_waits_where_their_power_is_known_by_clock() {
    let machine = MachineSetup {
        set_latency_ms: 8,
        settle_ms: 15,
        made: |plan| MachinePlan { waits_follow_the_clock: Some(true), ..plan },
        ..MachineSetup::default()
    };
    let node = Node::start_with(&Setup { machine, ..Setup::default() });
    let user = Identity::own();
    let measure = ["p2p", "measure", "--helper", &helper(&node), "--steps", "2", "--json"];
    let powers = node.pfoctl(&user, &measure).json();
    let lowest = powers.as_array().unwrap().iter().find(|power| power["mhz"] == 210).unwrap();
    let truth = GpuModel::A40.facts().blocked_power_w(nvidia_ml::units::Mhz(210));
    assert!((lowest["power_w"].as_f64().unwrap() / truth - 1.0).abs() < 0.01, "{powers}");

    let training = Training::start(&node, JOB, &user, &["--time-scale", "0.2"]);
    training.until_leased(&node);
    training.until_step(&node, 1);
    let profile = node.plan_file("profile.csv", true_profile("0.2").as_bytes());
    let microbatches = format!("microbatches={MICROBATCHES}");
    let tune = ["tune", JOB, "--profile", &profile, "--set", &microbatches];
    let loosely = ["--max-slowdown", "50%", "--set", "rounds=4", "--json"];
    let report = node.pfoctl(&user, &[&tune[..], &loosely].concat()).json();
    assert_eq!(report["p2p_power"]["by_mhz"][0][0], 210, "{report}");
    kept_plan(&report);
    let mut client = node.control();
    let answer = client.ask(Request::PlanRead(job(JOB))).unwrap();
    let Response::Plan(Some(table)) = answer else { panic!("{answer:?}") };
    let waits = table.stages().iter().flatten().filter_map(|unit| unit.wait_mhz);
    assert!(waits.clone().count() > 0 && waits.clone().all(|mhz| mhz == Mhz(210)), "{table:?}");
    training.stop();
}

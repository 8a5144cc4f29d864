//! Stragglers: a job takes the time of what it has to wait for anyway.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nvidia_ml::clock_table::ClockRange;
use nvidia_ml::machine::MachinePlan;
use nvidia_ml::units::{Mhz, Milliwatts};
use pfo_planner::{Condition, Frontier, Instruction, Plan, Stage, replay};
use pfo_protocol::{Rank, WatchedJob};
use pfo_tests::{
    Identity, MachineSetup, Node, Ran, STAGES, Setup, Training, assert_printed, needs_root,
    programs::program, true_frontier,
};

const JOB: &str = "job";

fn run(command: &mut Command) {
    let _ = Ran::from(command.output().unwrap()).printed();
}

/// What the agent says of the job.
fn watched(node: &Node) -> WatchedJob {
    node.find_watched(JOB).expect("the agent watches the job")
}

fn plan(node: &Node) -> Option<String> {
    node.job(JOB).plan.map(|plan| plan.label)
}

#[test]
fn a_job_takes_a_stragglers_time_at_one_step_and_then_its_own_again() {
    let mut node = Node::start();
    let user = Identity::trainer();
    let frontier = true_frontier(&node, "0.02");
    let training = Training::start(&node, JOB, &user, &[]);
    training.until_leased(&node);
    training.until_step(&node, 1);

    let early = node.pfoctl(&user, &["job", "straggler", JOB, "1.2"]);
    assert_printed!(early);
    let loaded = node.pfoctl(&user, &["plan", "load", JOB, &frontier]).printed();
    assert!(loaded.contains("frontier a40.frontier ("), "{loaded}");
    let slow = node.pfoctl(&user, &["job", "straggler", JOB, "1.2", "--wait"]).printed();
    assert!(slow.contains("on 4 of 4 ranks on this node"), "{slow}");
    let known = watched(&node).frontier.unwrap();
    let plan_s = node.job(JOB).plan.unwrap().predicted_time_s.unwrap();
    assert_eq!(known.straggler, Some(1.2));
    assert!(plan_s <= 1.2 * known.fastest_s && plan_s > 1.1 * known.fastest_s, "{plan_s}");

    node.kill_daemon();
    node.start_daemon();
    node.until_is("the plan after a restart", &Some("a40.frontier at 1.2x".to_owned()), || {
        plan(&node)
    });
    training.until_leased(&node);
    let step = training.ranks(&node).iter().filter_map(|rank| rank.1).max().unwrap_or(0);
    training.until_step(&node, step + 2);
    let over = node.pfoctl(&user, &["job", "straggler", JOB, "--clear", "--wait"]).printed();
    assert!(over.contains("default clocks since step"), "{over}");
    assert_eq!(watched(&node).frontier.unwrap().straggler, None);
    let status = node.job(JOB);
    assert!(status.ranks.iter().all(|rank| rank.mismatched_steps == 0), "{:?}", status.ranks);
    training.stop();
}

#[test]
fn nobody_answers_stragglers_of_another_users_job() {
    needs_root!();
    let node = Node::start();
    let training = Training::start(&node, JOB, &Identity::trainer(), &[]);
    training.until_leased(&node);
    let other = Identity::other_trainer();
    let own = node.job(JOB).uid.to_string();
    let refused = node.pfoctl(&other, &["job", "straggler", JOB, "1.2", "--user", &own]);
    assert_printed!(refused);
    training.stop();
}

#[test]
fn a_rank_held_back_by_a_power_limit_is_answered_until_that_is_over() {
    // Less than what the cap does to the rank, and more than a wait for the processor.
    let agent_rules = "[watch]\nslow_percent = 25\nsteps = 3\ndrift_percent = 20";
    let node = Node::start_with(&Setup { agent_rules, ..Setup::default() });
    let user = Identity::trainer();
    let frontier = true_frontier(&node, "0.1");
    let training = Training::start(&node, JOB, &user, &["--time-scale", "0.1"]);
    training.until_leased(&node);
    training.until_step(&node, 1);
    let fastest = node.directory().join("fastest.json");
    let mut command = Command::new(program("pfoctl"));
    run(command.args(["plan", "export", &frontier, "--deadline", "fastest", "-o"]).arg(&fastest));
    let fastest = fastest.to_str().unwrap();
    let _ = node.pfoctl(&user, &["plan", "swap", JOB, fastest, "--wait"]).printed();
    let _ = node.pfoctl(&user, &["plan", "load", JOB, &frontier]).printed();
    let _ = node.pfoctl(&user, &["job", "straggler", JOB, "--auto"]).printed();

    node.machine.gpu(1).cap_power(Some(Milliwatts(120_000))).unwrap();
    let slow = || watched(&node).slow.iter().map(|slow| slow.rank).collect::<Vec<_>>();
    node.until_is("the slow rank", &vec![Rank(1)], slow);
    let straggler = || watched(&node).frontier.and_then(|frontier| frontier.straggler);
    node.until_so("the answer", || straggler().is_some_and(|factor| factor > 1.0));
    let answer = node.job(JOB).plan.unwrap();
    assert!(answer.label.starts_with("a40.frontier at 1."), "{answer:?}");
    assert!(answer.label.ends_with(", replanned"), "{answer:?}");
    let attention = node.pfoctl(&user, &["status"]).printed();
    assert!(attention.contains("longer than was profiled"), "{attention}");
    let step = node.job(JOB).ranks.iter().filter_map(|rank| rank.step).max().unwrap();
    training.until_step(&node, step + 20);
    assert_eq!(node.job(JOB).plan.unwrap().number, answer.number, "it goes to and fro");

    node.machine.gpu(1).cap_power(None).unwrap();
    node.until_is("the end of the answer", &None, straggler);
    node.until_is("the plan of before", &Some("fastest.json".to_owned()), || plan(&node));
    node.until_is("no slow rank", &Vec::new(), slow);
    node.until_agent_logged("longer than was profiled");
    let over = || node.agent_log().matches("match the profile again").count();
    node.until_is("entries", &1, over);
    training.stop();
}

/// Four GPUs, the memory of which slows them down by three tenths when it is locked.
fn with_slow_memory() -> Setup {
    Setup {
        machine: MachineSetup {
            made: |plan| MachinePlan { memory_lock_slows_permille: Some(300), ..plan },
            ..MachineSetup::default()
        },
        agent_rules: "[watch]\nslow_percent = 15\nsteps = 3\ndrift_percent = 50",
        ..Setup::default()
    }
}

fn make_slow(node: &Node, gpu: usize, slow: bool) {
    let any = Mhz(1);
    let range = slow.then_some(ClockRange { min: any, max: any });
    node.machine.gpu(gpu).lock_memory_clocks(range).unwrap();
}

/// A training on the frontier's plan for a deadline, whose slow ranks are answered. No GPU is slow:
/// the memory clocks that pfod locks are unlocked.
fn answered(node: &Node, deadline: &str) -> Training {
    answered_at(node, deadline, "0.1")
}

/// The same, if instructions take another time than was profiled at a scale of 0.1.
fn answered_at(node: &Node, deadline: &str, time_scale: &str) -> Training {
    let user = Identity::trainer();
    let frontier = true_frontier(node, "0.1");
    let training = Training::start(node, JOB, &user, &["--time-scale", time_scale]);
    training.until_leased(node);
    training.until_step(node, 1);
    let own = node.directory().join("own.json");
    let mut command = Command::new(program("pfoctl"));
    run(command.args(["plan", "export", &frontier, "--deadline", deadline, "-o"]).arg(&own));
    let own = own.to_str().unwrap();
    let _ = node.pfoctl(&user, &["plan", "swap", JOB, own, "--wait"]).printed();
    (0..STAGES as usize).for_each(|gpu| make_slow(node, gpu, false));
    let _ = node.pfoctl(&user, &["plan", "load", JOB, &frontier]).printed();
    let _ = node.pfoctl(&user, &["job", "straggler", JOB, "--auto"]).printed();
    training
}

/// Seconds and joules of a step over the next steps under the plan that runs.
fn measured(node: &Node, training: &Training) -> (f64, f64) {
    let plan = || node.job(JOB).plan.map(|plan| plan.number);
    // Steps under the plan that runs, and their seconds and joules.
    let window = || {
        let window = node.job(JOB).windows.pop().filter(|window| window.steps > 0)?;
        let (steps, energy_j) = (window.steps as f64, window.iteration_energy_j?);
        let is_present = window.plan.map(|plan| plan.number) == plan();
        is_present.then_some([steps, steps * window.iteration_time_s, steps * energy_j])
    };
    let step = || node.job(JOB).ranks.iter().filter_map(|rank| rank.step).max().unwrap();
    let before = node.until("steps under the plan", || window().ok_or("none".to_owned()));
    let number = plan();
    training.until_step(node, step() + 12);
    assert_eq!(plan(), number, "another plan");
    let after = window().unwrap();
    let of_a_step = |figure: usize| (after[figure] - before[figure]) / (after[0] - before[0]);
    (of_a_step(1), of_a_step(2))
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn an_answer_to_a_slow_rank_makes_steps_shorter() {
    let node = Node::start_with(&with_slow_memory());
    let training = answered(&node, "1.15x");
    let auto =
        |on: &str| node.pfoctl(&Identity::trainer(), &["job", "straggler", JOB, "--auto", on]);
    let _ = auto("off").printed();
    make_slow(&node, 3, true);
    let (before_s, _) = measured(&node, &training);
    let _ = auto("on").printed();
    let is_replanned = || plan(&node).is_some_and(|label| label.ends_with(", replanned"));
    node.until_so("the answer", is_replanned);
    let (after_s, _) = measured(&node, &training);
    assert!(after_s < 0.95 * before_s, "{after_s} s, and {before_s} s before");
    training.stop();
}

#[test]
fn a_slow_rank_that_no_limit_holds_gets_the_time_back_and_the_plan_of_before_returns() {
    let node = Node::start_with(&with_slow_memory());
    let training = answered(&node, "1.15x");
    let _ =
        node.pfoctl(&Identity::trainer(), &["job", "straggler", JOB, "--auto", "off"]).printed();
    make_slow(&node, 3, true);
    let _ = node.pfoctl(&Identity::trainer(), &["job", "straggler", JOB, "--auto", "on"]).printed();
    let is_replanned = || plan(&node).is_some_and(|label| label.ends_with(", replanned"));
    node.until_so("the answer", is_replanned);
    make_slow(&node, 3, false);
    node.until_is("the plan of before", &Some("own.json".to_owned()), || plan(&node));
    training.stop();
}

/// The slowest plan of a frontier in which a stage that takes longer by a share keeps its clocks and
/// the step takes no longer.
fn looked_up(frontier: &str, own: &Path, slow: Stage, share: f64) -> Plan {
    let frontier = Frontier::from_bytes(&fs::read(frontier).unwrap()).unwrap();
    let own = Plan::from_json(&fs::read(own).unwrap()).unwrap();
    let slowed = [Instruction::Forward, Instruction::Backward]
        .map(|instruction| ((slow, instruction), Condition::Slowed(1.0 + share)));
    let slowed = frontier.pipeline().profile().under(&slowed.into()).unwrap();
    let time_s =
        |plan: &Plan| replay(&slowed, plan, frontier.p2p_power()).unwrap().iteration_time_s;
    let plans = (0..frontier.plans().len()).rev().map(|place| {
        let mut plan = frontier.plan(place).unwrap();
        plan.stages[slow.index()].clone_from(&own.stages[slow.index()]);
        plan
    });
    let most_s = 1.01 * time_s(&own);
    plans.into_iter().find(|plan| time_s(plan) <= most_s).unwrap_or_else(|| own.clone())
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn beside_a_rank_that_is_held_back_a_new_plan_saves_no_less_than_one_that_is_looked_up() {
    let agent_rules = "[watch]\nslow_percent = 15\nsteps = 3\ndrift_percent = 50";
    let node = Node::start_with(&Setup { agent_rules, ..Setup::default() });
    let user = Identity::trainer();
    let training = answered(&node, "fastest");
    node.machine.gpu(1).cap_power(Some(Milliwatts(150_000))).unwrap();
    let is_replanned = || plan(&node).is_some_and(|label| label.ends_with(", replanned"));
    node.until_so("the answer", is_replanned);
    let (new_s, new_j) = measured(&node, &training);
    let share = watched(&node).slow[0].share;

    let _ = node.pfoctl(&user, &["job", "straggler", JOB, "--auto", "off"]).printed();
    node.until_is("the plan of before", &Some("own.json".to_owned()), || plan(&node));
    let (_, own_j) = measured(&node, &training);
    let (frontier, own) = ("a40.frontier", "own.json");
    let [frontier, own] = [frontier, own].map(|name| node.directory().join(name));
    let plan = looked_up(frontier.to_str().unwrap(), &own, Stage(1), share);
    let file = node.plan_file("looked-up.json", plan.to_json().unwrap().as_bytes());
    let _ = node.pfoctl(&user, &["plan", "swap", JOB, &file, "--wait"]).printed();
    let (old_s, old_j) = measured(&node, &training);
    assert!(new_s < 1.01 * old_s, "{new_s} s, and {old_s} s with a look-up");
    assert!(new_j < 1.01 * old_j, "{new_j} J, and {old_j} J with a look-up");
    assert!(new_j < 0.99 * own_j, "{new_j} J, and {own_j} J before");
    training.stop();
}

#[test]
fn a_rank_that_is_slow_in_turns_is_answered_ever_more_seldom() {
    let node = Node::start_with(&with_slow_memory());
    let training = answered(&node, "1.15x");
    let number = || node.job(JOB).plan.map(|plan| plan.number);
    let first = number().unwrap();
    let began = Instant::now();
    for turn in 0..8 {
        make_slow(&node, 3, turn % 2 == 0);
        thread::sleep(Duration::from_secs(5));
    }
    // Answers at 0, 10, 30 and 70 s at the earliest, and each way back.
    let earliest = [0, 10, 30, 70, 150].map(Duration::from_secs);
    let answers = earliest.iter().filter(|at| **at <= began.elapsed()).count() as u32;
    let swaps = number().unwrap() - first;
    assert!((1..=2 * answers).contains(&swaps), "{swaps} swaps");
    node.until_is("the plan of before", &Some("own.json".to_owned()), || plan(&node));
    training.stop();
}

#[test]
fn a_job_some_of_whose_stages_take_less_than_was_profiled_gets_a_plan_for_that() {
    let agent_rules = "[watch]\nsteps = 3\nslow_percent = 15\ndrift_percent = 6";
    let node = Node::start_with(&Setup { agent_rules, ..with_slow_memory() });
    let training = answered_at(&node, "fastest", "0.0769");
    // Two stages remain as fast as they were profiled, and two are faster.
    [0, 1].into_iter().for_each(|gpu| make_slow(&node, gpu, true));
    let own_s = node.job(JOB).plan.unwrap().predicted_time_s.unwrap();
    let is_replanned = || plan(&node).is_some_and(|label| label.ends_with(", replanned"));
    node.until_so("the drift", || watched(&node).drift.is_some());
    node.until_so("the answer", is_replanned);
    let predicted_s = node.job(JOB).plan.unwrap().predicted_time_s.unwrap();
    assert!(predicted_s < own_s, "{predicted_s} s, and {own_s} s before");
    training.stop();
}

#[test]
fn steps_that_leave_the_prediction_are_told_with_their_instructions() {
    let agent_rules = "[watch]\ndrift_percent = 20";
    let node = Node::start_with(&Setup { agent_rules, ..Setup::default() });
    let user = Identity::trainer();
    let frontier = true_frontier(&node, "0.1");
    // Half as slow again as what was profiled.
    let training = Training::start(&node, JOB, &user, &["--time-scale", "0.15"]);
    training.until_leased(&node);
    training.until_step(&node, 1);
    let _ = node.pfoctl(&user, &["plan", "load", JOB, &frontier]).printed();
    let _ = node.pfoctl(&user, &["job", "straggler", JOB, "1.0", "--wait"]).printed();
    let drift = node.until("the drift", || watched(&node).drift.ok_or("none".to_owned()));
    assert_eq!(drift.instructions.len(), 8, "{drift:?}");
    // The simulator takes the time of an instruction from its clock: a busy machine does not change it.
    let is_as_slow = |time: f64| (time - 0.5).abs() < 0.02;
    assert!(drift.instructions.iter().all(|slow| is_as_slow(slow.time)), "{drift:?}");
    let status = node.pfoctl(&user, &["status"]).printed();
    assert!(status.contains("off its plan's prediction"), "{status}");
    node.until_agent_logged("forward of stage 3 by +");
    training.stop();
}

/// Waits until `pfoctl status` names rank 2 as slow, with its GPU and the driver's reason, which it has only
/// while the GPU computes.
fn until_named(node: &Node) {
    let than = "longer than those of other replicas";
    let ends = format!("{than}; the driver holds the GPU back: sw_power_cap");
    node.until_so("the slow replica in the status", || {
        let status = node.pfoctl(&Identity::trainer(), &["status"]).printed();
        let mut lines = status.lines().filter(|line| line.ends_with(&ends));
        lines.any(|line| line.contains("rank 2 on GPU 2: its instructions take "))
    });
}

#[test]
fn a_slow_replica_of_a_job_without_a_plan_is_named_until_it_has_recovered() {
    let agent_rules = "[watch]\nslow_percent = 15\nsteps = 3";
    let node = Node::start_with(&Setup { agent_rules, ..Setup::default() });
    let options = ["--stages", "1", "--replicas", "4", "--time-scale", "0.1"];
    let training = Training::start(&node, JOB, &Identity::trainer(), &options);
    training.until_leased(&node);
    node.until_so("the agent's watch", || node.find_watched(JOB).is_some());
    node.machine.gpu(2).cap_power(Some(Milliwatts(120_000))).unwrap();
    let slow = || watched(&node).slow.iter().map(|slow| slow.rank).collect::<Vec<_>>();
    node.until_is("the slow rank", &vec![Rank(2)], slow);
    until_named(&node);
    node.machine.gpu(2).cap_power(None).unwrap();
    node.until_is("no slow rank", &Vec::new(), slow);
    training.stop();
}

//! Stragglers: a job takes the time of what it has to wait for anyway.

use std::process::Command;

use nvidia_ml::units::Milliwatts;
use pfo_protocol::{Rank, WatchedJob};
use pfo_tests::{
    Identity, MICROBATCHES, Node, Ran, STAGES, Setup, Training, needs_root, programs::program,
};

const JOB: &str = "job";

fn run(command: &mut Command) {
    let _ = Ran::from(command.output().unwrap()).printed();
}

/// The frontier of what the simulated training runs, in a file that everybody may read.
fn frontier(node: &Node, time_scale: &str) -> String {
    let profile = node.directory().join("profile.csv");
    let frontier = node.directory().join("a40.frontier");
    let stages = STAGES.to_string();
    let microbatches = MICROBATCHES.to_string();
    let mut command = Command::new(program("pfo-sim"));
    command.args([
        "profile",
        "--ideal",
        "--gpu",
        "A40",
        "--stages",
        &stages,
        "--time-scale",
        time_scale,
        "-o",
    ]);
    run(command.arg(&profile));
    let mut command = Command::new(program("pfoctl"));
    command.args(["plan", "optimize", "--p2p-power", "70", "--microbatches", &microbatches]);
    run(command.arg(&profile).arg("-o").arg(&frontier));
    frontier.to_str().unwrap().to_owned()
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
    let frontier = frontier(&node, "0.02");
    let training = Training::start(&node, JOB, &user, &[]);
    training.until_leased(&node);
    training.until_step(&node, 1);

    let early = node.pfoctl(&user, &["job", "straggler", JOB, "1.2"]);
    assert!(early.stderr.contains("no frontier is loaded"), "{early:?}");
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
    assert!(refused.stderr.contains("another user's job"), "{refused:?}");
    training.stop();
}

#[test]
fn a_rank_held_back_by_a_power_limit_is_answered_until_that_is_over() {
    // Much, so that no other load on this machine is taken for a slow rank.
    let agent_rules = "[watch]\nslow_percent = 25\nsteps = 3\ndrift_percent = 20";
    let node = Node::start_with(&Setup { agent_rules, ..Setup::default() });
    let user = Identity::trainer();
    let frontier = frontier(&node, "0.1");
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
    let attention = node.pfoctl(&user, &["status"]).printed();
    assert!(attention.contains("longer than was profiled"), "{attention}");
    let step = node.job(JOB).ranks.iter().filter_map(|rank| rank.step).max().unwrap();
    training.until_step(&node, step + 20);
    assert_eq!(node.job(JOB).plan.unwrap().number, answer.number, "it goes to and fro");

    node.machine.gpu(1).cap_power(None).unwrap();
    node.until_is("the end of the answer", &None, straggler);
    node.until_is("the plan of before", &Some("fastest.json".to_owned()), || plan(&node));
    node.until_is("no slow rank", &Vec::new(), slow);
    let log = node.agent_log();
    assert!(log.contains("longer than was profiled"), "{log}");
    assert_eq!(log.matches("match the profile again").count(), 1, "{log}");
    training.stop();
}

#[test]
fn steps_that_leave_the_prediction_are_told_with_their_instructions() {
    let agent_rules = "[watch]\ndrift_percent = 20";
    let node = Node::start_with(&Setup { agent_rules, ..Setup::default() });
    let user = Identity::trainer();
    let frontier = frontier(&node, "0.1");
    // Half as slow again as what was profiled.
    let training = Training::start(&node, JOB, &user, &["--time-scale", "0.15"]);
    training.until_leased(&node);
    training.until_step(&node, 1);
    let _ = node.pfoctl(&user, &["plan", "load", JOB, &frontier]).printed();
    let _ = node.pfoctl(&user, &["job", "straggler", JOB, "1.0", "--wait"]).printed();
    let drift = node.until("the drift", || watched(&node).drift.ok_or("none".to_owned()));
    assert!((0.4..0.8).contains(&drift.time), "{drift:?}");
    assert!(drift.energy.is_some_and(|energy| (0.4..0.8).contains(&energy)), "{drift:?}");
    assert_eq!(drift.instructions.len(), 8, "{drift:?}");
    let status = node.pfoctl(&user, &["status"]).printed();
    assert!(status.contains("off its plan's prediction"), "{status}");
    let log = node.agent_log();
    assert!(log.contains("forward of stage 3 by +"), "{log}");
    training.stop();
}

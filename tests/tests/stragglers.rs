//! Stragglers: a job takes the time of what it has to wait for anyway.

use std::process::Command;

use pfo_tests::identity::Identity;
use pfo_tests::needs_root;
use pfo_tests::node::Node;
use pfo_tests::programs::program;
use pfo_tests::ran::Ran;
use pfo_tests::trainer::{MICROBATCHES, STAGES, Training};

const JOB: &str = "job";

fn run(command: &mut Command) {
    let _ = Ran::from(command.output().unwrap()).printed();
}

/// The frontier of what the simulated training runs, in a file that everybody may read.
fn frontier(node: &Node) -> String {
    let profile = node.directory().join("profile.csv");
    let frontier = node.directory().join("a40.frontier");
    let stages = STAGES.to_string();
    let microbatches = MICROBATCHES.to_string();
    let mut command = Command::new(program("pfo-sim"));
    command.args(["profile", "--gpu", "A40", "--stages", &stages, "--time-scale", "0.02", "-o"]);
    run(command.arg(&profile));
    let mut command = Command::new(program("pfoctl"));
    command.args(["plan", "optimize", "--p2p-power", "70", "--microbatches", &microbatches]);
    run(command.arg(&profile).arg("-o").arg(&frontier));
    frontier.to_str().unwrap().to_owned()
}

fn plan(node: &Node) -> Option<String> {
    node.job(JOB).plan.map(|plan| plan.label)
}

#[test]
fn a_job_takes_a_stragglers_time_at_one_step_and_then_its_own_again() {
    let mut node = Node::start();
    let user = Identity::trainer();
    let frontier = frontier(&node);
    let training = Training::start(&node, JOB, &user, &[]);
    training.until_leased(&node);
    training.until_step(&node, 1);

    let early = node.pfoctl(&user, &["job", "straggler", JOB, "1.2"]);
    assert!(early.stderr.contains("no frontier is loaded"), "{early:?}");
    let loaded = node.pfoctl(&user, &["plan", "load", JOB, &frontier]).printed();
    assert!(loaded.contains("frontier a40.frontier ("), "{loaded}");
    let slow = node.pfoctl(&user, &["job", "straggler", JOB, "1.2", "--wait"]).printed();
    assert!(slow.contains("on 4 of 4 ranks here"), "{slow}");
    let status = node.job(JOB);
    let known = status.frontier.unwrap();
    let plan_s = status.plan.unwrap().predicted_time_s.unwrap();
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
    let status = node.job(JOB);
    assert_eq!(status.frontier.unwrap().straggler, None);
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

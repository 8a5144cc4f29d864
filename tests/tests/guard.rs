//! The slowdown that was allowed is kept for as long as the job runs plans.

use std::path::PathBuf;
use std::process::Command;

use pfo_protocol::GuardStatus;
use pfo_tests::{
    Identity, MICROBATCHES, Node, STAGES, Setup, TestPlan, Training, needs_root, programs::program,
    true_frontier,
};

const JOB: &str = "job";

/// Steps that are long beside a wait for the processor.
const SLOWLY: [&str; 2] = ["--time-scale", "0.05"];

/// The highest clock of an A40.
const HIGHEST: u32 = 1740;

fn plan(mhz: u32) -> TestPlan {
    TestPlan::new(STAGES, MICROBATCHES, |_, _| mhz)
}

fn guard(node: &Node) -> Option<GuardStatus> {
    node.find_watched(JOB).and_then(|job| job.guard)
}

fn in_training(node: &Node, mhz: u32) -> Training {
    let training = Training::start(node, JOB, &Identity::trainer(), &SLOWLY);
    training.until_leased(node);
    training.until_step(node, 1);
    let _ = training.take_up(node, &plan(mhz));
    training
}

fn set(node: &Node, percent: &str) -> String {
    node.pfoctl(&Identity::trainer(), &["plan", "guard", JOB, percent]).printed()
}

#[test]
fn a_plan_that_makes_steps_longer_than_allowed_is_given_up_and_said_so() {
    let node = Node::start();
    let training = in_training(&node, HIGHEST / 2);
    assert!(set(&node, "5%").contains("gives up a plan that makes steps more than 5.0 % longer"));
    node.until_so("default clocks", || node.job(JOB).plan.is_none());
    node.until_so("it is said", || guard(&node).is_some_and(|guard| guard.given_up.is_some()));
    let slowdown = guard(&node).unwrap().given_up.unwrap();
    assert!(slowdown > 0.2, "{slowdown}");
    let status = node.pfoctl(&Identity::trainer(), &["status"]).printed();
    assert!(status.contains("back at default clocks: its plan made steps"), "{status}");
    node.until_agent_logged("goes back to default clocks: with plan");
    training.stop();
}

/// A job whose plan takes a third longer than default clocks, and whose frontier is loaded.
fn too_slow(node: &Node) -> Training {
    // Long beside a wait for the processor.
    let scale = "0.08";
    let user = Identity::trainer();
    let frontier = true_frontier(node, scale);
    let training = Training::start(node, JOB, &user, &["--time-scale", scale]);
    training.until_leased(node);
    training.until_step(node, 1);
    let slow = node.directory().join("slow.json");
    let mut command = Command::new(program("pfoctl"));
    command.args(["plan", "export", &frontier, "--deadline", "1.3x", "-o"]).arg(&slow);
    assert!(command.status().unwrap().success());
    let slow = slow.to_str().unwrap();
    let _ = node.pfoctl(&user, &["plan", "swap", JOB, slow, "--wait"]).printed();
    let _ = node.pfoctl(&user, &["plan", "load", JOB, &frontier]).printed();
    training
}

/// A job whose plan was too slow, and that changes to one of a frontier which is not.
fn corrected(node: &Node) -> Training {
    let training = too_slow(node);
    let _ = set(node, "5%");
    node.until_so("a corrected plan", || guard(node).is_some_and(|g| g.corrected.is_some()));
    training
}

#[test]
fn a_plan_that_is_too_slow_is_corrected_where_a_frontier_is_loaded() {
    let node = Node::start();
    let training = corrected(&node);
    let before = guard(&node).unwrap().corrected.unwrap();
    assert!(before > 0.05, "{before}");
    node.until_agent_logged("changes to plan a40.frontier within 5.0 %");
    training.stop();
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn a_corrected_plan_takes_no_longer_than_allowed_and_saves_energy() {
    let node = Node::start();
    let training = corrected(&node);
    let plan = node.job(JOB).plan.unwrap();
    assert_eq!(plan.label, "a40.frontier within 5.0 %");
    let slowdown = node.until("its comparison", || {
        guard(&node).and_then(|guard| guard.slowdown).ok_or("none".to_owned())
    });
    // A plan for 5 %, and what is measured of it.
    assert!(slowdown < 0.055, "{slowdown}");
    assert_eq!(guard(&node).unwrap().given_up, None);

    let step_j = |with_plan: bool| {
        let windows = node.job(JOB).windows.into_iter();
        let of = windows.filter(|window| window.plan.is_some() == with_plan);
        of.filter_map(|window| window.iteration_energy_j).fold(f64::INFINITY, f64::min)
    };
    assert!(step_j(true) < 0.98 * step_j(false), "{} J {} J", step_j(true), step_j(false));
    training.stop();
}

#[test]
fn a_corrected_plan_that_is_too_slow_is_given_up_by_the_next_agent_too() {
    let mut node = Node::start();
    let training = too_slow(&node);
    let _ = set(&node, "200%");
    node.kill_agent();
    // As if this plan had taken the place of another one.
    let files = std::fs::read_dir(node.agent_runtime().join("standing")).unwrap();
    // An agent that is killed may have begun to write another one.
    let is_whole = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
    let mut files = files.map(|file| file.unwrap().path()).filter(is_whole);
    let file = files.next().unwrap();
    let standing = std::fs::read_to_string(&file).unwrap();
    let stricter =
        standing.replace("\"max_slowdown\":2.0", "\"max_slowdown\":0.05,\"corrected\":0.5");
    assert_ne!(stricter, standing);
    std::fs::write(&file, stricter).unwrap();
    node.start_agent();
    node.until("it is given up", || match guard(&node) {
        Some(GuardStatus { given_up: Some(_), .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert!(guard(&node).unwrap().corrected.is_some(), "it is known why");
    assert_eq!(node.job(JOB).plan, None);
    let log = node.agent_log();
    assert!(!log.contains("no plan takes the place"), "nothing was tried first: {log}");
    training.stop();
}

#[test]
fn a_plan_within_what_is_allowed_runs_on_over_a_restart_of_the_agent() {
    let mut node = Node::start();
    let training = in_training(&node, HIGHEST);
    // What is tested is the restart, whatever the comparison says.
    let _ = set(&node, "200%");
    let compared = |node: &Node| guard(node).is_some_and(|guard| guard.compared_at_step.is_some());
    node.until_so("a comparison", || compared(&node));
    node.kill_agent();
    node.start_agent();
    node.until_so("the guard, and another comparison", || compared(&node));
    assert_eq!(guard(&node).unwrap().max_slowdown, 2.0);
    node.until_so("the plan", || node.job(JOB).plan.is_some());
    let off = node.pfoctl(&Identity::trainer(), &["plan", "guard", JOB, "--off"]).printed();
    assert!(off.contains("no guard compares its plans"), "{off}");
    assert_eq!(guard(&node), None);
    training.stop();
}

#[test]
fn a_plan_runs_again_whatever_ends_a_comparison() {
    let mut node = Node::start();
    let training = in_training(&node, HIGHEST);
    for end in [Node::kill_agent, Node::stop_agent] {
        let _ = set(&node, "200%");
        node.until_so("a comparison is under way", || node.job(JOB).measured_by.is_some());
        end(&mut node);
        node.start_agent();
        node.until_so("the plan, and nobody measures", || {
            let job = node.job(JOB);
            job.plan.is_some() && job.measured_by.is_none()
        });
    }
    training.stop();
}

#[test]
fn a_guard_that_ends_or_is_replaced_in_a_comparison_costs_no_plan() {
    let node = Node::start();
    let training = in_training(&node, HIGHEST);
    for end in ["--off", "100%"] {
        let _ = set(&node, "200%");
        node.until_so("a comparison is under way", || node.job(JOB).measured_by.is_some());
        let _ = set(&node, end);
        node.until_so("nobody measures", || node.job(JOB).measured_by.is_none());
        assert!(node.job(JOB).plan.is_some(), "{end}");
    }
    training.stop();
}

#[test]
fn what_a_user_wants_goes_before_a_comparison_and_stays() {
    let node = Node::start();
    let training = in_training(&node, HIGHEST - 15);
    node.until_is("the first plan", &Some(HIGHEST - 15), || node.machine.sm_lock(0));
    let _ = training.take_up(&node, &plan(HIGHEST));
    node.until_is("the second one", &Some(HIGHEST), || node.machine.sm_lock(0));
    let swaps = [
        (vec!["plan", "rollback", JOB, "--wait"], Some(HIGHEST - 15)),
        (vec!["plan", "swap", JOB, "--default-clocks", "--wait"], None),
    ];
    for (turn, (swap, locked)) in swaps.into_iter().enumerate() {
        let _ = set(&node, "200%");
        node.until_so("a comparison is under way", || node.job(JOB).measured_by.is_some());
        let _ = node.pfoctl(&Identity::trainer(), &swap).printed();
        let ended = || node.agent_log().matches("was not compared with default clocks").count();
        node.until_so("the agent has noticed", || ended() > turn);
        node.until_is("the lock of a GPU", &locked, || node.machine.sm_lock(0));
    }
    assert_eq!(node.job(JOB).plan, None);
    training.stop();
}

#[test]
fn a_swap_that_is_to_be_guarded_does_not_take_place_without_a_guard() {
    let node = Node::start_with(&Setup::without_agent());
    let training = Training::start(&node, JOB, &Identity::trainer(), &[]);
    training.until_leased(&node);
    let file = node.directory().join("plan.json");
    std::fs::write(&file, plan(HIGHEST).to_json()).unwrap();
    let file = file.to_str().unwrap();
    let swap = ["plan", "swap", JOB, file, "--guard", "1%"];
    let refused = node.pfoctl(&Identity::trainer(), &swap);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert_eq!(node.job(JOB).plan, None);
    training.stop();
}

#[test]
fn nobody_guards_another_users_job() {
    needs_root!();
    let node = Node::start();
    let training = in_training(&node, HIGHEST / 2);
    let own = node.job(JOB).uid.to_string();
    let guard_it = ["plan", "guard", JOB, "0%", "--user", &own];
    let refused = node.pfoctl(&Identity::other_trainer(), &guard_it);
    assert!(refused.stderr.contains("another user's job"), "{refused:?}");
    assert_eq!(guard(&node), None);
    training.stop();
}

//! Plans with which jobs begin: on every rank from the first instruction of its first step on.

use std::collections::BTreeMap;
use std::fs;

use pfo::{Problem, ProblemCode, RefusalCode};
use pfo_protocol::FirstPlanState;
use pfo_tests::{Identity, Node, Ran, Rank, TestPlan, Training, assert_printed, needs_root};
use serde_json::Value;

const JOB: &str = "job";
const STAGES: u32 = 4;
const MICROBATCHES: u32 = 3;

fn plan(base: u32) -> TestPlan {
    TestPlan::distinct(STAGES, MICROBATCHES, base)
}

fn file(node: &Node, name: &str, plan: &TestPlan) -> String {
    node.plan_file(name, &plan.to_json())
}

fn load_for(node: &Node, user: &Identity, file: &str) -> Ran {
    node.pfoctl(user, &["plan", "load", "--for", JOB, file, "--json"])
}

/// Loads a plan for the job, which is not there.
fn load(node: &Node, plan: &TestPlan) {
    let loaded = load_for(node, &Identity::own(), &file(node, "plan.json", plan)).json();
    assert_eq!(loaded["state"], "Ready", "{loaded}");
}

fn list(node: &Node) -> Value {
    node.pfoctl(&Identity::own(), &["plan", "list", "--json"]).json()
}

fn open(node: &Node, rank: u32, plan: Option<&str>) -> Rank {
    Rank::open_with_plan(node, JOB, (rank, STAGES, MICROBATCHES), plan)
}

fn until_locked(node: &Node, rank: u32, mhz: u32) {
    let what = format!("the lock of GPU {rank}");
    node.until_is(&what, &Some(mhz), || node.machine.sm_lock(rank as usize));
}

/// Runs the first step of a rank, and lets pfod set each clock before the next instruction begins.
fn first_step(node: &Node, rank: &Rank, number: u32, plan: &TestPlan) {
    let clocks = plan.clocks(number);
    rank.session.step_begin();
    until_locked(node, number, clocks[0]);
    for position in 0..clocks.len() {
        rank.instruction(position);
        until_locked(node, number, clocks[(position + 1) % clocks.len()]);
    }
    rank.session.step_end();
}

/// Checks that the driver was asked for the clocks of the plan in step 0, and for no other.
fn assert_began_with(node: &Node, ranks: &[u32], plan: &TestPlan) {
    for &rank in ranks {
        let mut expected = plan.clocks(rank).to_vec();
        expected.push(expected[0]);
        assert_eq!(node.machine.clocks_set(rank as usize), expected, "rank {rank}");
        let status = node.rank(JOB, rank);
        assert_eq!((status.step, status.mismatched_steps), (Some(0), 0), "{status:?}");
    }
}

/// Ranks that come one by one, each of which runs its first step before the next one is there.
fn begin_one_by_one(
    node: &Node,
    order: [u32; 4],
    brings: Option<&str>,
    plan: &TestPlan,
) -> Vec<Rank> {
    let ranks = order.map(|number| {
        let rank = open(node, number, brings);
        assert_eq!((rank.session.problem(), rank.session.plan_problem()), (None, None));
        first_step(node, &rank, number, plan);
        rank
    });
    assert_began_with(node, &order, plan);
    ranks.into()
}

/// Runs a step of a rank that must not have a clock of its own.
fn assert_default_clocks(node: &Node, rank: &Rank, number: u32) {
    rank.step();
    node.until_is("the rank's step", &Some(0), || node.rank(JOB, number).step);
    assert_eq!(node.machine.clocks_set(number as usize), Vec::<u32>::new());
}

#[test]
fn ranks_that_come_one_by_one_begin_with_the_plan_that_was_loaded_for_their_job() {
    let node = Node::start();
    let plan = plan(600);
    load(&node, &plan);
    assert!(node.job(JOB).ranks.is_empty());
    let _ranks = begin_one_by_one(&node, [2, 0, 3, 1], None, &plan);
    node.until_is("the plan's state", &"Begun".into(), || list(&node)[0]["state"].clone());
    let watched = node.find_watched(JOB).unwrap().first_plan.unwrap();
    assert_eq!(watched.state, FirstPlanState::Begun);
    // Whatever it runs, a rollback leads to what there was before.
    assert_eq!(node.pfoctl(&Identity::own(), &["plan", "rollback", JOB]).code, Some(0));
    assert_eq!(node.job(JOB).plan, None);
}

#[test]
fn a_kill_of_either_daemon_between_load_and_begin_costs_no_clock_of_step_0() {
    let mut node = Node::start();
    let plan = plan(600);
    load(&node, &plan);
    node.kill_agent();
    node.kill_daemon();
    node.start_daemon();
    let ranks = begin_one_by_one(&node, [3, 1, 0, 2], None, &plan);
    drop(ranks);
    node.until_is("ranks", &0, || node.job(JOB).ranks.len());
    // As after a boot: pfod knows nothing any more.
    node.kill_daemon();
    fs::remove_dir_all(node.ledger().with_file_name("jobs")).unwrap();
    node.start_daemon();
    assert_eq!(node.find_job(JOB), None);
    node.start_agent();
    node.until_is("the plan's state", &"Ready".into(), || list(&node)[0]["state"].clone());
    assert_eq!(node.job(JOB).plan.unwrap().label, "plan.json");
}

#[test]
fn a_job_of_another_user_with_the_same_name_begins_at_default_clocks() {
    needs_root!();
    let node = Node::start();
    let (user, other) = (Identity::trainer(), Identity::other_trainer());
    let path = file(&node, "plan.json", &plan(600));
    assert_eq!(load_for(&node, &user, &path).json()["uid"], user.uid.0);
    let rank = open(&node, 0, Some("auto"));
    assert_eq!(rank.session.plan_problem(), None, "nothing is kept for it");
    assert_default_clocks(&node, &rank, 0);
    let as_other = |arguments: &[&str]| node.pfoctl(&other, arguments);
    assert_eq!(as_other(&["plan", "list", "--json"]).json(), serde_json::json!([]));
    let user_name = user.uid.to_string();
    for command in [
        &["plan", "load", "--for", JOB, &path, "--user", &user_name][..],
        &["plan", "drop", JOB, "--user", &user_name],
        &["plan", "drop", JOB],
    ] {
        assert_eq!(as_other(command).code, Some(4), "{command:?}");
    }
    let administrator = Identity::own();
    let for_user = ["plan", "load", "--for", "other", &path, "--user", &user_name, "--json"];
    assert_eq!(node.pfoctl(&administrator, &for_user).json()["state"], "Ready");
    let drop_it = ["plan", "drop", JOB, "--user", &user_name];
    assert_eq!(node.pfoctl(&administrator, &drop_it).code, Some(0));
    let kept = list(&node);
    assert_eq!((&kept[0]["job"], &kept[0]["uid"]), (&"other".into(), &user.uid.0.into()));
    assert_eq!(kept.as_array().unwrap().len(), 1);
}

#[test]
fn an_administrator_who_names_no_user_means_the_job_that_runs() {
    needs_root!();
    let node = Node::start();
    let (user, administrator) = (Identity::trainer(), Identity::own());
    load(&node, &plan(600));
    let _training = Training::start(&node, JOB, &user, &[]);
    let ranks = || node.status().jobs.iter().map(|job| job.ranks.len()).sum();
    node.until_is("ranks", &(STAGES as usize), ranks);
    assert!(
        node.status().jobs.iter().any(|job| job.uid == administrator.uid),
        "it waits for ranks"
    );
    let other = file(&node, "other.json", &TestPlan::distinct(STAGES, MICROBATCHES, 900));
    let loaded = load_for(&node, &administrator, &other).json();
    assert_eq!((&loaded["uid"], &loaded["state"]), (&user.uid.0.into(), &"NextRun".into()));
    let eight = file(&node, "eight.json", &TestPlan::distinct(8, MICROBATCHES, 600));
    assert_printed!(eight, load_for(&node, &administrator, &eight));
    let swap = ["plan", "swap", JOB, &other, "--wait", "--json"];
    let swapped = node.pfoctl(&administrator, &swap);
    assert_eq!(swapped.code, Some(0), "{swapped:?}");
    let plans =
        node.status().jobs.into_iter().map(|job| (job.uid, job.plan.map(|plan| plan.label)));
    let plans: BTreeMap<_, _> = plans.collect();
    assert_eq!(plans[&user.uid], Some("other.json".into()));
    assert_eq!(plans[&administrator.uid], Some("plan.json".into()));
}

#[test]
fn a_plan_of_other_stages_is_refused_where_it_can_be_seen_and_the_job_trains_at_default_clocks() {
    let node = Node::start();
    let wrong = TestPlan::distinct(2, MICROBATCHES, 600);
    let why = "the plan has 2 stages, the job 4";
    load(&node, &wrong);
    let rank = open(&node, 0, None);
    assert_default_clocks(&node, &rank, 0);
    let suspended = node.job(JOB).plan.unwrap().suspended.unwrap();
    let refused = |node: &Node| list(node)[0]["state"]["Refused"].to_string().contains(why);
    node.until_so("the list says why", || refused(&node));
    node.until_agent_logged(why);
    let status = node.pfoctl(&Identity::own(), &["status"]).printed();
    assert!(status.contains("Kept for job job of") && status.contains(why), "{status}");
    // A trainer that asks is told, and so is one that brings such a plan.
    let path = file(&node, "wrong.json", &wrong);
    let mut messages = Vec::new();
    for (number, named) in [(1, "auto"), (2, path.as_str())] {
        let told = open(&node, number, Some(named)).session.plan_problem().unwrap();
        assert_eq!(told.code, ProblemCode::Refused(RefusalCode::PlanDoesNotFit));
        messages.push(told.message);
    }
    assert_printed!(suspended, messages.join("\n"));
}

#[test]
fn ranks_bring_the_plan_that_their_trainer_names() {
    let node = Node::start();
    let plan = plan(600);
    let path = file(&node, "brought.json", &plan);
    let ranks = begin_one_by_one(&node, [1, 3, 2, 0], Some(&path), &plan);
    assert_eq!(list(&node), serde_json::json!([]), "it is kept for nobody");
    assert_eq!(node.job(JOB).plan.unwrap().label, "brought.json");
    drop(ranks);
    node.until_is("ranks", &0, || node.job(JOB).ranks.len());
    // The next run names another one.
    let next = TestPlan::distinct(STAGES, MICROBATCHES, 900);
    let rank = open(&node, 0, Some(&file(&node, "next.json", &next)));
    rank.session.step_begin();
    until_locked(&node, 0, next.clocks(0)[0]);
    // One rank that names a third one changes nothing for the others.
    let odd = open(&node, 1, Some(&file(&node, "odd.json", &self::plan(1200))));
    let told = odd.session.plan_problem().unwrap();
    assert_printed!(told.message);
    odd.session.step_begin();
    until_locked(&node, 1, next.clocks(1)[0]);
}

#[test]
fn a_requeued_job_begins_with_what_is_kept_for_it_and_not_with_what_it_ran_last() {
    let node = Node::start();
    let kept = plan(600);
    load(&node, &kept);
    let rank = open(&node, 0, None);
    node.take_up(JOB, &plan(900));
    first_step(&node, &rank, 0, &plan(900));
    drop(rank);
    node.until_is("ranks", &0, || node.job(JOB).ranks.len());
    let rank = open(&node, 1, Some("auto"));
    assert_eq!(rank.session.plan_problem(), None);
    first_step(&node, &rank, 1, &kept);
    assert_began_with(&node, &[1], &kept);
}

#[test]
fn a_plan_that_is_dropped_is_begun_with_by_nobody() {
    let mut node = Node::start();
    load(&node, &plan(600));
    assert_eq!(node.pfoctl(&Identity::own(), &["plan", "drop", JOB]).code, Some(0));
    node.kill_agent();
    node.start_agent();
    assert_eq!(list(&node), serde_json::json!([]));
    let rank = open(&node, 0, None);
    assert_default_clocks(&node, &rank, 0);
}

#[test]
fn a_swap_at_step_0_of_a_job_that_is_not_there_is_refused() {
    let node = Node::start();
    let own = Identity::own();
    let (path, user) = (file(&node, "plan.json", &plan(600)), own.uid.to_string());
    let swap = ["plan", "swap", "jbo", &path, "--at-step", "0"];
    // Root asks for anybody's job.
    let refused = node.pfoctl(&own, &swap);
    assert_eq!(refused.code, Some(4), "{refused:?}");
    assert!(refused.stderr.contains("no user has a job jbo on this node\n"), "{refused:?}");
    assert_printed!(node.pfoctl(&own, &[&swap[..], &["--user", &user]].concat()));
    assert_eq!(node.status().jobs, []);
}

#[test]
fn a_plan_that_cannot_be_used_is_a_problem_at_setup_and_costs_no_lease() {
    let mut node = Node::start();
    let told = |node: &Node, plan: &str| -> Problem {
        let rank = open(node, 0, Some(plan));
        assert_eq!(rank.session.problem(), None, "{plan}");
        assert_default_clocks(node, &rank, 0);
        let problem = rank.session.plan_problem().unwrap();
        drop(rank);
        // A rank that is still there would be asked whether the next plan fits it.
        node.until_is("ranks", &0, || node.find_job(JOB).map_or(0, |job| job.ranks.len()));
        problem
    };
    let missing = node.directory().join("missing.json");
    let missing = told(&node, missing.to_str().unwrap());
    assert_eq!(missing.code, ProblemCode::PlanUnusable);
    let garbage = told(&node, &node.plan_file("garbage.json", b"{}"));
    let unknown = file(&node, "unknown.json", &TestPlan::new(STAGES, MICROBATCHES, |_, _| 601));
    let unknown = told(&node, &unknown);
    node.kill_agent();
    let path = file(&node, "plan.json", &plan(600));
    let unreachable = told(&node, &path);
    assert_eq!(unreachable.code, ProblemCode::NoDaemon);
    assert_printed!(missing, garbage, unknown, unreachable);
}

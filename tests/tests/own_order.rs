//! Plans for the order that a job runs by itself.

use pfo::Instruction;
use pfo_tests::{
    Identity, MICROBATCHES, Node, Ran, Rank, STAGES, TestPlan, Training, assert_printed,
    true_profile,
};

const JOB: &str = "job";

/// The arguments of planning for the order of the job, into this file.
fn optimize<'a>(profile: &'a str, frontier: &'a str) -> [&'a str; 9] {
    ["plan", "optimize", profile, "--order-of", JOB, "--p2p-power", "70", "-o", frontier]
}

fn path(node: &Node, name: &str) -> String {
    node.directory().join(name).to_str().unwrap().to_owned()
}

#[test]
fn the_order_of_a_job_is_found_by_its_name_and_nothing_about_the_job_changes() {
    let node = Node::start();
    let plan = TestPlan::distinct(STAGES, MICROBATCHES, 600);
    let training = Training::start_on_plan(&node, JOB, &Identity::own(), &plan);
    let profile = node.plan_file("profile.csv", true_profile("0.02").as_bytes());
    let frontier = path(&node, "frontier");
    let printed = node.pfoctl(&Identity::own(), &optimize(&profile, &frontier)).printed();
    assert!(printed.starts_with("job job runs 1f1b; 3 microbatches\n"), "{printed}");
    let job = node.job(JOB);
    assert_eq!((job.plan.unwrap().number, job.measured_by), (1, None));
    training.stop();
}

/// A step of every rank in an order without a name: the backwards begin with that of the second microbatch.
fn odd_step(ranks: &[Rank]) {
    let run = |rank: &Rank, instruction, microbatch| {
        rank.session.instruction_begin(instruction, microbatch);
        rank.session.instruction_end();
    };
    ranks.iter().for_each(|rank| rank.session.step_begin());
    for microbatch in 0..MICROBATCHES {
        ranks.iter().for_each(|rank| run(rank, Instruction::Forward, microbatch));
    }
    for microbatch in [1, 0, 2] {
        ranks.iter().rev().for_each(|rank| run(rank, Instruction::Backward, microbatch));
    }
    ranks.iter().for_each(|rank| rank.session.step_end());
}

#[test]
fn a_plan_for_an_order_without_a_name_is_one_that_the_job_follows() {
    let node = Node::start();
    let ranks = Rank::open_all(&node, JOB, STAGES, MICROBATCHES);
    let profile = node.plan_file("profile.csv", true_profile("0.02").as_bytes());
    let (frontier, plan) = (path(&node, "frontier"), path(&node, "plan.json"));
    let mut planning = node.begin_pfoctl(&Identity::own(), &optimize(&profile, &frontier));
    while planning.try_wait().unwrap().is_none() {
        odd_step(&ranks);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let printed = Ran::from(planning.wait_with_output().unwrap()).printed();
    assert!(
        printed.starts_with("job job runs an order without a name; 3 microbatches\n"),
        "{printed}"
    );
    let user = Identity::own();
    let export = ["plan", "export", &frontier, "--deadline", "1.05x", "-o", &plan];
    assert_eq!(node.pfoctl(&user, &export).code, Some(0));
    assert_eq!(node.pfoctl(&user, &["plan", "swap", JOB, &plan]).code, Some(0));
    odd_step(&ranks);
    odd_step(&ranks);
    node.until_so("two steps on the plan", || {
        node.job(JOB).ranks.iter().all(|rank| rank.plan == Some(1) && rank.instructions >= 6)
    });
    assert!(node.job(JOB).ranks.iter().all(|rank| rank.mismatched_steps == 0));
}

#[test]
fn the_order_of_a_job_with_stages_elsewhere_is_not_known() {
    let node = Node::start();
    let rank = Rank::open(&node, JOB, 1, 2, 2);
    let profile = node.plan_file("profile.csv", true_profile("0.02").as_bytes());
    let frontier = path(&node, "frontier");
    let mut planning = node.begin_pfoctl(&Identity::own(), &optimize(&profile, &frontier));
    while planning.try_wait().unwrap().is_none() {
        rank.step();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let ran = Ran::from(planning.wait_with_output().unwrap());
    assert_printed!(ran);
}

//! Clocks that another tool sets on a leased GPU.

use pfo_tests::{Identity, MICROBATCHES, Node, STAGES, Setup, TestPlan, Training};

const JOB: &str = "job";
const PLANNED_MHZ: u32 = 900;
const FOREIGN_MHZ: u32 = 600;

/// The GPU that the other tool locks.
const VICTIM: usize = 1;

fn train(node: &Node) -> Training {
    let plan = TestPlan::new(STAGES, MICROBATCHES, |_, _| PLANNED_MHZ);
    let training = Training::start_on_plan(node, JOB, &Identity::own(), &plan);
    node.until_is("the plan's clock", &Some(PLANNED_MHZ), || node.machine.sm_lock(VICTIM));
    training
}

fn problem(node: &Node, gpu: usize) -> Option<String> {
    node.status().gpus[gpu].problem.clone()
}

#[test]
fn a_foreign_clock_is_named_and_the_plans_clock_is_set_again() {
    let node = Node::start();
    let training = train(&node);
    for round in 1..=2 {
        node.machine.lock(VICTIM, FOREIGN_MHZ);
        node.until_is("the plan's clock", &Some(PLANNED_MHZ), || node.machine.sm_lock(VICTIM));
        node.until_is("no problem", &None, || problem(&node, VICTIM));
        let said = "runs at 600 MHz, not at its lock at 900 MHz";
        node.until_is("entries", &round, || node.log().matches(said).count());
    }
    assert_eq!(problem(&node, 0), None);
    training.stop();
}

#[test]
fn a_foreign_clock_that_is_to_be_left_is_in_status_until_it_is_gone() {
    let node = Node::start_with(&Setup { on_foreign_clock: "leave", ..Setup::default() });
    let training = train(&node);
    node.machine.lock(VICTIM, FOREIGN_MHZ);
    node.until("status names it", || match problem(&node, VICTIM) {
        Some(problem) if problem.contains("at 600 MHz although pfod has locked 900 MHz") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let told = node.pfoctl(&Identity::own(), &["status"]).stdout;
    assert!(told.contains("GPU 1: it runs at 600 MHz although pfod has locked 900 MHz"), "{told}");
    assert_eq!(node.machine.sm_lock(VICTIM), Some(FOREIGN_MHZ));
    node.machine.lock(VICTIM, PLANNED_MHZ);
    node.until_is("no problem", &None, || problem(&node, VICTIM));
    node.machine.lock(VICTIM, FOREIGN_MHZ);
    node.until_so("status names it again", || problem(&node, VICTIM).is_some());
    let ran = node.pfoctl(&Identity::own(), &["plan", "swap", JOB, "--default-clocks", "--wait"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    node.until_is("no problem without a lock", &None, || problem(&node, VICTIM));
    training.stop();
}

//! What a driver does not do is not said to be done, and the reason is said at once.

use std::fs;
use std::process::Child;

use pfo_tests::{Identity, MICROBATCHES, Node, Ran, STAGES, TestPlan, Training};

const JOB: &str = "pipeline";
const SET: &str = "nvmlDeviceSetGpuLockedClocks";

/// A code of its own.
const NOT_IN_FORCE: Option<i32> = Some(7);

/// A node with a job that trains, and a plan for it. The machine's GPUs can be locked at this clock.
fn training(node: &Node) -> (Training, String) {
    let training = Training::start(node, JOB, &Identity::own(), &[]);
    training.until_leased(node);
    training.until_step(node, 2);
    let plan = node.directory().join("plan.json");
    fs::write(&plan, TestPlan::new(STAGES, MICROBATCHES, |_, _| 900).to_json()).unwrap();
    (training, plan.display().to_string())
}

fn swap(node: &Node, plan: &str) -> Ran {
    node.pfoctl(&Identity::own(), &["plan", "swap", JOB, plan, "--wait"])
}

/// Somebody begins to wait for a swap whose step is far away.
fn begin_far_swap(node: &Node, plan: &str) -> Child {
    let far = ["plan", "swap", JOB, plan, "--at-step", "100000", "--wait"];
    let waiting = node.begin_pfoctl(&Identity::own(), &far);
    node.until_is("it waits", &Some(100_000), || node.job(JOB).swap_at_step);
    waiting
}

/// The steps that status counts under plans, or at default clocks.
fn steps(node: &Node, on_plan: bool) -> u64 {
    let windows = node.job(JOB).windows;
    let counted = windows.iter().filter(|window| window.plan.is_some() == on_plan);
    counted.map(|window| window.steps).sum()
}

fn attention(node: &Node) -> String {
    let status = node.pfoctl(&Identity::own(), &["status"]).stdout;
    status.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_swap_that_the_driver_carries_out_is_a_success() {
    let node = Node::start();
    let (_training, plan) = training(&node);
    let ran = swap(&node, &plan);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{ran:?}");
    assert!(!attention(&node).contains("not in force"));
}

#[test]
fn a_swap_that_a_driver_refuses_is_no_success_and_names_the_gpu() {
    for (kind, gpu, why) in [
        ("no-permission", None, "permission"),
        ("not-supported", Some(2), "not available"),
        ("ignored", Some(1), "although pfod has locked 900 MHz"),
    ] {
        let node = Node::start();
        let (_training, plan) = training(&node);
        node.machine.fault(SET, kind, gpu);
        let ran = swap(&node, &plan);
        assert_eq!(ran.code, NOT_IN_FORCE, "{kind}: {ran:?}");
        assert!(ran.stderr.contains("not in force on rank "), "{kind}: {ran:?}");
        for index in gpu.map_or(0..STAGES as usize, |gpu| gpu..gpu + 1) {
            let named = format!("rank {index} (GPU {index}): ");
            assert!(ran.stderr.contains(&named) && ran.stderr.contains(why), "{kind}: {ran:?}");
        }
    }
}

#[test]
fn a_plan_that_a_driver_refuses_after_another_is_not_taken_for_the_one_before() {
    let node = Node::start();
    let (_training, plan) = training(&node);
    let other = node.directory().join("other.json");
    fs::write(&other, TestPlan::new(STAGES, MICROBATCHES, |_, _| 1005).to_json()).unwrap();
    assert_eq!(swap(&node, other.to_str().unwrap()).code, Some(0));
    node.machine.fault(SET, "no-permission", Some(2));
    let ran = swap(&node, &plan);
    assert_eq!(ran.code, NOT_IN_FORCE, "{ran:?}");
    assert!(ran.stderr.contains("not in force on rank 2 (GPU 2): "), "{ran:?}");
}

#[test]
fn a_swap_that_another_replaces_before_its_step_is_no_success() {
    let node = Node::start();
    let (_training, plan) = training(&node);
    let waiting = begin_far_swap(&node, &plan);
    let other = node.directory().join("other.json");
    fs::write(&other, TestPlan::new(STAGES, MICROBATCHES, |_, _| 1005).to_json()).unwrap();
    assert_eq!(swap(&node, other.to_str().unwrap()).code, Some(0));
    let ran = Ran::from(waiting.wait_with_output().unwrap());
    assert_eq!((ran.code, &*ran.stdout), (NOT_IN_FORCE, ""), "{ran:?}");
    let why = format!("job {JOB} was swapped to something else before step 100000");
    assert!(ran.stderr.contains(&why), "{ran:?}");
}

#[test]
fn a_swap_before_whose_step_a_rank_dies_is_no_success() {
    let node = Node::start();
    let (training, plan) = training(&node);
    let waiting = begin_far_swap(&node, &plan);
    drop(training);
    let ran = Ran::from(waiting.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains("which none of its 4 ranks on this node has begun"), "{ran:?}");
}

#[test]
fn steps_in_which_the_driver_refuses_a_clock_are_in_no_figure() {
    let node = Node::start();
    let (training, plan) = training(&node);
    assert_eq!(swap(&node, &plan).code, Some(0));
    let at_default_clocks = || steps(&node, false);
    let five_steps_later = || {
        let step = node.job(JOB).ranks.iter().filter_map(|rank| rank.step).max().unwrap();
        training.until_step(&node, step + 5);
    };
    node.machine.fault("nvmlDeviceResetGpuLockedClocks", "no-permission", None);
    let back = ["plan", "swap", JOB, "--default-clocks", "--wait"];
    assert_eq!(node.pfoctl(&Identity::own(), &back).code, NOT_IN_FORCE);
    let before = at_default_clocks();
    five_steps_later();
    assert_eq!(at_default_clocks(), before, "all GPUs are locked to the clocks of the plan");
    node.machine.clear_faults();
    node.until_so("steps at default clocks", || at_default_clocks() > before);
}

#[test]
fn a_plan_runs_again_when_the_job_is_back_in_the_size_that_it_fits() {
    let node = Node::start();
    let (first, plan) = training(&node);
    assert_eq!(swap(&node, &plan).code, Some(0));
    first.stop();
    let other = Training::start(&node, JOB, &Identity::own(), &["--microbatches", "2"]);
    other.until_step(&node, 3);
    let why = node.job(JOB).plan.unwrap().suspended.unwrap();
    assert!(why.contains("the plan has 3 microbatches, rank "), "{why}");
    let on_plan = || steps(&node, true);
    let before = on_plan();
    other.until_step(&node, 8);
    assert_eq!(on_plan(), before, "its steps are not the plan's");
    drop(other);
    node.until_is("ranks", &0, || node.job(JOB).ranks.len());
    let again = Training::start(&node, JOB, &Identity::own(), &[]);
    again.until_step(&node, 3);
    assert_eq!(node.job(JOB).plan.unwrap().suspended, None);
    node.until_is("locked GPUs", &(STAGES as usize), || {
        (0..STAGES as usize).filter(|gpu| node.machine.sm_lock(*gpu).is_some()).count()
    });
}

#[test]
fn status_says_of_a_plan_on_which_rank_it_is_not_in_force_and_why() {
    let node = Node::start();
    let (_training, plan) = training(&node);
    node.machine.fault(SET, "no-permission", Some(0));
    assert_eq!(swap(&node, &plan).code, NOT_IN_FORCE);
    let said = attention(&node);
    assert!(said.contains("plan 1, not in force on rank 0 (GPU 0): "), "{said}");
    assert!(!said.contains("rank 1 (GPU 1)"), "{said}");
    // It is in force as soon as the driver lets it be.
    node.machine.clear_faults();
    node.until_is("the lock", &Some(900), || node.machine.sm_lock(0));
    node.until_so("status says so", || !attention(&node).contains("not in force"));
}

#[test]
fn a_return_to_default_clocks_that_a_driver_refuses_is_no_success() {
    let node = Node::start();
    let (_training, plan) = training(&node);
    assert_eq!(swap(&node, &plan).code, Some(0));
    node.machine.fault("nvmlDeviceResetGpuLockedClocks", "no-permission", Some(1));
    let back =
        || node.pfoctl(&Identity::own(), &["plan", "swap", JOB, "--default-clocks", "--wait"]);
    let ran = back();
    assert_eq!(ran.code, NOT_IN_FORCE, "{ran:?}");
    assert!(ran.stderr.contains("not in force on rank 1 (GPU 1): "), "{ran:?}");
    assert!(!ran.stderr.contains("rank 0"), "{ran:?}");
    node.machine.clear_faults();
    let ran = back();
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{ran:?}");
    assert_eq!(node.machine.sm_lock(1), None);
}

#[test]
fn a_ledger_that_cannot_be_written_is_named_as_the_reason() {
    let node = Node::start();
    let (_training, plan) = training(&node);
    // Where the next ledger would be written first, there is something in the way.
    let ledger = node.ledger().with_extension("new");
    fs::create_dir(&ledger).unwrap();
    let ran = swap(&node, &plan);
    assert_eq!(ran.code, NOT_IN_FORCE, "{ran:?}");
    assert!(ran.stderr.contains("not in force on rank 0 (GPU 0): "), "{ran:?}");
    assert!(ran.stderr.contains("ledger"), "{ran:?}");
}

#[test]
fn what_is_to_be_measured_at_clocks_that_cannot_be_set_is_refused_with_the_reason() {
    for command in [&["tune", JOB][..], &["profile", "start", JOB]] {
        let node = Node::start();
        let (_training, _) = training(&node);
        node.machine.fault(SET, "not-supported", Some(2));
        let ran = node.pfoctl(&Identity::own(), command);
        assert_eq!(ran.code, NOT_IN_FORCE, "{command:?}: {ran:?}");
        assert!(ran.stderr.contains("is not in force on rank 2 (GPU 2): "), "{command:?}: {ran:?}");
        // Nothing goes on in its name.
        node.until_so("the job is free", || node.status().jobs[0].measured_by.is_none());
    }
}

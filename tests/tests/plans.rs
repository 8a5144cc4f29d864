//! Plans, and the swaps between them.

use std::thread::sleep;
use std::time::Duration;

use pfo_protocol::{RefusalCode, Request, SwapTarget, TrialLength, TrialRun};
use pfo_tests::control::{job, swap};
use pfo_tests::{Identity, Node, Ran, Rank, TestPlan, assert_printed};

const JOB: &str = "job";

/// Waits until the driver was last asked for this clock on a GPU.
fn until_locked(node: &Node, gpu: usize, mhz: u32) {
    node.until_is(&format!("the lock of GPU {gpu}"), &Some(mhz), || node.machine.sm_lock(gpu));
}

/// Sends a step, and lets pfod set each clock before the next instruction is sent.
fn slow_step(node: &Node, rank: &Rank, gpu: usize, clocks: &[u32]) {
    rank.session.step_begin();
    until_locked(node, gpu, clocks[0]);
    for position in 0..rank.order().len() {
        rank.instruction(position);
        until_locked(node, gpu, clocks[(position + 1) % clocks.len()]);
    }
    rank.session.step_end();
}

#[test]
fn ranks_whose_job_has_others_elsewhere_change_alone_only_if_one_insists() {
    let node = Node::start();
    let rank = Rank::open(&node, JOB, 0, 2, 2);
    rank.step();
    let (user, swap) = (Identity::own(), ["plan", "swap", JOB, "--default-clocks"]);
    let refused = node.pfoctl(&user, &swap);
    assert_eq!(refused.code, Some(4), "{refused:?}");
    assert!(refused.stderr.contains("job job has 2 ranks, 1 on this node"), "{refused:?}");
    assert!(refused.stderr.contains("--this-node-only"), "{refused:?}");
    let refused = node.pfoctl(&user, &["plan", "rollback", JOB]);
    assert!(refused.stderr.contains("job job has 2 ranks, 1 on this node"), "{refused:?}");
    let length = TrialLength { settling_steps: 1, steps: 1 };
    let trial = Request::Trial { job: job(JOB), run: TrialRun::DefaultClocks, length, after: None };
    let refused = node.control().ask(trial).unwrap_err();
    assert_eq!(refused.code, RefusalCode::LimitReached, "{refused}");
    let alone = node.pfoctl(&user, &[&swap[..], &["--this-node-only"]].concat());
    assert!(alone.printed().contains("on its only rank on this node"));
}

#[test]
fn the_driver_is_asked_for_exactly_the_clocks_of_the_plan_in_order() {
    let node = Node::start();
    let ranks = Rank::open_all(&node, JOB, 4, 3);
    let plan = TestPlan::distinct(4, 3, 600);
    node.take_up(JOB, &plan);
    for (gpu, rank) in ranks.iter().enumerate() {
        let clocks = plan.clocks(gpu as u32);
        slow_step(&node, rank, gpu, clocks);
        slow_step(&node, rank, gpu, clocks);
        let mut expected = clocks.repeat(2);
        expected.push(clocks[0]);
        assert_eq!(node.machine.clocks_set(gpu), expected);
    }
    let status = node.job(JOB);
    assert!(status.ranks.iter().all(|rank| rank.mismatched_steps == 0), "{status:?}");
    assert!(status.ranks.iter().all(|rank| rank.instructions == 12), "{status:?}");
    drop(ranks);
    node.assert_only_locked(&[]);
}

#[test]
fn a_clock_that_does_not_change_is_not_asked_for_again() {
    let node = Node::start();
    let rank = Rank::open(&node, JOB, 0, 1, 3);
    node.take_up(JOB, &TestPlan::new(1, 3, |_, _| 900));
    for _ in 0..5 {
        rank.step();
        until_locked(&node, 0, 900);
    }
    drop(rank);
    node.assert_only_locked(&[]);
    assert_eq!(node.machine.clocks_set(0), [900]);
}

#[test]
fn every_rank_changes_at_the_first_step_that_none_has_begun() {
    let node = Node::start();
    let ranks = Rank::open_all(&node, JOB, 4, 2);
    let first = TestPlan::new(4, 2, |stage, _| 600 + 15 * stage);
    let second = TestPlan::new(4, 2, |stage, _| 1200 + 15 * stage);
    node.take_up(JOB, &first);
    // Rank r is in step r + 1 when the swap comes.
    for (gpu, rank) in ranks.iter().enumerate() {
        (0..=gpu).for_each(|_| rank.step());
        rank.session.step_begin();
        node.until_is("the rank's step", &Some(gpu as u64 + 1), || node.rank(JOB, gpu as u32).step);
    }
    assert_eq!(node.take_up(JOB, &second).step, 5);
    for (gpu, rank) in ranks.iter().enumerate() {
        rank.instructions();
        rank.session.step_end();
        // Every further step below 5 is still of the first plan.
        for step in gpu as u64 + 2..5 {
            rank.step();
            node.until_is("the rank's step", &Some(step), || node.rank(JOB, gpu as u32).step);
            assert_eq!(node.rank(JOB, gpu as u32).plan, Some(1));
        }
        let expected = &first.clocks(gpu as u32)[..1];
        node.until_is("the first clock", &expected.to_vec(), || node.machine.clocks_set(gpu));
        assert_eq!(node.job(JOB).swap_at_step, Some(5));
        rank.session.step_begin();
        node.until_is("the plan of step 5", &Some(2), || node.rank(JOB, gpu as u32).plan);
        until_locked(&node, gpu, second.clocks(gpu as u32)[0]);
    }
    assert_eq!(node.job(JOB).swap_at_step, None);
}

#[test]
fn a_waiting_swap_returns_only_when_the_last_rank_has_changed() {
    let node = Node::start();
    let ranks = Rank::open_all(&node, JOB, 2, 2);
    ranks.iter().for_each(Rank::step);
    node.until_is("the ranks' step", &2, || {
        node.job(JOB).ranks.iter().filter(|rank| rank.step == Some(0)).count()
    });
    let plan = node.plan_file("plan.json", &TestPlan::distinct(2, 2, 600).to_json());
    let arguments = ["plan", "swap", JOB, &plan, "--wait", "--json"];
    let mut waiting = node.begin_pfoctl(&Identity::own(), &arguments);
    node.until_is("the swap", &Some(1), || node.job(JOB).swap_at_step);
    ranks[0].session.step_begin();
    node.until_is("the first rank's plan", &Some(1), || node.rank(JOB, 0).plan);
    // It has had every chance to return too early.
    sleep(Duration::from_millis(200));
    assert_eq!(waiting.try_wait().unwrap(), None, "it did not wait for the last rank");
    ranks[1].session.step_begin();
    let ran = Ran::from(waiting.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let swapped = ran.json();
    assert_eq!((&swapped["step"], &swapped["changed"]), (&1.into(), &2.into()), "{ran:?}");
}

#[test]
fn a_rank_that_ends_keeps_no_swap_waiting() {
    let node = Node::start();
    let mut ranks = Rank::open_all(&node, JOB, 2, 2);
    node.take_up(JOB, &TestPlan::distinct(2, 2, 600));
    ranks[0].session.step_begin();
    node.until_is("the first rank's plan", &Some(1), || node.rank(JOB, 0).plan);
    assert_eq!(node.job(JOB).swap_at_step, Some(0));
    drop(ranks.pop());
    node.until_is("the swap is over", &None, || node.job(JOB).swap_at_step);
}

#[test]
fn a_rank_that_comes_late_finds_the_plan_in_use() {
    let node = Node::start();
    let first = Rank::open(&node, JOB, 0, 2, 2);
    let plan = TestPlan::distinct(2, 2, 600);
    node.take_up(JOB, &plan);
    first.step();
    until_locked(&node, 0, plan.clocks(0)[0]);
    let late = Rank::open(&node, JOB, 1, 2, 2);
    late.session.step_begin();
    until_locked(&node, 1, plan.clocks(1)[0]);
    assert_eq!(node.rank(JOB, 1).plan, Some(1));
}

#[test]
fn a_rollback_returns_to_the_plan_before_or_to_default_clocks() {
    let node = Node::start();
    let rank = Rank::open(&node, JOB, 0, 1, 2);
    let (one, two) = (TestPlan::new(1, 2, |_, _| 600), TestPlan::new(1, 2, |_, _| 900));
    node.take_up(JOB, &one);
    rank.step();
    until_locked(&node, 0, 600);
    let rolled_back = || {
        let ran = node.pfoctl(&Identity::own(), &["plan", "rollback", JOB, "--json"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        rank.step();
        ran.json()["plan"]["number"].as_u64()
    };
    assert_eq!(rolled_back(), None);
    node.until_is("the lock is gone", &None, || node.machine.sm_lock(0));
    node.take_up(JOB, &two);
    rank.step();
    until_locked(&node, 0, 900);
    node.take_up(JOB, &one);
    rank.step();
    until_locked(&node, 0, 600);
    assert_eq!(rolled_back(), Some(2));
    until_locked(&node, 0, 900);
}

#[test]
fn a_second_swap_is_refused_while_one_is_under_way_and_told_how_far_it_is() {
    let node = Node::start();
    let ranks = Rank::open_all(&node, JOB, 2, 2);
    let plan = TestPlan::distinct(2, 2, 600);
    node.take_up(JOB, &plan);
    ranks[0].session.step_begin();
    node.until_is("the first rank's plan", &Some(1), || node.rank(JOB, 0).plan);
    node.load(JOB, &plan).unwrap();
    let refusal = node.swap(JOB, SwapTarget::Loaded).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::LimitReached);
    assert_printed!(refusal, node.pfoctl(&Identity::own(), &["plan", "swap", JOB]));
    ranks[1].session.step_begin();
    node.until_is("the swap is over", &None, || node.job(JOB).swap_at_step);
    node.swap(JOB, SwapTarget::Loaded).unwrap();
}

#[test]
fn a_swap_may_be_put_off_to_a_later_step() {
    let node = Node::start();
    let rank = Rank::open(&node, JOB, 0, 1, 2);
    let plan = node.plan_file("plan.json", &TestPlan::new(1, 2, |_, _| 600).to_json());
    let arguments = ["plan", "swap", JOB, &plan, "--at-step", "3", "--json"];
    let ran = node.pfoctl(&Identity::own(), &arguments);
    assert_eq!(ran.json()["step"], 3, "{ran:?}");
    for _ in 0..3 {
        rank.step();
    }
    node.until_is("the rank's step", &Some(2), || node.rank(JOB, 0).step);
    assert!(node.machine.clocks_set(0).is_empty());
    rank.session.step_begin();
    until_locked(&node, 0, 600);
}

#[test]
fn a_job_without_a_plan_has_nothing_to_swap_to_or_roll_back() {
    let node = Node::start();
    let _rank = Rank::open(&node, JOB, 0, 1, 2);
    let mut control = node.control();
    let refused = swap(&mut control, JOB, SwapTarget::Loaded, true).unwrap_err();
    assert_eq!(refused.code, RefusalCode::NoPlan);
    assert_eq!(refused.message, "no plan is loaded for job job");
    let refused = swap(&mut control, JOB, SwapTarget::Previous, true).unwrap_err();
    assert_eq!(refused.message, "job job has run no plan that could be rolled back");
}

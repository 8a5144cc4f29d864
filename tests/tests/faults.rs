//! Drivers and daemons that fail while ranks train.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pfo::ProblemCode;
use pfo_protocol::{ClosingReason, RefusalCode, SwapTarget};
use pfo_tests::{
    Client, Identity, MICROBATCHES, Node, Rank, STAGES, Setup, TestPlan, Training, assert_printed,
    hello,
};

const JOB: &str = "job";
const SET: &str = "nvmlDeviceSetGpuLockedClocks";

/// Two ranks on a plan whose every instruction has another clock, at its first one.
fn two_ranks_on_plan(node: &Node) -> (Vec<Rank>, TestPlan) {
    let ranks = Rank::open_all(node, JOB, 2, 3);
    let plan = TestPlan::distinct(2, 3, 600);
    node.take_up(JOB, &plan);
    ranks.iter().for_each(|rank| rank.session.step_begin());
    for gpu in 0..2 {
        until_locked(node, gpu, plan.clocks(gpu as u32)[0]);
    }
    (ranks, plan)
}

fn until_locked(node: &Node, gpu: usize, mhz: u32) {
    node.until_is(&format!("the lock of GPU {gpu}"), &Some(mhz), || node.machine.sm_lock(gpu));
}

/// A driver that hangs on one GPU in every call of `function` costs nobody else anything.
fn nobody_waits_for_a_gpu_that_hangs_in(function: &str) {
    let mut node = Node::start();
    let (ranks, plan) = two_ranks_on_plan(&node);
    node.machine.fault(function, "hang", Some(0));
    ranks[0].instruction(0);
    let calls = node.machine.clocks_set(0).len();
    for position in 0..5 {
        ranks[1].instruction(position);
        until_locked(&node, 1, plan.clocks(1)[position + 1]);
    }
    node.until("status names the GPU that hangs", || {
        let status = node.status();
        assert_eq!(status.gpus[1].problem, None);
        match &status.gpus[0].problem {
            Some(problem) if problem.contains("not answer") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    // Somebody else can still come.
    let third = Rank::open(&node, "another", 2, 3, 2);
    drop(third);
    node.machine.clear_faults();
    until_locked(&node, 0, plan.clocks(0)[1]);
    assert!(node.machine.clocks_set(0).len() <= calls + 1, "a call that hung was repeated");
    drop(ranks);
    node.assert_only_locked(&[]);
    assert!(node.daemon.take().unwrap().stop().success());
}

#[test]
fn a_set_call_that_hangs_delays_no_other_rank_and_no_status() {
    nobody_waits_for_a_gpu_that_hangs_in(SET);
}

#[test]
fn a_gpu_that_hangs_in_every_call_delays_no_other_rank_and_no_status() {
    nobody_waits_for_a_gpu_that_hangs_in("*");
}

#[test]
fn events_during_a_slow_call_lead_to_one_call_for_the_newest_clock() {
    let node = Node::start();
    let (ranks, plan) = two_ranks_on_plan(&node);
    node.machine.fault(SET, "latency:300", Some(0));
    let before = node.machine.clocks_set(0).len();
    ranks[0].instruction(0);
    node.until_is("calls", &(before + 1), || node.machine.clocks_set(0).len());
    // These four clocks have no call of their own: the driver has not returned from the first.
    for position in 1..5 {
        ranks[0].instruction(position);
    }
    until_locked(&node, 0, plan.clocks(0)[5]);
    assert_eq!(node.machine.clocks_set(0)[before..], [plan.clocks(0)[1], plan.clocks(0)[5]]);
    assert_eq!(node.rank(JOB, 0).mismatched_steps, 0);
}

#[test]
fn a_lost_gpu_ends_only_its_own_session_and_is_restored_when_back() {
    let node = Node::start();
    let (ranks, plan) = two_ranks_on_plan(&node);
    node.machine.fault("*", "gpu-is-lost", Some(0));
    ranks[0].instruction(0);
    node.until("the rank hears of it", || match ranks[0].session.problem() {
        Some(problem) if problem.code == ProblemCode::Closed(ClosingReason::GpuLost) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    // It is still locked, and the ledger does not forget that.
    assert_eq!(node.ledger_entries(), 2);
    let daemon = node.status().daemon;
    assert_printed!(daemon.unrestored.join("\n"));
    // Somebody else may be asking the GPU just now.
    node.until("status names the loss", || match node.status().gpus[0].problem.clone() {
        Some(problem) if problem.contains("fell off the bus") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    ranks[1].instruction(0);
    until_locked(&node, 1, plan.clocks(1)[1]);
    drop(ranks);
    node.machine.clear_faults();
    node.assert_only_locked(&[]);
    assert!(node.status().daemon.unrestored.is_empty());
}

#[test]
fn a_driver_that_refuses_a_clock_is_told_in_status_and_the_rank_trains_on() {
    let node = Node::start();
    let (ranks, plan) = two_ranks_on_plan(&node);
    node.machine.fault(SET, "no-permission", Some(0));
    ranks[0].instruction(0);
    let problem = node.until("status tells the problem", || {
        node.rank(JOB, 0).problem.ok_or_else(|| "it does not".to_owned())
    });
    assert_printed!(problem);
    assert_eq!(node.status().gpus[0].problem.as_deref(), Some(problem.as_str()));
    assert_eq!(ranks[0].session.problem(), None, "the rank keeps its lease");
    node.machine.clear_faults();
    ranks[0].instruction(1);
    until_locked(&node, 0, plan.clocks(0)[2]);
    node.until_is("the problem", &None, || node.rank(JOB, 0).problem);
    drop(ranks);
    node.assert_only_locked(&[]);
}

#[test]
fn a_gpu_without_memory_clock_locks_is_driven_all_the_same() {
    let node = Node::create(&Setup::default());
    node.machine.fault("nvmlDeviceSetMemoryLockedClocks", "not-supported", None);
    let mut node = node;
    node.start_daemon();
    let (ranks, _) = two_ranks_on_plan(&node);
    assert_eq!((node.rank(JOB, 0).problem, node.machine.memory_lock(0)), (None, None));
    drop(ranks);
    node.assert_only_locked(&[]);
}

#[test]
fn clocks_that_cannot_be_restored_are_restored_when_the_driver_allows() {
    let node = Node::start();
    let (ranks, _) = two_ranks_on_plan(&node);
    node.machine.fault("nvmlDeviceResetGpuLockedClocks", "unknown", Some(0));
    drop(ranks);
    node.until_is("the ledger", &1, || node.ledger_entries());
    node.until_is("the GPU that could be restored", &None, || node.machine.sm_lock(1));
    // Nobody gets a GPU that is not as it should be.
    let problem = Rank::open_anyway(&node, "next", 0, 1, 2).session.problem().unwrap();
    assert_printed!(problem.message);
    node.machine.clear_faults();
    node.assert_only_locked(&[]);
}

#[test]
fn the_death_of_a_daemon_costs_no_step_and_its_ranks_lease_again() {
    let mut node = Node::start();
    let plan = TestPlan::distinct(STAGES, MICROBATCHES, 600);
    let training = Training::start_on_plan(&node, JOB, &Identity::trainer(), &plan);
    for _ in 0..2 {
        node.kill_daemon();
        thread::sleep(Duration::from_millis(100));
        node.start_daemon();
        training.until_leased(&node);
        let step = training.ranks(&node).iter().filter_map(|rank| rank.1).max().unwrap_or(0);
        training.until_step(&node, step + 2);
    }
    // A swap works as if nothing had been.
    let step = training.take_up(&node, &plan);
    training.until_step(&node, step + 1);
    let report = training.stop();
    for rank in report["ranks"].as_array().unwrap() {
        assert!(rank["events"]["reconnects"].as_u64().unwrap() >= 2, "{rank}");
        assert_eq!(rank["problem"], serde_json::Value::Null);
    }
    node.assert_only_locked(&[]);
}

#[test]
fn no_call_of_a_trainer_waits_for_a_daemon_that_is_absent_or_deaf() {
    let mut node = Node::start();
    let rank = Rank::open(&node, JOB, 0, 1, 3);
    let longest = |steps: u32| {
        let began = Instant::now();
        (0..steps).for_each(|_| rank.step());
        began.elapsed()
    };
    node.daemon().process.signal(nix::sys::signal::Signal::SIGSTOP);
    // More than any socket holds.
    let with_a_full_socket = longest(2000);
    assert!(rank.session.counters().dropped > 0);
    node.daemon().process.signal(nix::sys::signal::Signal::SIGCONT);
    node.until("the daemon has noticed the gap", || {
        rank.step();
        match node.rank(JOB, 0).lost_events {
            0 => Err("nothing is lost".to_owned()),
            _ => Ok(()),
        }
    });
    node.kill_daemon();
    let without_a_daemon = longest(2000);
    // 28,000 calls each; a single one that waits for anything would show.
    assert!(with_a_full_socket + without_a_daemon < Duration::from_secs(10));
}

#[test]
fn a_rank_that_floods_the_daemon_delays_no_other_rank() {
    let node = Node::start();
    let flooding = Rank::open(&node, "flood", 3, 4, 3);
    let (ranks, plan) = two_ranks_on_plan(&node);
    let enough = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !enough.load(Ordering::Relaxed) {
                flooding.step();
            }
        });
        for position in 0..5 {
            ranks[1].instruction(position);
            until_locked(&node, 1, plan.clocks(1)[position + 1]);
        }
        node.until_so("status answers", || node.find_job("flood").is_some());
        enough.store(true, Ordering::Relaxed);
    });
    assert_eq!(node.rank(JOB, 1).mismatched_steps, 0);
    drop((flooding, ranks));
    node.assert_only_locked(&[]);
}

/// Two ranks lose a driver that goes while one of them does something, and get it back.
fn ranks_wait_for_a_driver_that_goes(while_it_is_gone: impl Fn(&Rank)) {
    let mut node = Node::start();
    let pid = node.daemon().process.pid();
    let (ranks, plan) = two_ranks_on_plan(&node);
    // Whose session says nothing, and so has nothing to fail at.
    let silent = Rank::open(&node, "silent", 2, 3, 2);
    node.machine.set_driver_loaded(false);
    while_it_is_gone(&ranks[0]);
    let problem = node.until("status tells that the driver is gone", || {
        let daemon = node.status().daemon;
        daemon.driver_problem.clone().ok_or_else(|| format!("{daemon:?}"))
    });
    assert!(problem.contains("driver"), "{problem}");
    node.until_is("sessions", &0, || node.status().daemon.sessions);
    let status = node.status();
    assert_eq!((status.daemon.driver, status.gpus.len(), status.daemon.pid), (None, 0, pid));
    let gpu = pfo_protocol::GpuName::Uuid(node.machine.uuid(3));
    let refusal = Client::connect(&node.socket()).open(hello(JOB, 3, 4, gpu)).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::DriverUnavailable);
    ranks.iter().chain([&silent]).for_each(|rank| {
        node.until_so("the rank knows", || rank.session.problem().is_some());
    });
    node.machine.set_driver_loaded(true);
    node.until_so("the ranks are back", || {
        ranks.iter().chain([&silent]).all(|rank| rank.session.problem().is_none())
    });
    ranks.iter().for_each(|rank| rank.session.step_begin());
    (0..2).for_each(|gpu| until_locked(&node, gpu, plan.clocks(gpu as u32)[0]));
    assert_eq!((node.status().daemon.driver_problem, node.status().gpus.len()), (None, 4));
    drop((ranks, silent));
    node.assert_only_locked(&[]);
    assert!(node.status().daemon.unrestored.is_empty());
}

#[test]
fn a_driver_that_goes_under_ranks_that_train_is_waited_for() {
    ranks_wait_for_a_driver_that_goes(|rank| rank.instruction(0));
}

#[test]
fn a_driver_that_goes_unused_is_missed_by_the_next_request() {
    ranks_wait_for_a_driver_that_goes(|_| {});
}

#[test]
fn a_driver_that_went_and_came_unnoticed_is_loaded_anew() {
    let node = Node::start();
    let (ranks, plan) = two_ranks_on_plan(&node);
    node.machine.set_driver_loaded(false);
    node.machine.set_driver_loaded(true);
    ranks[0].instruction(0);
    node.until_so("the ranks have come back", || {
        // Silent ranks find out when they are asked.
        let back = |rank: &Rank| rank.session.problem().is_none();
        ranks.iter().all(|rank| back(rank) && rank.session.counters().reconnects > 0)
    });
    ranks.iter().for_each(|rank| rank.session.step_begin());
    (0..2).for_each(|gpu| until_locked(&node, gpu, plan.clocks(gpu as u32)[0]));
    drop(ranks);
    node.assert_only_locked(&[]);
}

#[test]
fn a_sick_gpu_at_the_start_is_named_and_costs_the_others_nothing() {
    let mut node = Node::create(&Setup::default());
    node.machine.fault("nvmlDeviceGetUUID", "gpu-is-lost", Some(1));
    node.start_daemon();
    let status = node.status();
    assert_eq!(status.gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [0, 2, 3]);
    let problem = status.daemon.driver_problem.unwrap();
    assert_printed!(problem);
    assert!(status.daemon.driver.is_some());
    drop(Rank::open(&node, JOB, 0, 1, 2));
}

#[test]
fn a_gpu_lost_while_pfod_starts_is_found_again_and_its_lock_undone() {
    let mut node = Node::start();
    let (ranks, _plan) = two_ranks_on_plan(&node);
    node.kill_daemon();
    drop(ranks);
    node.machine.fault("*", "gpu-is-lost", Some(1));
    node.start_daemon();
    node.until_is("the restore of the other GPU", &None, || node.machine.sm_lock(0));
    assert!(node.machine.sm_lock(1).is_some());
    node.machine.clear_faults();
    node.until_is("the restore of the lost GPU", &None, || node.machine.sm_lock(1));
    node.until_is("the ledger", &0, || node.ledger_entries());
    drop(Rank::open(&node, JOB, 1, 2, 2));
}

#[test]
fn a_gpu_that_hangs_when_pfod_starts_keeps_no_other_gpu_locked_or_unserved() {
    let mut node = Node::start();
    let (ranks, _plan) = two_ranks_on_plan(&node);
    node.kill_daemon();
    drop(ranks);
    node.machine.fault("*", "hang", Some(1));
    node.start_daemon();
    node.until_is("the restore of the other GPU", &None, || node.machine.sm_lock(0));
    drop(Rank::open(&node, JOB, 0, 1, 2));
    node.machine.clear_faults();
    node.until_is("the restore of the GPU that hung", &None, || node.machine.sm_lock(1));
}

#[test]
fn a_reset_that_the_driver_refused_once_is_repeated_with_the_next_step() {
    let node = Node::start();
    let (ranks, _plan) = two_ranks_on_plan(&node);
    node.machine.fault("nvmlDeviceResetGpuLockedClocks", "unknown", Some(1));
    node.swap(JOB, SwapTarget::DefaultClocks).unwrap();
    node.until_so("the reset of the other GPU", || {
        ranks.iter().for_each(|rank| rank.session.step_begin());
        node.machine.sm_lock(0).is_none()
    });
    assert!(node.machine.sm_lock(1).is_some(), "the fault has no effect");
    node.machine.clear_faults();
    node.until_so("the reset", || {
        ranks.iter().for_each(|rank| rank.session.step_begin());
        node.machine.sm_lock(1).is_none()
    });
    drop(ranks);
    node.assert_only_locked(&[]);
}

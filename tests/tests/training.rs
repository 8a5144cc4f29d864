//! Whole trainings: four ranks of another user, pipes between them, and the real shim.

use nix::sys::signal::Signal;
use pfo_protocol::Window;
use pfo_tests::{Bindings, Identity, MICROBATCHES, Node, STAGES, TestPlan, Training, process};
use serde_json::Value;

const JOB: &str = "job";
/// What a simulated A100 draws at least while it waits.
const WAITING_W: f64 = 60.0;

fn ranks(report: &Value) -> impl Iterator<Item = (usize, &Value)> {
    report["ranks"].as_array().unwrap().iter().enumerate()
}

/// When a rank says that a step of it began or ended.
fn step_time(rank: &Value, step: u64, key: &str) -> u64 {
    let steps = rank["steps"].as_array().unwrap();
    let found = steps.iter().find(|report| report["step"] == step);
    found.unwrap_or_else(|| panic!("rank {} has no step {step}", rank["rank"]))[key]
        .as_u64()
        .unwrap()
}

#[test]
fn trainers_of_another_user_get_the_clocks_of_their_plan() {
    let node = Node::start();
    let user = Identity::trainer();
    let training = Training::start(&node, JOB, &user, &[]);
    training.until_leased(&node);
    let plan = TestPlan::distinct(STAGES, MICROBATCHES, 600);
    // The owner of a job needs nobody's help to change its plan.
    let file = node.plan_file("plan.json", &plan.to_json());
    let ran = node.pfoctl(&user, &["plan", "load", JOB, &file]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = node.pfoctl(&user, &["plan", "swap", JOB, "--wait", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let swapped_at = ran.json()["step"].as_u64().unwrap();
    assert_eq!(ran.json()["changed"], STAGES);
    training.until_step(&node, swapped_at + 8);
    let (status, daemon) = (node.job(JOB), node.status().daemon.pid);
    assert_eq!(status.uid, user.uid);
    for rank in &status.ranks {
        assert_eq!((rank.mismatched_steps, rank.lost_events), (0, 0), "{rank:?}");
    }
    let report = training.stop();
    for (stage, rank) in ranks(&report) {
        assert_eq!(rank["uid"], user.uid.0);
        assert_eq!(rank["events"]["dropped"], 0);
        let steps = rank["steps"].as_array().unwrap().len() as u64;
        let clocks = node.machine.clocks_set(stage);
        let on_plan = (steps - swapped_at) as usize;
        let needed = plan.steps_for(stage as u32, &clocks);
        // The next step's first clock is set ahead; the last step may have been cut short.
        assert!(needed <= on_plan + 2, "{needed} steps for {clocks:?}, {on_plan} were run");
        assert!(clocks.len() >= 4 * on_plan, "only {} clocks in {on_plan} steps", clocks.len());
        assert!(node.machine.calls(stage).iter().all(|call| call.pid == daemon.0));
    }
    node.assert_only_locked(&[]);
}

#[test]
fn the_gpus_run_at_the_clock_that_was_set_last() {
    let node = Node::start();
    let plan = TestPlan::distinct(STAGES, MICROBATCHES, 600);
    let training = Training::start_on_plan(&node, JOB, &Identity::trainer(), &plan);
    let pids: Vec<_> = training.ranks(&node).into_iter().map(|rank| rank.0).collect();
    for _ in 0..3 {
        training.signal_ranks(&node, Signal::SIGSTOP);
        // Everything sent before the stop has reached the driver when nothing changes any more.
        let calls = || (0..4).map(|gpu| node.machine.calls(gpu).len()).collect::<Vec<_>>();
        let mut before = calls();
        node.until_so("the clocks rest", || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            std::mem::replace(&mut before, calls()) == before
        });
        if let Some(bindings) = Bindings::on(&node.machine) {
            for (gpu, reading) in bindings.read().iter().enumerate() {
                assert_eq!(Some(&reading.sm_mhz), node.machine.clocks_set(gpu).last());
                assert_eq!(reading.memory_mhz, reading.highest_memory_mhz);
            }
        }
        node.until_so("status shows the clocks of the driver", || {
            node.status().gpus.iter().all(|gpu| gpu.requested_mhz == gpu.observed_mhz)
        });
        for pid in &pids {
            process::send(*pid, Signal::SIGCONT);
        }
        let step = training.ranks(&node).iter().filter_map(|rank| rank.1).max().unwrap();
        training.until_step(&node, step + 1);
    }
    training.stop();
    node.assert_only_locked(&[]);
}

#[test]
fn a_swap_while_four_ranks_train_reaches_all_of_them_at_the_same_step() {
    let node = Node::start();
    let low = TestPlan::new(STAGES, MICROBATCHES, |_, i| 600 + 15 * (i as u32 % 2));
    let high = TestPlan::new(STAGES, MICROBATCHES, |_, i| 1200 + 15 * (i as u32 % 2));
    let training = Training::start_on_plan(&node, JOB, &Identity::trainer(), &low);
    let mut swaps = Vec::new();
    for plan in [&high, &low, &high] {
        let step = training.take_up(&node, plan);
        swaps.push(step);
        training.until_step(&node, step + 2);
        let status = node.job(JOB);
        assert_eq!(status.swap_at_step, None);
        let number = status.plan.unwrap().number;
        assert!(status.ranks.iter().all(|rank| rank.plan == Some(number)), "{:?}", status.ranks);
        assert!(status.ranks.iter().all(|rank| rank.mismatched_steps == 0), "{:?}", status.ranks);
    }
    let report = training.stop();
    for (gpu, rank) in ranks(&report) {
        let calls = node.machine.calls(gpu);
        let is_high = |mhz: u32| mhz >= 1200;
        let changes =
            calls.windows(2).filter(|pair| is_high(pair[0].max.0) != is_high(pair[1].max.0));
        let changed: Vec<_> = changes.map(|pair| pair[1].entered.0).collect();
        assert_eq!(changed.len(), swaps.len(), "GPU {gpu} went back and forth between plans");
        for (changed_ns, step) in changed.into_iter().zip(&swaps) {
            let at_step = step_time(rank, *step, "begin_ns");
            assert!(changed_ns >= at_step, "GPU {gpu} changed before step {step} began");
        }
    }
    node.assert_only_locked(&[]);
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn what_the_daemon_measured_is_what_the_trainer_measured_itself() {
    let node = Node::start();
    let training = Training::start(&node, JOB, &Identity::trainer(), &[]);
    training.until_leased(&node);
    training.until_step(&node, 12);
    let swapped_at = training.take_up(&node, &TestPlan::new(STAGES, MICROBATCHES, |_, _| 1350));
    training.until_step(&node, swapped_at + 12);
    let windows = node.job(JOB).windows;
    assert_eq!(windows.len(), 2, "{windows:?}");
    let energy_j = |window: &Window| window.iteration_energy_j.unwrap();
    let report = training.stop();
    let iterations = report["iterations"].as_array().unwrap();
    let (before, after) = iterations.split_at(swapped_at as usize);
    for (window, own) in [(&windows[0], &before[1..]), (&windows[1], &after[1..])] {
        // It trained on after the daemon was asked.
        let own = &own[..own.len().min(window.steps as usize)];
        for (measured, key) in [(window.iteration_time_s, "time_s"), (energy_j(window), "energy_j")]
        {
            let sum: f64 = own.iter().map(|iteration| iteration[key].as_f64().unwrap()).sum();
            let mean = sum / own.len() as f64;
            assert!((measured / mean - 1.0).abs() < 0.05, "{key}: {measured} instead of {mean}");
        }
    }
    // Whatever else the machine does adds waiting to a step.
    let work_j = |window: &Window| {
        energy_j(window) - f64::from(STAGES) * WAITING_W * window.iteration_time_s
    };
    assert!(work_j(&windows[1]) < 0.95 * work_j(&windows[0]), "{windows:?}");
    assert!(windows[1].iteration_time_s > windows[0].iteration_time_s, "{windows:?}");
}

#[test]
fn a_rank_that_misbehaves_costs_its_own_steps_the_plan_and_nobody_a_step() {
    let node = Node::start();
    let plan = TestPlan::distinct(STAGES, MICROBATCHES, 600);
    let options = ["--omit-end", "20:1", "--wrong-order", "24:2", "--wrong-order", "28-:3"];
    let training = Training::start(&node, JOB, &Identity::trainer(), &options);
    training.until_leased(&node);
    let swapped_at = training.take_up(&node, &plan);
    assert!(swapped_at < 20, "the machine is too slow for this test");
    training.until_step(&node, 27);
    let mismatched = |rank: u32| node.rank(JOB, rank).mismatched_steps;
    assert_eq!([mismatched(0), mismatched(1), mismatched(2)], [0, 1, 1]);
    let suspended = node.until("the plan is suspended", || {
        node.job(JOB).plan.unwrap().suspended.ok_or_else(|| "it is not".to_owned())
    });
    assert!(suspended.starts_with("rank 3 did not follow it for 3 steps in a row"), "{suspended}");
    node.until_is("locks", &0, || {
        (0..STAGES as usize).filter(|gpu| node.machine.sm_lock(*gpu).is_some()).count()
    });
    let step = training.ranks(&node).iter().filter_map(|rank| rank.1).max().unwrap();
    training.until_step(&node, step + 2);
    assert!(node.status().gpus.iter().all(|gpu| gpu.requested_mhz.is_none()));
    training.stop();
    node.assert_only_locked(&[]);
}

#[test]
fn trainers_may_name_their_gpu_by_pci_bus_id_or_as_cuda_sees_it() {
    for how in ["pci", "cuda"] {
        let node = Node::start();
        let options = ["--gpu-name", how, "--gpus", "3,1,0,2"];
        let training = Training::start(&node, JOB, &Identity::trainer(), &options);
        training.until_leased(&node);
        for (rank, gpu) in [3, 1, 0, 2].into_iter().enumerate() {
            let status = node.rank(JOB, rank as u32);
            assert_eq!(status.gpu_uuid, node.machine.uuid(gpu), "rank {rank} by {how}");
        }
        training.stop();
        node.assert_only_locked(&[]);
    }
}

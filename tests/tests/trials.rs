//! Trials: a job runs something for some steps, and these are measured.

use std::time::Duration;

use pfo_protocol::{
    ClientMessage, ClockTable, Mhz, Pid, PlanStatus, Refusal, RefusalCode, Request, Response,
    SwapTarget, TrialLength, TrialRun,
};
use pfo_tests::{
    Client, Identity, MICROBATCHES, Node, STAGES, Setup, TestPlan, Training, assert_printed,
    control::job,
};

const JOB: &str = "job";

fn start() -> (Node, Training) {
    let node = Node::start();
    let training = Training::start(&node, JOB, &Identity::own(), &[]);
    training.until_leased(&node);
    training.until_step(&node, 1);
    (node, training)
}

fn plan(mhz: u32) -> TrialRun {
    let table = ClockTable::from(&TestPlan::new(STAGES, MICROBATCHES, |_, _| mhz));
    TrialRun::Plan { label: mhz.to_string(), table }
}

fn until_no_clock_is_locked(node: &Node) {
    node.until_is("locked GPUs", &0, || {
        (0..STAGES as usize).filter(|gpu| node.machine.sm_lock(*gpu).is_some()).count()
    });
}

#[test]
fn a_trial_measures_every_step_and_the_job_keeps_what_it_ran_if_asked_to() {
    let (node, training) = start();
    let mut client = node.agent_control();
    let slow = client.trial(JOB, plan(900), 3).unwrap();
    let fast = client.trial(JOB, plan(1740), 3).unwrap();
    for trial in [&slow, &fast] {
        assert_eq!((trial.steps.len(), trial.ranks.len()), (3, STAGES as usize));
        let steps_s: f64 = trial.steps.iter().map(|step| step.time_s).sum();
        let steps_j: f64 = trial.steps.iter().map(|step| step.energy_j.unwrap()).sum();
        let ranks_j: f64 = trial.ranks.iter().map(|rank| 3.0 * rank.energy_j.unwrap()).sum();
        assert!(steps_s > 0.0 && steps_j > 0.0, "{trial:?}");
        assert!((steps_j - ranks_j).abs() < 1e-6 * steps_j, "{trial:?}");
        assert!(trial.ranks.iter().all(|rank| rank.mismatched_steps == 0), "{trial:?}");
    }
    assert!(fast.first_step > slow.first_step + 2);
    let kept = client.end_trials(JOB, true).unwrap();
    assert_eq!(kept.unwrap().label, "1740");
    drop(client);
    training.until_step(&node, fast.first_step + 6);
    assert_eq!(node.job(JOB).plan.unwrap().label, "1740");
    // A rollback does not lead to a trial.
    assert_eq!(node.swap(JOB, SwapTarget::Previous).unwrap().plan, None);
    training.stop();
}

#[test]
fn a_uniform_clock_is_locked_on_every_gpu_until_the_connection_ends() {
    let (node, training) = start();
    let mut client = node.agent_control();
    let trial = client.trial(JOB, TrialRun::Uniform(Mhz(1005)), 2).unwrap();
    for gpu in 0..trial.ranks.len() {
        assert_eq!(node.machine.sm_lock(gpu), Some(1005));
    }
    let refusal = client.end_trials(JOB, true).unwrap_err();
    assert_printed!(refusal);
    drop(client);
    until_no_clock_is_locked(&node);
    assert_eq!(node.job(JOB).plan, None);
    training.stop();
}

#[test]
fn a_connection_that_ends_in_the_middle_of_a_trial_ends_the_trial() {
    let (node, training) = start();
    let mut client = node.control();
    let length = TrialLength { settling_steps: 1, steps: 50_000 };
    let trial = Request::Trial { job: job(JOB), run: plan(900), length, after: None };
    client.say(&ClientMessage::Request(trial));
    node.until_is("a GPU is locked", &Some(900), || node.machine.sm_lock(0));
    assert!(node.job(JOB).measured_by.is_some());
    drop(client);
    until_no_clock_is_locked(&node);
    node.until_is("who measures", &None, || node.job(JOB).measured_by);
    assert_eq!(node.job(JOB).plan, None);
    training.stop();
}

#[test]
fn a_hold_that_asks_for_nothing_ends_in_time() {
    let node = Node::start_with(&Setup { agent_silence_s: 1, ..Setup::without_agent() });
    let training = Training::start(&node, JOB, &Identity::own(), &[]);
    training.until_leased(&node);
    let mut hangs = node.control();
    let length = TrialLength { settling_steps: 1, steps: 50_000 };
    hangs.ask(Request::Trial { job: job(JOB), run: plan(900), length, after: None }).unwrap();
    until_no_clock_is_locked(&node);
    node.until_is("who measures", &None, || node.job(JOB).measured_by);
    drop(hangs);
    training.stop();
}

#[test]
fn a_job_held_for_measuring_is_changed_by_its_holder_only() {
    let (node, training) = start();
    let mut client = node.agent_control();
    client.trial(JOB, plan(900), 1).unwrap();
    let by = node.job(JOB).measured_by.unwrap();
    assert_eq!((by.uid, by.pid), (Identity::own().uid, Some(Pid(std::process::id()))));
    let swap = node.swap(JOB, SwapTarget::DefaultClocks).unwrap_err();
    let trial = node.agent_control().trial(JOB, TrialRun::DefaultClocks, 1).unwrap_err();
    assert_eq!([swap.code, trial.code], [RefusalCode::LimitReached; 2]);
    assert_printed!(swap, trial);
    client.end_trials(JOB, false).unwrap();
    node.until("the job is free", || {
        node.agent_control()
            .trial(JOB, TrialRun::DefaultClocks, 1)
            .map_err(|refusal| refusal.message)
    });
    node.until_is("who measures", &None, || node.job(JOB).measured_by);
    training.stop();
}

#[test]
fn a_clock_that_a_rank_may_not_have_is_not_tried_and_leaves_the_job_alone() {
    let (node, training) = start();
    let mut client = node.agent_control();
    let refusal = client.trial(JOB, TrialRun::Uniform(Mhz(1001)), 1).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::PlanDoesNotFit);
    assert_printed!(refusal);
    assert_eq!((node.job(JOB).plan, node.job(JOB).swap_at_step), (None, None));
    training.stop();
}

#[test]
fn after_a_kill_in_a_trial_the_next_daemon_sets_default_clocks() {
    let (mut node, training) = start();
    let mut client = node.agent_control();
    client.trial(JOB, plan(900), 1).unwrap();
    node.kill_daemon();
    node.start_daemon();
    training.until_leased(&node);
    let step = training.ranks(&node).iter().filter_map(|rank| rank.1).max().unwrap_or(0);
    training.until_step(&node, step + 2);
    assert_eq!(node.job(JOB).plan, None);
    until_no_clock_is_locked(&node);
    let count = || node.log().matches("restored the clocks").count();
    node.until_is("entries", &(STAGES as usize), count);
    let log = node.log();
    let mut restored = log.lines().filter(|line| line.contains("restored the clocks"));
    assert!(restored.all(|line| line.contains("old_mhz=900")), "{log}");
    training.stop();
}

#[test]
fn a_trial_of_a_job_whose_rank_goes_away_ends_and_says_so() {
    let (node, training) = start();
    let mut client = node.agent_control();
    client.be_patient_for(Duration::from_secs(60));
    let trial = std::thread::spawn(move || client.trial(JOB, TrialRun::DefaultClocks, 50_000));
    std::thread::sleep(Duration::from_millis(100));
    training.stop();
    let refusal = trial.join().unwrap().unwrap_err();
    assert!(refusal.message.contains("rank"), "{refusal}");
}

/// A job with two plans, the second of which runs.
fn with_plans() -> (Node, Training) {
    let (node, training) = start();
    for mhz in [900, 1005] {
        let TrialRun::Plan { label, table } = plan(mhz) else { unreachable!() };
        node.swap(JOB, SwapTarget::Table { label, table }).unwrap();
        node.until_is("the lock of a GPU", &Some(mhz), || node.machine.sm_lock(0));
    }
    (node, training)
}

/// Begins a long turn of a comparison with default clocks.
fn compare(node: &Node, after: u64) -> (Client, Result<Response, Refusal>) {
    let length = TrialLength { settling_steps: 1, steps: 50_000 };
    let (job, run) = (job(JOB), TrialRun::DefaultClocks);
    let mut client = node.control();
    let began = client.ask(Request::Trial { job, run, length, after: Some(after) });
    (client, began)
}

fn in_comparison(node: &Node) -> Client {
    let newest = newest_swap(node);
    let (client, began) = compare(node, newest);
    began.unwrap();
    until_no_clock_is_locked(node);
    client
}

fn newest_swap(node: &Node) -> u64 {
    match node.control_as_agent().ask(Request::Jobs) {
        Ok(Response::Jobs(jobs)) => jobs[0].swap,
        other => panic!("the answer is {other:?}"),
    }
}

fn label(plan: &Option<PlanStatus>) -> Option<&str> {
    plan.as_ref().map(|plan| plan.label.as_str())
}

#[test]
fn after_a_comparison_the_job_runs_its_plan_again_however_it_ended() {
    let (mut node, training) = with_plans();
    let before = node.job(JOB).plan;
    drop(in_comparison(&node));
    node.until_is("the lock of a GPU", &Some(1005), || node.machine.sm_lock(0));
    assert_eq!(node.job(JOB).plan, before);

    for end in [Node::kill_daemon, Node::stop_daemon] {
        let client = in_comparison(&node);
        end(&mut node);
        drop(client);
        node.start_daemon();
        training.until_leased(&node);
        node.until_is("the lock of a GPU", &Some(1005), || node.machine.sm_lock(0));
        assert_eq!(node.job(JOB).plan, before);
        training.until_step(&node, 1);
    }
    let back = node.swap(JOB, SwapTarget::Previous).unwrap();
    assert_eq!(label(&back.plan), Some("900"), "a comparison is nothing to roll back to");
    training.stop();
}

#[test]
fn a_comparison_gives_way_to_whatever_else_the_job_is_to_run() {
    let (node, training) = with_plans();
    let mut client = in_comparison(&node);
    let swapped = node.swap(JOB, SwapTarget::DefaultClocks).unwrap();
    assert_eq!(label(&swapped.plan), None);
    let kept = client.ask(Request::TrialsEnd { job: job(JOB), keep: true }).unwrap_err();
    assert_eq!(kept.message, "job job is not held for measuring any more");
    drop(client);
    training.until_step(&node, swapped.step + 2);
    assert_eq!((label(&node.job(JOB).plan), node.machine.sm_lock(0)), (None, None));

    let TrialRun::Plan { label: name, table } = plan(1005) else { unreachable!() };
    node.swap(JOB, SwapTarget::Table { label: name, table }).unwrap();
    node.until_is("the lock of a GPU", &Some(1005), || node.machine.sm_lock(0));
    let client = in_comparison(&node);
    // At default clocks until a step that is far would be a plan that is lost.
    let far = Request::PlanSwap {
        job: job(JOB),
        target: SwapTarget::Previous,
        at_step: Some(1_000_000),
        after: None,
        wait: false,
    };
    let refused = node.control().ask(far).unwrap_err();
    assert_printed!(refused);
    let mut holder = node.control();
    let length = TrialLength { settling_steps: 1, steps: 50_000 };
    let trial = Request::Trial { job: job(JOB), run: plan(900), length, after: None };
    holder.ask(trial).unwrap();
    drop(client);
    node.until_is("the lock of a GPU", &Some(900), || node.machine.sm_lock(0));
    let (_client, stale) = compare(&node, newest_swap(&node));
    assert_eq!(stale.unwrap_err().code, RefusalCode::LimitReached, "a comparison waits for trials");
    training.stop();
}

#[test]
fn a_comparison_of_what_the_job_runs_no_longer_does_not_begin() {
    let (node, training) = with_plans();
    let newest = newest_swap(&node);
    node.swap(JOB, SwapTarget::DefaultClocks).unwrap();
    let (client, stale) = compare(&node, newest);
    assert!(stale.unwrap_err().message.starts_with("the newest swap of the job is number"));
    drop(client);
    node.until_is("who measures", &None, || node.job(JOB).measured_by);
    assert_eq!(label(&node.job(JOB).plan), None);
    training.stop();
}

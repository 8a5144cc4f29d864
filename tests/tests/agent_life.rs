//! pfod without an agent, an agent without pfod, and what the death of either costs.

use std::time::Duration;

use nix::sys::signal::Signal;
use pfo_protocol::{
    AgentRequest, AgentResponse, ClientMessage, ClockTable, Mhz, Pid, RefusalCode, SwapTarget,
    SweepState, SweepStatus, TrialRun,
};
use pfo_tests::{
    Identity, MICROBATCHES, Node, Ran, STAGES, Setup, TestPlan, Training,
    control::{after_settling, job},
    process, wait,
};

const JOB: &str = "job";

/// Exit code of `pfoctl`: the daemon that it needs is not there.
const UNREACHABLE: Option<i32> = Some(3);

fn plan(mhz: u32) -> TestPlan {
    TestPlan::new(STAGES, MICROBATCHES, |_, _| mhz)
}

/// A training on a node with both daemons.
fn start() -> (Node, Training) {
    let node = Node::start();
    let training = train(&node);
    (node, training)
}

fn train(node: &Node) -> Training {
    let training = Training::start(node, JOB, &Identity::own(), &["--time-scale", "0.1"]);
    training.until_leased(node);
    training.until_step(node, 1);
    training
}

fn locks(node: &Node) -> Vec<Option<u32>> {
    (0..STAGES as usize).map(|gpu| node.machine.sm_lock(gpu)).collect()
}

fn until_locks_are(node: &Node, lock: Option<u32>) {
    node.until_is("the locks", &vec![lock; STAGES as usize], || locks(node));
}

/// Waits until the job has run some steps more.
fn until_later(node: &Node, training: &Training) {
    let step = training.ranks(node).iter().filter_map(|rank| rank.1).max().unwrap_or(0);
    training.until_step(node, step + 3);
}

/// Checks that the job is at default clocks, nobody holds it, and it trains on.
fn assert_left_alone(node: &Node, training: &Training) {
    until_locks_are(node, None);
    node.until_is("who measures", &None, || node.job(JOB).measured_by);
    assert_eq!(node.job(JOB).plan, None);
    until_later(node, training);
    assert_eq!(locks(node), vec![None; STAGES as usize]);
    assert!(node.job(JOB).ranks.iter().all(|rank| rank.mismatched_steps == 0));
}

fn sweep(node: &Node) -> Result<SweepStatus, String> {
    match node.agent_control().ask_agent(AgentRequest::Sweeps) {
        Ok(AgentResponse::Sweeps(sweeps)) => {
            let sweep = sweeps.into_iter().find(|sweep| sweep.job.as_str() == JOB);
            sweep.ok_or_else(|| "the agent knows no sweep".into())
        }
        other => Err(format!("{other:?}")),
    }
}

/// Waits until a sweep has measured a number of clocks.
fn until_measured(node: &Node, clocks: u32) {
    let measured = || match sweep(node)? {
        sweep if sweep.measured >= clocks => Ok(()),
        sweep => Err(format!("{sweep:?}")),
    };
    // The agent measures a clock again where its steps scatter, for much longer.
    wait::until_within(Duration::from_secs(180), measured).unwrap();
}

#[test]
fn without_an_agent_pfod_leases_swaps_and_reports() {
    let node = Node::start_with(&Setup::without_agent());
    let training = train(&node);
    node.take_up(JOB, &plan(900));
    until_locks_are(&node, Some(900));
    assert_eq!(node.swap(JOB, SwapTarget::Previous).unwrap().plan, None);
    until_locks_are(&node, None);
    node.until_so("status has the energy of steps", || {
        node.job(JOB).windows.iter().any(|window| window.iteration_energy_j.is_some())
    });
    training.stop();
    node.assert_only_locked(&[]);
}

#[test]
fn without_an_agent_pfoctl_does_what_needs_none_and_names_it_otherwise() {
    let node = Node::start_with(&Setup::without_agent());
    let training = train(&node);
    let user = Identity::own();
    let file = node.plan_file("plan.json", &plan(900).to_json());
    for command in [
        &["status"][..],
        &["gpus"],
        &["lease", "list"],
        &["policy", "explain"],
        &["plan", "load", JOB, &file],
        &["plan", "swap", JOB, &file, "--wait"],
        &["plan", "rollback", JOB, "--wait"],
    ] {
        let ran = node.pfoctl(&user, command);
        assert_eq!(ran.code, Some(0), "{command:?}: {ran:?}");
    }
    for command in [
        &["profile", "list"][..],
        &["profile", "start", JOB],
        &["profile", "samples", JOB],
        &["p2p", "show"],
        &["job", "straggler", JOB, "1.2"],
    ] {
        let ran = node.pfoctl(&user, command);
        assert_eq!(ran.code, UNREACHABLE, "{command:?}: {ran:?}");
        assert!(ran.stderr.contains("pfo-agent"), "{command:?}: {ran:?}");
    }
    training.stop();
}

#[test]
fn the_death_of_the_agent_ends_a_recording_at_default_clocks() {
    let (mut node, training) = start();
    let mut client = node.agent_control();
    let (run, length) = (TrialRun::Uniform(Mhz(900)), after_settling(50_000));
    let record = AgentRequest::Record { job: job(JOB), run, length, samples: false };
    client.say(&ClientMessage::AgentRequest(record));
    until_locks_are(&node, Some(900));
    assert!(node.job(JOB).measured_by.is_some());
    node.kill_agent();
    client.assert_ended();
    assert_left_alone(&node, &training);
    node.start_agent();
    let run = TrialRun::Uniform(Mhz(1200));
    node.agent_control().record(JOB, run, after_settling(1), false).unwrap();
    training.stop();
}

#[test]
fn pfoctl_waits_for_an_agent_that_died_in_its_recording() {
    let (mut node, training) = start();
    let samples = ["profile", "samples", JOB, "--mhz", "900", "--steps", "12"];
    let recording = node.begin_pfoctl(&Identity::own(), &samples);
    until_locks_are(&node, Some(900));
    node.kill_agent();
    assert_left_alone(&node, &training);
    node.start_agent();
    let rows = Ran::from(recording.wait_with_output().unwrap()).printed();
    assert!(rows.lines().count() > 12 * STAGES as usize, "{rows}");
    training.stop();
}

#[test]
fn a_recording_that_waits_for_an_agent_can_be_interrupted() {
    let (mut node, training) = start();
    let samples = ["profile", "samples", JOB, "--mhz", "900", "--steps", "50000"];
    let recording = node.begin_pfoctl(&Identity::own(), &samples);
    until_locks_are(&node, Some(900));
    node.kill_agent();
    assert_left_alone(&node, &training);
    process::send(Pid(recording.id()), Signal::SIGINT);
    let ran = Ran::from(recording.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{ran:?}");
    training.stop();
}

#[test]
fn the_death_of_pfod_ends_a_recording_at_default_clocks() {
    let (mut node, training) = start();
    let mut client = node.agent_control();
    let recording = std::thread::spawn(move || {
        client.record(JOB, TrialRun::Uniform(Mhz(900)), after_settling(50_000), false)
    });
    until_locks_are(&node, Some(900));
    node.kill_daemon();
    node.start_daemon();
    let refusal = recording.join().unwrap().unwrap_err();
    assert!(refusal.message.contains("pfod"), "{refusal}");
    training.until_leased(&node);
    assert_left_alone(&node, &training);
    node.until_agent_reaches_daemon();
    let run = TrialRun::Uniform(Mhz(1200));
    node.agent_control().record(JOB, run, after_settling(1), false).unwrap();
    training.stop();
}

#[test]
fn a_recording_ends_at_default_clocks_with_its_connection() {
    let (node, training) = start();
    let mut client = node.agent_control();
    client.record(JOB, TrialRun::Uniform(Mhz(900)), after_settling(1), false).unwrap();
    until_locks_are(&node, Some(900));
    let held = node.swap(JOB, SwapTarget::DefaultClocks).unwrap_err();
    assert_eq!(held.code, RefusalCode::LimitReached, "{held}");
    drop(client);
    assert_left_alone(&node, &training);
    training.stop();
}

#[test]
fn a_recorded_plan_that_is_kept_outlives_the_agent() {
    let (mut node, training) = start();
    let mut client = node.agent_control();
    let run = TrialRun::Plan { label: "kept".into(), table: ClockTable::from(&plan(900)) };
    client.record(JOB, run, after_settling(1), false).unwrap();
    client.ask_agent(AgentRequest::RecordingEnd { job: job(JOB), keep: true }).unwrap();
    node.kill_agent();
    until_later(&node, &training);
    assert_eq!(node.job(JOB).plan.unwrap().label, "kept");
    assert_eq!(locks(&node), vec![Some(900); STAGES as usize]);
    training.stop();
}

#[test]
fn the_death_of_the_agent_costs_no_rank_a_clock_or_a_step() {
    let mut node = Node::start();
    let plan = TestPlan::distinct(STAGES, MICROBATCHES, 600);
    let training = Training::start_on_plan(&node, JOB, &Identity::own(), &plan);
    let sessions = |node: &Node| -> Vec<_> {
        node.job(JOB).ranks.iter().map(|rank| (rank.session, rank.mismatched_steps)).collect()
    };
    let before = sessions(&node);
    for _ in 0..3 {
        node.kill_agent();
        until_later(&node, &training);
        node.start_agent();
        until_later(&node, &training);
    }
    assert_eq!(sessions(&node), before);
    assert!(node.job(JOB).plan.unwrap().suspended.is_none());
    let report = training.stop();
    for rank in report["ranks"].as_array().unwrap() {
        assert_eq!(rank["events"]["dropped"], 0, "{rank}");
    }
}

#[test]
fn a_sweep_continues_after_the_death_of_its_agent() {
    let (mut node, training) = start();
    let started = node.pfoctl(&Identity::own(), &["profile", "start", JOB, "--steps", "1"]);
    started.printed();
    until_measured(&node, 1);
    node.kill_agent();
    // Nobody measures now, so that the job runs without a lock until the agent is back.
    assert_left_alone(&node, &training);
    node.start_agent();
    let again = sweep(&node).unwrap();
    assert!(again.measured >= 1, "{again:?}");
    until_measured(&node, again.measured + 2);
    node.pfoctl(&Identity::own(), &["profile", "stop", JOB]).printed();
    assert_left_alone(&node, &training);
    training.stop();
}

#[test]
fn a_sweep_continues_after_the_death_of_both_daemons() {
    let (mut node, training) = start();
    node.pfoctl(&Identity::own(), &["profile", "start", JOB, "--steps", "1"]).printed();
    until_measured(&node, 1);
    node.kill_agent();
    node.kill_daemon();
    // The agent is back first, and waits.
    node.start_agent();
    let waiting =
        || matches!(sweep(&node), Ok(SweepStatus { state: SweepState::Waiting { .. }, .. }));
    node.until_so("the sweep waits for pfod", waiting);
    node.start_daemon();
    training.until_leased(&node);
    let measured = sweep(&node).unwrap().measured;
    until_measured(&node, measured + 2);
    node.pfoctl(&Identity::own(), &["profile", "stop", JOB]).printed();
    assert_left_alone(&node, &training);
    training.stop();
}

#[test]
fn an_agent_without_pfod_says_so_and_still_hands_out_what_it_keeps() {
    let mut node = Node::create(&Setup::default());
    node.start_agent();
    let problem = node.agent_status().pfod_problem.expect("there is no pfod");
    assert!(problem.contains("agent.sock"), "{problem}");
    let profiles = node.agent_control().ask_agent(AgentRequest::Profiles);
    assert_eq!(profiles, Ok(AgentResponse::Profiles(Vec::new())));
    let run = TrialRun::DefaultClocks;
    let mut client = node.agent_control();
    let refusal = client.record(JOB, run, after_settling(1), false).unwrap_err();
    assert!(refusal.message.contains("pfod"), "{refusal}");
    node.start_daemon();
    node.until_agent_reaches_daemon();
}

#[test]
fn an_agent_reaches_a_pfod_that_was_restarted() {
    let (mut node, training) = start();
    for _ in 0..3 {
        node.kill_daemon();
        node.until_so("the agent misses pfod", || node.agent_status().pfod_problem.is_some());
        node.start_daemon();
        node.until_agent_reaches_daemon();
    }
    training.until_leased(&node);
    node.until_so("the agent sees the job", || node.find_watched(JOB).is_some());
    training.stop();
}

#[test]
fn an_agent_that_is_asked_to_stop_ends_its_recordings_in_order() {
    let (mut node, training) = start();
    let mut client = node.agent_control();
    client.record(JOB, TrialRun::Uniform(Mhz(900)), after_settling(1), false).unwrap();
    until_locks_are(&node, Some(900));
    node.stop_agent();
    assert_left_alone(&node, &training);
    training.stop();
}

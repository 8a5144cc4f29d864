//! Sweeps: the agent measures a job at one clock after the other and stores a profile of it.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use pfo_protocol::{
    AgentRequest, AgentResponse, ClientMessage, JobSelector, Mhz, StoredProfile, SwapTarget,
    SweepEnd, SweepOrder, SweepSettings, SweepState, SweepStatus,
};
use pfo_tests::{
    Identity, Node, Ran, STAGES, Training, assert_printed, needs_root, programs::program,
    true_profile, wait,
};

const JOB: &str = "job";

/// What is promised of each row.
const TIME_LIMIT: f64 = 0.005;
const ENERGY_LIMIT: f64 = 0.02;

/// Instructions that are long beside a wait for the processor.
const TIME_SCALE: &str = "0.2";

/// Those of an A40 from 1740 MHz down.
const FEW_CLOCKS: [&str; 6] = ["--steps", "3", "--stride", "300", "--min-mhz", "1000"];

fn start(user: &Identity) -> (Node, Training) {
    let node = Node::start();
    let training = train(&node, user);
    (node, training)
}

fn train(node: &Node, user: &Identity) -> Training {
    train_with(node, user, "2")
}

fn train_with(node: &Node, user: &Identity, microbatches: &str) -> Training {
    let options = ["--time-scale", TIME_SCALE, "--microbatches", microbatches];
    let training = Training::start(node, JOB, user, &options);
    training.until_leased(node);
    training.until_step(node, 1);
    training
}

fn sweep(node: &Node) -> Option<SweepStatus> {
    match node.agent_control().ask_agent(AgentRequest::Sweeps) {
        Ok(AgentResponse::Sweeps(sweeps)) => {
            sweeps.into_iter().find(|sweep| sweep.job.as_str() == JOB)
        }
        other => panic!("the answer to a request for sweeps is {other:?}"),
    }
}

fn stored(node: &Node) -> Vec<StoredProfile> {
    match node.agent_control().ask_agent(AgentRequest::Profiles) {
        Ok(AgentResponse::Profiles(profiles)) => profiles,
        other => panic!("the answer to a request for profiles is {other:?}"),
    }
}

/// The agent measures a clock again where its steps scatter, for much longer.
fn until_measured(node: &Node, clocks: u32) {
    let limit = Duration::from_secs(180);
    let are_measured = || match sweep(node) {
        Some(sweep) if sweep.measured >= clocks => Ok(()),
        other => Err(format!("{other:?}")),
    };
    let measured = wait::until_within(limit, are_measured);
    assert_eq!(measured, Ok(()), "{clocks} clocks are never measured");
}

fn until_no_clock_is_locked(node: &Node) {
    node.until_is("locked GPUs", &0, || {
        (0..STAGES as usize).filter(|gpu| node.machine.sm_lock(*gpu).is_some()).count()
    });
}

#[derive(Debug)]
struct Row {
    time_s: f64,
    energy_j: f64,
    /// The standard error of the energy as a share of it, where the profile says it.
    energy_error: f64,
}

type Rows = BTreeMap<(String, String, String), Row>;

/// By stage, instruction and clock.
fn rows(csv: &str) -> Rows {
    let row = |line: &str| {
        let field: Vec<_> = line.split(',').map(str::to_owned).collect();
        let number = |column: usize| field.get(column).and_then(|text| text.parse::<f64>().ok());
        let (time_s, energy_j) = (number(3).unwrap(), number(4).unwrap());
        let (count, sd_j) = (number(5).unwrap_or(1.0), number(7).unwrap_or(0.0));
        let energy_error = sd_j / count.sqrt() / energy_j;
        let key = (field[0].clone(), field[1].clone(), field[2].clone());
        (key, Row { time_s, energy_j, energy_error })
    };
    csv.lines().skip(1).map(row).collect()
}

/// Checks that a profile has rows of so many clocks. An instruction whose energy no reading tells
/// beyond doubt has none, and how many those are is a matter of the machine.
fn assert_rows_of(clocks: usize, csv: &str) {
    let found: BTreeSet<_> = rows(csv).into_keys().map(|(_, _, mhz)| mhz).collect();
    assert!(found.len() >= clocks, "{csv}");
}

/// What a perfect measurement of the simulated training gives.
fn truth() -> Rows {
    rows(&true_profile(TIME_SCALE))
}

#[test]
fn a_sweep_outlives_a_killed_daemon_and_stores_a_profile() {
    let user = Identity::trainer();
    let (mut node, training) = start(&user);
    let arguments = [&["profile", "start", JOB, "--wait"], &FEW_CLOCKS[..]].concat();
    let waiting = node.begin_pfoctl(&user, &arguments);
    until_measured(&node, 1);
    node.kill_daemon();
    node.start_daemon();
    let again = sweep(&node).unwrap();
    assert!((1..3).contains(&again.measured), "{again:?}");
    // What it says meanwhile depends on when pfod is missed.
    let ended = Ran::from(waiting.wait_with_output().unwrap()).printed();
    until_no_clock_is_locked(&node);

    let csv = node.pfoctl(&user, &["profile", "export", JOB]).printed();
    assert_rows_of(3, &csv);
    let reuse = [&["profile", "start", JOB, "--reuse"], &FEW_CLOCKS[..]].concat();
    assert_printed!(ended, node.pfoctl(&user, &reuse));
    let profile = node.directory().join("swept.csv");
    std::fs::write(&profile, csv).unwrap();
    let frontier = node.directory().join("swept.frontier");
    let mut command = Command::new(program("pfoctl"));
    command.args(["plan", "optimize", "--p2p-power", "70", "--microbatches", "2"]);
    let _ = Ran::from(command.arg(profile).arg("-o").arg(frontier).output().unwrap()).printed();
    training.stop();
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn a_sweep_stores_what_the_gpus_take() {
    let user = Identity::trainer();
    let (node, training) = start(&user);
    node.pfoctl(&user, &[&["profile", "start", JOB, "--wait"], &FEW_CLOCKS[..]].concat()).printed();
    let csv = node.pfoctl(&user, &["profile", "export", JOB]).printed();
    let (measured, truth) = (rows(&csv), truth());
    assert_eq!(measured.len(), 3 * 2 * STAGES as usize, "{csv}");
    for (key, row) in &measured {
        let truth = &truth[key];
        let off = |measured: f64, truth: f64| (measured / truth - 1.0).abs();
        assert!(off(row.time_s, truth.time_s) <= TIME_LIMIT, "{key:?}: {row:?}, not {truth:?}");
        let limit = ENERGY_LIMIT + 3.0 * row.energy_error;
        assert!(off(row.energy_j, truth.energy_j) <= limit, "{key:?}: {row:?}, not {truth:?}");
    }
    training.stop();
}

#[test]
fn a_sweep_holds_its_job_until_it_is_paused_and_continues_there() {
    let user = Identity::trainer();
    let (node, training) = start(&user);
    node.pfoctl(&user, &["profile", "start", JOB, "--steps", "1"]).printed();
    until_measured(&node, 1);
    let twice = node.pfoctl(&user, &["profile", "start", JOB]);
    let held = node.swap(JOB, SwapTarget::DefaultClocks).unwrap_err();
    assert_printed!(twice, held);

    node.pfoctl(&user, &["profile", "pause", JOB]).printed();
    until_no_clock_is_locked(&node);
    node.until("the job is free", || {
        node.swap(JOB, SwapTarget::DefaultClocks).map_err(|r| r.message)
    });
    let paused = sweep(&node).unwrap();
    assert_eq!(paused.state, SweepState::Paused { why: None });
    let so_far = node.pfoctl(&user, &["profile", "export", JOB, "--so-far"]).printed();
    let mark = format!(",{} of {}", paused.measured, paused.clocks);
    assert!(so_far.lines().skip(1).all(|line| line.ends_with(&mark)), "{so_far}");
    assert_rows_of(paused.measured as usize, &so_far);

    node.pfoctl(&user, &["profile", "resume", JOB]).printed();
    until_measured(&node, paused.measured + 1);
    let mut kept = node.pfoctl(&user, &["profile", "stop", JOB, "--keep"]);
    kept.stdout = kept.stdout.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned();
    let over = node.pfoctl(&user, &["profile", "export", JOB, "--so-far"]);
    assert_printed!(kept, over);
    let csv = node.pfoctl(&user, &["profile", "export", JOB]).printed();
    assert_rows_of(2, &csv);
    until_no_clock_is_locked(&node);
    training.stop();
}

#[test]
fn a_sweep_pauses_when_the_last_connection_that_waits_for_it_ends() {
    let user = Identity::trainer();
    let (node, training) = start(&user);
    let settings = SweepSettings {
        steps: 2,
        settling_steps: 1,
        stride_mhz: Mhz(30),
        min_mhz: Mhz(0),
        max_slowdown: None,
    };
    let job = JobSelector { job: JOB.parse().unwrap(), uid: Some(user.uid) };
    let order = SweepOrder { job, model: None, settings, reuse: false };
    let attend = || {
        let mut client = node.agent_control();
        client.say(&ClientMessage::AgentRequest(AgentRequest::SweepAttend(order.clone())));
        client
    };
    let first = attend();
    until_measured(&node, 1);
    let second = attend();
    node.until_is("who waits", &2, || node.agent_log().matches("waits for the sweep").count());
    drop(first);
    let measured = sweep(&node).unwrap().measured;
    until_measured(&node, measured + 2);
    drop(second);
    node.until_so("the sweep is paused", || {
        let why = match sweep(&node).unwrap().state {
            SweepState::Paused { why } => why,
            _ => None,
        };
        why.is_some_and(|why| why.contains("nobody waits for it"))
    });
    until_no_clock_is_locked(&node);
    let measured = sweep(&node).unwrap().measured;
    node.pfoctl(&user, &["profile", "resume", JOB]).printed();
    until_measured(&node, measured + 1);
    node.pfoctl(&user, &["profile", "stop", JOB]).printed();
    training.stop();
}

#[test]
fn a_sweep_that_is_stopped_leaves_nothing_but_default_clocks() {
    let user = Identity::trainer();
    let (node, training) = start(&user);
    node.pfoctl(&user, &["profile", "start", JOB, "--steps", "1"]).printed();
    until_measured(&node, 1);
    assert_printed!(node.pfoctl(&user, &["profile", "stop", JOB]));
    assert_eq!(sweep(&node).unwrap().state, SweepState::Ended(SweepEnd::Stopped));
    until_no_clock_is_locked(&node);
    assert_eq!(stored(&node), []);
    training.stop();
}

#[test]
fn a_sweep_waits_for_ranks_that_are_restarted() {
    let user = Identity::trainer();
    let (node, training) = start(&user);
    node.pfoctl(&user, &[&["profile", "start", JOB], &FEW_CLOCKS[..]].concat()).printed();
    until_measured(&node, 1);
    training.stop();
    node.until_so("the sweep waits", || {
        matches!(sweep(&node).unwrap().state, SweepState::Waiting { .. })
    });
    let _training = train(&node, &user);
    until_measured(&node, 2);
}

/// What a tune asks for that needs a profile.
fn attend(user: &Identity) -> AgentRequest {
    let settings = SweepSettings {
        steps: 3,
        settling_steps: 1,
        stride_mhz: Mhz(300),
        min_mhz: Mhz(1000),
        max_slowdown: None,
    };
    let job = JobSelector { job: JOB.parse().unwrap(), uid: Some(user.uid) };
    AgentRequest::SweepAttend(SweepOrder { job, model: None, settings, reuse: true })
}

#[test]
fn a_sweep_of_a_job_that_came_back_with_other_microbatches_says_so_and_nobody_waits_for_it() {
    let user = Identity::trainer();
    let (node, training) = start(&user);
    node.pfoctl(&user, &[&["profile", "start", JOB], &FEW_CLOCKS[..]].concat()).printed();
    until_measured(&node, 1);
    training.stop();
    let _training = train_with(&node, &user, "3");
    let why = "job job runs as pp4-dp1-tp1-mb3 now, its sweep began as pp4-dp1-tp1-mb2; \
               `pfoctl profile stop job` ends the sweep";
    let waits = SweepState::Waiting { why: why.to_owned() };
    node.until_is("the sweep", &Some(waits), || sweep(&node).map(|sweep| sweep.state));
    let refused = node.agent_control().ask_agent(attend(&user)).unwrap_err();
    assert!(refused.message.contains("has an unfinished sweep as pp4-dp1-tp1-mb2"), "{refused}");
    assert_eq!(refused.remedy, "`pfoctl profile stop job` ends that sweep");
    let resumed = node.pfoctl(&user, &["profile", "resume", JOB]);
    assert_eq!(resumed.code, Some(4), "{resumed:?}");
    assert!(resumed.stderr.contains("has an unfinished sweep as pp4-dp1-tp1-mb2"), "{resumed:?}");
    node.pfoctl(&user, &["profile", "stop", JOB]).printed();
}

#[test]
fn a_tune_does_not_wait_for_what_a_former_one_had_swept_with_other_microbatches() {
    let user = Identity::trainer();
    let (node, training) = start(&user);
    let mut former = node.agent_control();
    former.say(&ClientMessage::AgentRequest(attend(&user)));
    until_measured(&node, 1);
    drop(former);
    training.stop();
    let _training = train_with(&node, &user, "3");
    match node.agent_control().ask_agent(attend(&user)) {
        Ok(AgentResponse::Sweep(swept)) => {
            assert_eq!(swept.profile.partition, "pp4-dp1-tp1-mb3");
            assert_eq!(swept.state, SweepState::Ended(SweepEnd::LowestClock));
        }
        other => panic!("the answer is {other:?}"),
    }
}

#[test]
fn a_paused_sweep_is_paused_still_after_a_restart() {
    let user = Identity::trainer();
    let (mut node, training) = start(&user);
    node.pfoctl(&user, &["profile", "start", JOB]).printed();
    node.pfoctl(&user, &["profile", "pause", JOB]).printed();
    node.kill_agent();
    node.start_agent();
    assert_eq!(sweep(&node).unwrap().state, SweepState::Paused { why: None });
    node.pfoctl(&user, &["profile", "stop", JOB]).printed();
    node.kill_agent();
    node.start_agent();
    assert_eq!(sweep(&node), None);
    training.stop();
}

#[test]
fn a_job_becomes_no_slower_than_it_may_but_for_the_clock_that_shows_it() {
    let user = Identity::trainer();
    let (node, training) = start(&user);
    // 340 MHz make a step five times as long.
    let options =
        ["--steps", "1", "--stride", "1400", "--max-slowdown", "100%", "--wait", "--json"];
    let ended = node.pfoctl(&user, &[&["profile", "start", JOB], &options[..]].concat()).json();
    assert_eq!(ended["state"]["ended"], "too_slow", "{ended}");
    assert_eq!(ended["measured"], 2, "{ended}");
    assert_eq!(stored(&node).len(), 1);
    training.stop();
}

#[test]
fn only_its_user_and_administrators_see_a_sweep_and_its_profile() {
    needs_root!();
    let user = Identity::trainer();
    let (node, training) = start(&user);
    // pfod asks the accounts of the node who is an administrator, and no test adds one.
    let (other, administrator) = (Identity::other_trainer(), Identity::own());
    let owner = user.uid.to_string();
    let start = ["profile", "start", JOB, "--steps", "1", "--stride", "900", "--model", "team/gpt"];
    let refused = node.pfoctl(&other, &[&start[..], &["--user", &owner]].concat());
    node.pfoctl(&administrator, &[&start[..], &["--wait"]].concat()).printed();

    let export = ["profile", "export", "team/gpt", "--user", &owner];
    for who in [&user, &administrator] {
        let csv = node.pfoctl(who, &export[..3]).printed();
        assert_rows_of(2, &csv);
    }
    let so_far = ["profile", "export", JOB, "--so-far", "--user", &owner];
    let stop = ["profile", "stop", JOB, "--user", &owner];
    assert_printed!(
        refused,
        node.pfoctl(&other, &export),
        node.pfoctl(&administrator, &["profile", "export", "team/gtp"]),
        node.pfoctl(&other, &["profile", "list"]),
        node.pfoctl(&other, &["profile", "status"]),
        node.pfoctl(&other, &so_far),
        node.pfoctl(&other, &stop),
    );
    training.stop();
}

//! The agent against a `pfod` that follows a script: what it does when `pfod` vanishes, when it is
//! killed itself, when its tap has losses, and when users are hostile.

mod agent;
mod pfod;

use std::fs;
use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use pfo_planner::{
    Frontier, Instruction, Measurement, Mhz, Options, Pipeline, Profile, Schedule, Spread, Stage,
    Watts,
};
use pfo_protocol::{
    AgentRequest, AgentResponse, P2pTarget, ProfileSelector, RefusalCode, SwapTarget, SweepEnd,
    SweepOrder, SweepSettings, SweepState, TrialLength, TrialRun, Uid,
};

use crate::agent::{Agent, Socket, own_uid, selector, wait_until};
use crate::pfod::{Trials, job};

fn record(uid: Option<u32>) -> AgentRequest {
    AgentRequest::Record {
        job: selector(uid),
        run: TrialRun::Uniform(Mhz(1200)),
        length: TrialLength { settling_steps: 1, steps: 12 },
        samples: true,
    }
}

fn order() -> SweepOrder {
    let settings = SweepSettings {
        steps: 12,
        settling_steps: 1,
        stride_mhz: Mhz(1),
        min_mhz: Mhz(0),
        max_slowdown: None,
    };
    SweepOrder { job: selector(None), model: None, settings, reuse: false }
}

/// A frontier of one stage and one microbatch at the clocks of the job.
fn frontier() -> Vec<u8> {
    let clocks = [(1410, 1.0, 300.0), (1200, 1.2, 250.0), (900, 1.5, 210.0)];
    let rows = [Instruction::Forward, Instruction::Backward].into_iter().flat_map(|instruction| {
        clocks.map(|(mhz, time_s, energy_j)| {
            (Stage(0), instruction, Measurement { frequency: Mhz(mhz), time_s, energy_j })
        })
    });
    let profile = Profile::from_measurements(rows).unwrap();
    let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, 1).unwrap();
    let options = Options { plans: 40, spread: Spread::Even };
    Frontier::optimize(&pipeline, Watts(10.0), options, &|_| {}).unwrap().to_bytes().unwrap()
}

fn load(frontier: Vec<u8>) -> AgentRequest {
    AgentRequest::FrontierLoad { job: selector(None), label: "f".into(), frontier }
}

fn straggler(slowdown: Option<f64>) -> AgentRequest {
    AgentRequest::Straggler { job: selector(None), slowdown, wait: false }
}

#[test]
fn a_trial_is_recorded_with_time_and_energy_of_its_instructions() {
    let (agent, pfod) = Agent::start();
    let mut client = agent.connect(Socket::Users);
    let AgentResponse::Recorded(recorded) = client.ask(record(None)).unwrap() else { panic!() };
    let [rank] = &recorded.ranks[..] else { panic!("{recorded:?}") };
    let [row] = &rank.rows[..] else { panic!("{rank:?}") };
    assert_eq!((row.count, row.mhz), (48, Some(Mhz(1200))));
    assert!((row.time_mean_s - 0.031).abs() < 1e-6, "{row:?}");
    assert!((row.energy_mean_j.unwrap() / (0.031 * 220.0) - 1.0).abs() < 0.01, "{row:?}");
    let samples = client.ask(AgentRequest::Samples(selector(None))).unwrap();
    let AgentResponse::Samples(Some(page)) = samples else { panic!("{samples:?}") };
    assert_eq!((page.samples.len(), page.dropped), (48, 0));
    let kept = client.ask(AgentRequest::P2pKeep(selector(None))).unwrap();
    let AgentResponse::P2pPowers(powers) = kept else { panic!("{kept:?}") };
    assert!((powers[0].power_w / 60.0 - 1.0).abs() < 0.05, "{powers:?}");
    let end = AgentRequest::RecordingEnd { job: selector(None), keep: false };
    assert!(client.ask(end.clone()).is_ok());
    assert_eq!(client.ask(end).unwrap_err().code, RefusalCode::UnknownJob);
    assert_eq!(pfod.state().asked_for, [(Uid(own_uid()), false)]);
}

#[test]
fn a_trial_whose_tap_lost_events_is_refused() {
    let (agent, pfod) = Agent::start();
    pfod.state().trials = Trials::LoseEvents;
    let mut client = agent.connect(Socket::Users);
    let refusal = client.ask(record(None)).unwrap_err();
    assert!(refusal.message.contains("rank 0 of job j of user"), "{refusal}");
    pfod.state().trials = Trials::Succeed;
    assert!(client.ask(record(None)).is_ok(), "the next one is none the worse for it");
}

#[test]
fn requests_are_refused_while_pfod_is_away_and_served_when_it_is_back() {
    let (mut agent, pfod) = Agent::create();
    agent.run();
    let refusal = agent.ask(record(None)).unwrap_err();
    assert!(refusal.message.starts_with("pfod does not answer"), "{refusal}");
    wait_until("status says so", || agent.status().pfod_problem.is_some());
    for _ in 0..2 {
        pfod.listen();
        wait_until("pfod is found", || agent.status().pfod_problem.is_none());
        assert!(agent.ask(record(None)).is_ok());
        pfod.vanish();
        wait_until("pfod is missed", || agent.status().pfod_problem.is_some());
    }
}

#[test]
fn a_sweep_continues_when_pfod_vanished_in_the_middle_of_a_trial() {
    let (agent, pfod) = Agent::start();
    pfod.state().trials = Trials::VanishAfter(1);
    assert!(agent.ask(AgentRequest::SweepStart(order())).is_ok());
    wait_until("the sweep waits for pfod", || match agent.sweep().state {
        SweepState::Waiting { why } => why.contains("pfod does not answer"),
        _ => false,
    });
    assert_eq!(agent.sweep().measured, 1);
    pfod.listen();
    let ended = SweepState::Ended(SweepEnd::LowestClock);
    wait_until("the sweep is over", || agent.sweep().state == ended);
    let clocks = [1410, 1200, 900].map(|mhz| Some(Mhz(mhz)));
    assert_eq!(pfod.state().measured, clocks, "nothing was measured twice");
    let selector =
        ProfileSelector { model: "j".parse().unwrap(), uid: None, gpus: None, partition: None };
    let profile = agent.ask(AgentRequest::ProfileRead(selector)).unwrap();
    let AgentResponse::Profile { csv, .. } = profile else { panic!("{profile:?}") };
    assert_eq!(Profile::from_csv(&csv[..]).unwrap().rows().count(), 3);
}

#[test]
fn a_sweep_continues_when_agent_and_pfod_have_died() {
    let (mut agent, pfod) = Agent::start();
    pfod.state().trials = Trials::VanishAfter(1);
    assert!(agent.ask(AgentRequest::SweepStart(order())).is_ok());
    wait_until("pfod has vanished", || !pfod.state().listens);
    agent.kill();
    pfod.listen();
    agent.run();
    let ended = SweepState::Ended(SweepEnd::LowestClock);
    wait_until("the sweep is over", || agent.sweep().state == ended);
    assert_eq!(pfod.state().measured.len(), 3);
}

#[test]
fn a_sweep_that_is_attended_pauses_when_its_attendant_leaves_and_continues_for_another() {
    let (agent, pfod) = Agent::start();
    pfod.state().trials = Trials::Stall;
    let mut client = agent.connect(Socket::Users);
    client.send(AgentRequest::SweepAttend(order()));
    wait_until("the sweep runs", || agent.sweeps().iter().any(|s| s.state == SweepState::Running));
    drop(client);
    let paused = |state: &SweepState| matches!(state, SweepState::Paused { why: Some(_) });
    wait_until("the sweep is paused", || paused(&agent.sweep().state));
    pfod.state().trials = Trials::Succeed;
    let AgentResponse::Sweep(sweep) = agent.ask(AgentRequest::SweepAttend(order())).unwrap() else {
        panic!()
    };
    assert_eq!(sweep.state, SweepState::Ended(SweepEnd::LowestClock));
}

#[test]
fn a_sweep_waits_for_a_step_of_every_rank_before_it_begins() {
    let (agent, pfod) = Agent::start();
    pfod.state().job.ranks[0].num_microbatches = None;
    let mut client = agent.connect(Socket::Users);
    let refusal = client.ask(AgentRequest::SweepAttend(order())).unwrap_err();
    assert!(refusal.message.contains("have not all run a step"), "{refusal}");
    pfod.state().job.ranks[0].num_microbatches = Some(1);
    let AgentResponse::Sweep(sweep) = client.ask(AgentRequest::SweepAttend(order())).unwrap()
    else {
        panic!()
    };
    assert_eq!(sweep.state, SweepState::Ended(SweepEnd::LowestClock));
}

#[test]
fn only_an_administrator_at_the_administrators_socket_uses_the_job_of_another() {
    let (agent, pfod) = Agent::start();
    let other = own_uid() + 4321;
    pfod.state().job = job(other);
    for uid in [None, Some(other)] {
        assert!(agent.ask(record(uid)).is_err());
    }
    let set = AgentRequest::P2pSet { target: P2pTarget::Model("A40".into()), power_w: Some(80.0) };
    assert_eq!(agent.ask(set.clone()).unwrap_err().code, RefusalCode::NotAuthorized);
    assert!(pfod.state().asked_for.is_empty(), "pfod was not even asked");
    let mut client = agent.connect(Socket::Admin);
    assert!(client.ask(record(Some(other))).is_ok());
    assert!(client.ask(set).is_ok());
    assert_eq!(pfod.state().asked_for, [(Uid(own_uid()), true)]);
}

/// Bytes that say that they are a frontier, and become as many as could be.
fn bomb() -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    let zeros = vec![0; 1 << 20];
    (0..1024).for_each(|_| gzip.write_all(&zeros).unwrap());
    let mut bytes = b"pfo-frontier\x05\x00".to_vec();
    bytes.extend(gzip.finish().unwrap());
    bytes
}

fn memory_kib(agent: &Agent, what: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_hostile_frontier_costs_its_request_and_nothing_else() {
    let (agent, _pfod) = Agent::start();
    let good = frontier();
    let mut wrong_orders = good.clone();
    wrong_orders.truncate(good.len() - 9);
    for bytes in [bomb(), wrong_orders, b"pfo-frontier".to_vec(), vec![0xff; 7 << 20]] {
        let refusal = agent.ask(load(bytes)).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::PlanDoesNotFit, "{refusal}");
    }
    assert!(memory_kib(&agent, "VmHWM") < 128 << 10, "{} KiB", memory_kib(&agent, "VmHWM"));
    assert!(agent.ask(load(good)).is_ok());
}

#[test]
fn a_job_returns_to_what_it_ran_before_a_straggler_though_the_agent_was_killed() {
    let (mut agent, pfod) = Agent::start();
    assert!(agent.ask(straggler(Some(1.2))).unwrap_err().remedy.contains("plan load"));
    agent.ask(load(frontier())).unwrap();
    agent.ask(straggler(Some(1.0))).unwrap();
    agent.ask(straggler(None)).unwrap();
    agent.ask(straggler(Some(1.5))).unwrap();
    agent.ask(straggler(Some(1.2))).unwrap();
    agent.kill();
    agent.run();
    let frontier = || agent.status().jobs.remove(0).frontier.unwrap();
    assert_eq!((frontier().straggler, frontier().fastest_s), (Some(1.2), 2.0));
    agent.ask(straggler(None)).unwrap();
    let labels: Vec<_> = pfod.state().swaps.iter().map(label).collect();
    assert_eq!(labels, ["f at 1x", "default", "f at 1.5x", "f at 1.2x", "default"]);
    assert!(agent.ask(straggler(None)).unwrap_err().message.contains("no straggler"));
}

#[test]
fn a_straggler_that_a_user_reports_waits_for_no_comparison() {
    let (agent, pfod) = Agent::start();
    agent.ask(load(frontier())).unwrap();
    agent.ask(straggler(Some(1.0))).unwrap();
    pfod.state().trials = Trials::Stall;
    agent.ask(AgentRequest::Guard { job: selector(None), max_slowdown: Some(2.0) }).unwrap();
    // The rank has come to the step at which the plan began.
    {
        let mut state = pfod.state();
        (state.job.ranks[0].swap, state.job.ranks[0].step) = (state.job.swap, Some(20));
    }
    pfod.notify();
    wait_until("the plan is compared", || pfod.state().stalled == 1);
    agent.ask(straggler(Some(1.5))).unwrap();
    let labels: Vec<_> = pfod.state().swaps.iter().map(label).collect();
    assert_eq!(labels, ["f at 1x", "f at 1.5x"]);
    pfod.state().trials = Trials::Succeed;
}

#[test]
fn a_swap_that_somebody_else_makes_ends_a_straggler() {
    let (agent, pfod) = Agent::start();
    agent.ask(load(frontier())).unwrap();
    agent.ask(straggler(Some(1.5))).unwrap();
    pfod.state().job.plan = None;
    pfod.notify();
    let frontier = || agent.status().jobs.remove(0).frontier.unwrap();
    wait_until("the straggler is forgotten", || frontier().straggler.is_none());
}

fn label(target: &SwapTarget) -> String {
    match target {
        SwapTarget::Table { label, .. } => label.clone(),
        _ => "default".into(),
    }
}

/// How often the threads of a process have waited for something.
fn wakeups(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().filter_map(Result::ok);
    let count = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    tasks.map(count).sum()
}

#[test]
fn an_agent_that_has_nothing_to_watch_does_not_wake_up() {
    let (agent, _pfod) = Agent::start();
    wait_until("pfod is found", || agent.status().pfod_problem.is_none());
    // The threads that wrote files go, and the connections of this test.
    sleep(Duration::from_secs(3));
    let before = wakeups(agent.pid());
    sleep(Duration::from_secs(3));
    assert_eq!(wakeups(agent.pid()), before);
    assert!(memory_kib(&agent, "VmRSS") < 64 << 10);
}

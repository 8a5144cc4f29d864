//! `pfoctl plan sweep` against daemons that measure as a test says.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::fake_daemon::{FakeDaemon, no_jobs};
use crate::pfoctl::Bench;
use crate::ran::Ran;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pfo_protocol::{
    AgentRequest, AgentResponse, DpRank, Instruction, InstructionSample, Rank, RecordedTrial,
    Request, Response, SamplePage, Stage, TpRank, TrialLength, TrialRank, TrialResult, TrialRun,
    TrialStep, Unit,
};

/// Two ranks, of which the second takes three quarters of the energy.
fn trial(length: TrialLength, time_s: f64, energy_j: f64) -> TrialResult {
    let rank = |rank: u16, share: f64| TrialRank {
        rank: Rank(rank.into()),
        stage: Stage(rank),
        dp_rank: DpRank(0),
        tp_rank: TpRank(0),
        gpu_uuid: format!("GPU-{rank}").parse().unwrap(),
        gpu_model: "A40".to_owned(),
        time_s,
        energy_j: Some(share * energy_j),
        mismatched_steps: 0,
    };
    TrialResult {
        plan: None,
        first_step: 7,
        steps: vec![TrialStep { time_s, energy_j: Some(energy_j) }; length.steps as usize],
        ranks: vec![rank(0, 0.25), rank(1, 0.75)],
    }
}

/// Three instructions of rank 1 in its first step, of one of which the energy is not known.
fn page() -> SamplePage {
    let sample = |instruction, counter_j| InstructionSample {
        step: 7,
        unit: Unit::new(instruction, 0),
        began_ns: 1_000_000_000,
        ended_ns: 1_500_000_000,
        mhz: None,
        observed: None,
        throttle_reasons: 0,
        counter_j,
        counter_refreshes: 9,
        left_out: None,
    };
    let samples = vec![
        sample(Instruction::Forward, Some(9.0)),
        sample(Instruction::Forward, Some(8.0)),
        sample(Instruction::Load, None),
    ];
    SamplePage { rank: Rank(1), samples, dropped: 0 }
}

/// 2 s and 1 kJ a step at default clocks, 10 % less energy on every plan.
fn measured(run: &TrialRun, length: TrialLength) -> TrialResult {
    match run {
        TrialRun::DefaultClocks => trial(length, 2.0, 1000.0),
        _ => trial(length, 2.02, 900.0),
    }
}

fn pfod(request: &Request) -> Response {
    match request {
        Request::Status => no_jobs(),
        other => panic!("asked for {other:?}"),
    }
}

fn agent(request: &AgentRequest) -> AgentResponse {
    match request {
        AgentRequest::Record { run, length, .. } => {
            let trial = measured(run, *length);
            AgentResponse::Recorded(Box::new(RecordedTrial { trial, ranks: Vec::new() }))
        }
        AgentRequest::RecordingEnd { keep: false, .. } => AgentResponse::RecordingEnded(None),
        other => panic!("asked the agent for {other:?}"),
    }
}

fn sweep(daemon: &FakeDaemon, bench: &Bench, arguments: &[&str]) -> Command {
    let command = if arguments.contains(&"--perseus") { "compare" } else { "plan" };
    let sweep = [command, "sweep", "j", "frontier", "--steps", "4", "-o", "measured.csv"];
    let mut command = daemon.pfoctl(&[&sweep[..], arguments].concat());
    command.current_dir(bench.path("."));
    command
}

#[test]
fn each_plan_is_measured_and_written_beside_what_it_predicted() {
    let bench = Bench::new();
    bench.frontier("frontier", 40);
    let pages = AtomicU32::new(0);
    let daemon = FakeDaemon::answering(pfod).with_agent(move |request| match request {
        AgentRequest::Samples(_) => {
            let one_a_trial = pages.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
            AgentResponse::Samples(one_a_trial.then(page))
        }
        other => agent(other),
    });
    let ran = Ran::of(&mut sweep(&daemon, &bench, &["--plans", "3", "--perseus", "dump"]));
    assert_printed!(ran, bench.text("measured.csv"));
    bench.done(&["plan", "plot", "frontier", "--over", "measured.csv", "-o", "picture.svg"]);

    let mut names: Vec<String> = fs::read_dir(bench.path("dump"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names.len(), 8, "{names:?}");
    let json = |name: &str| -> serde_json::Value {
        let text = fs::read_to_string(bench.path("dump").join(name)).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    // Two stages of six forwards and backwards each.
    assert_eq!(json("0.sched.json")[1]["power_states"], serde_json::json!([0]));
    assert_eq!(json("1.sched.json")[1]["power_states"].as_array().unwrap().len(), 12);
    let profile = &json("3.prof.json")[1];
    assert_eq!(profile["iter_energy"], serde_json::json!([675.0, 675.0, 675.0, 675.0]));
    assert_eq!(profile["iter_time"], serde_json::json!([2.02, 2.02, 2.02, 2.02]));
    let times = serde_json::json!({"forward": [[0.5, 0.5], [], [], []], "backward": [[], [], [], []],
                           "load": [[0.5], [], [], []]});
    assert_eq!(profile["time_breakdown"], times);
    let energies = serde_json::json!({"forward": [[9.0, 8.0], [], [], []], "backward": [[], [], [], []],
                           "load": [[], [], [], []]});
    assert_eq!(profile["energy_breakdown"], energies);
}

#[test]
fn ctrl_c_keeps_what_was_measured_and_says_where_the_job_is() {
    let bench = Bench::new();
    bench.frontier("frontier", 40);
    let (asked, was_asked) = channel();
    let trials = AtomicU32::new(0);
    let daemon = FakeDaemon::answering(pfod).with_agent(move |request| {
        if matches!(request, AgentRequest::Record { .. }) {
            asked.send(()).unwrap();
            if trials.fetch_add(1, Ordering::Relaxed) == 3 {
                // The third plan takes for ever.
                std::thread::sleep(Duration::from_secs(3600));
            }
        }
        agent(request)
    });
    let mut command = sweep(&daemon, &bench, &[]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    for _ in 0..4 {
        was_asked.recv_timeout(Duration::from_secs(60)).unwrap();
    }
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_printed!(Ran::ended(&command, child), bench.text("measured.csv"));
}

/// Sweeps three plans. From the second trial on, a counter is read too late this many times.
fn late_for(times: u32) -> (Ran, Bench, u32) {
    let bench = Bench::new();
    bench.frontier("frontier", 40);
    let trials = Arc::new(AtomicU32::new(0));
    let asked = trials.clone();
    let daemon = FakeDaemon::answering(pfod).with_agent(move |request| {
        let mut response = agent(request);
        if let AgentResponse::Recorded(recorded) = &mut response
            && (1..=times).contains(&asked.fetch_add(1, Ordering::Relaxed))
        {
            recorded.trial.steps[3].energy_j = None;
        }
        response
    });
    let ran = Ran::of(&mut sweep(&daemon, &bench, &["--plans", "3"]));
    (ran, bench, trials.load(Ordering::Relaxed))
}

#[test]
fn a_counter_that_is_read_late_twice_costs_two_trials_and_nothing_else() {
    let (ran, bench, trials) = late_for(2);
    assert_eq!(trials, 6);
    assert_printed!(ran, bench.text("measured.csv"));
}

#[test]
fn a_counter_that_is_never_read_in_time_ends_a_sweep() {
    let (ran, _bench, trials) = late_for(u32::MAX);
    assert_eq!(trials, 4);
    assert_printed!(ran);
}

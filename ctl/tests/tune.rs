//! `pfoctl tune` and `compare tune` as clients of an agent that answers as a test says.

use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pfo_protocol::{
    AgentRequest, AgentResponse, Refusal, RefusalCode, TuneEnd, TuneOrder, TuneReport, TuneState,
    TuneStatus, Uid,
};
use serde_json::{Value, json};

use crate::fake_daemon::{FakeDaemon, no_jobs};
use crate::pfoctl::Bench;
use crate::ran::Ran;

fn status(changed: u64, state: TuneState) -> TuneStatus {
    TuneStatus {
        job: "j".parse().unwrap(),
        uid: Uid(1000),
        changed,
        state,
        now: "proving pfo 1, round 2 of about 4".to_owned(),
        done: 0.25,
        remaining_s: Some(95.0),
        saving: Some(0.131),
        remarks: vec!["the profile: odd".to_owned()],
    }
}

fn tune(changed: u64, state: TuneState) -> AgentResponse {
    AgentResponse::Tune(Box::new(status(changed, state)))
}

/// What the agent has found: a plan that is kept, certainly or not, or none.
fn report(kept: bool, certain: bool) -> AgentResponse {
    let interval = |estimate: f64| json!({"estimate": estimate, "low": 0.12, "high": 0.14});
    let plan = json!({
        "number": 3, "label": "pfo 1", "predicted_time_s": null, "predicted_energy_j": null,
        "suspended": null, "power_limits_w": [],
    });
    let report = json!({
        "job": "j", "policy": "pfo", "max_slowdown": 0.005,
        "default_clocks": {"iteration_time_s": 3.0, "iteration_energy_j": 4000.0},
        "search_trials": 0,
        "tried": [{
            "plan": "pfo 1", "predicted_time_s": 3.01, "predicted_energy_j": 3500.0,
            "verdict": if kept { "kept" } else { "saves-nothing" }, "certain": certain, "rounds": 4,
            "saving": interval(0.131), "slowdown": interval(0.004),
        }],
        "kept": if kept { plan } else { Value::Null },
        "guard": null, "unguarded": null, "correctable": false, "method": "Intervals: 95 %.",
    });
    let (report, plan) = (report.to_string().into_bytes(), Some(b"{}".to_vec()));
    AgentResponse::TuneReport(Box::new(TuneReport { report, plan, frontier: None }))
}

/// An agent whose tune ends like this after a change.
fn agent_that_ends(end: TuneEnd) -> FakeDaemon {
    FakeDaemon::answering(|_| no_jobs()).with_agent(move |request| match request {
        AgentRequest::TuneStart(_) => tune(1, TuneState::Proof),
        AgentRequest::TuneWatch { seen: 0, .. } => tune(2, TuneState::Proof),
        AgentRequest::TuneWatch { seen: 2, .. } => tune(3, TuneState::Ended(end.clone())),
        AgentRequest::TuneRead(_) => {
            report(!matches!(end, TuneEnd::NothingKept), end == TuneEnd::Kept)
        }
        other => panic!("asked the agent for {other:?}"),
    })
}

#[test]
fn the_end_of_a_tune_is_printed_and_gives_the_exit_code() {
    for (end, code, words) in [
        (TuneEnd::Kept, 0, "Job j runs plan 3 pfo 1"),
        (TuneEnd::KeptUncertain, 6, "most likely within the allowed slowdown"),
        (TuneEnd::NothingKept, 5, "saves nothing"),
    ] {
        let ran = agent_that_ends(end.clone()).run(&["tune", "j"]);
        assert_eq!(ran.code, Some(code), "{end:?}: {ran:?}");
        assert!(ran.stdout.contains(words), "{end:?}: {ran:?}");
        assert!(ran.stderr.contains("pfoctl: the profile: odd"), "{ran:?}");
    }
}

#[test]
fn a_tune_that_failed_says_why_as_the_agent_does() {
    let refusal = Refusal::new(RefusalCode::UnknownJob, "user 1000 has no job j", "look");
    let ran = agent_that_ends(TuneEnd::Failed(refusal)).run(&["tune", "j"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(4), ""), "{ran:?}");
    assert!(ran.stderr.contains("has no job j") && ran.stderr.contains("look"), "{ran:?}");
    let ran = agent_that_ends(TuneEnd::Stopped).run(&["tune", "j"]);
    assert_eq!(ran.code, Some(130), "{ran:?}");
}

#[test]
fn the_report_is_printed_as_json_and_the_plan_that_was_kept_written() {
    let daemon = agent_that_ends(TuneEnd::Kept);
    let plan = daemon.file("plan.json", b"");
    let ran = daemon.run(&["tune", "j", "--json", "-o", &plan]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.json()["tried"][0]["verdict"], "kept");
    assert_eq!(std::fs::read(plan).unwrap(), b"{}");
}

/// The order that a command sends.
fn ordered(command: &[&str]) -> TuneOrder {
    let bench = Bench::new();
    let daemon = agent_that_ends(TuneEnd::Kept);
    let ran = Ran::of(daemon.pfoctl(command).current_dir(bench.path(".")));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    match daemon.agent_request() {
        AgentRequest::TuneStart(order) => order,
        other => panic!("pfoctl asked for {other:?}"),
    }
}

#[test]
fn options_and_terms_are_what_the_agent_tunes_with() {
    let order = ordered(&[
        "tune",
        "j",
        "--max-slowdown",
        "3%",
        "--steps",
        "9",
        "--no-guard",
        "--profile",
        "profile.csv",
        "--set",
        "rounds=8",
        "--set",
        "schedule=gpipe",
    ]);
    let terms: Value = serde_json::from_slice(&order.terms).unwrap();
    assert_eq!(terms["max_slowdown"], 0.03);
    assert_eq!((&terms["steps"], &terms["guard"]), (&9.into(), &false.into()));
    assert_eq!((&terms["rounds"], &terms["schedule"]), (&8.into(), &"gpipe".into()));
    assert_eq!(terms["profile_name"], "profile.csv");
    assert!(order.profile.unwrap().starts_with(b"stage,"));
}

#[test]
fn a_comparison_tunes_with_another_system_and_each_term_is_an_option() {
    let order = ordered(&[
        "compare",
        "tune",
        "j",
        "--policy",
        "zeus-per-stage",
        "--knob",
        "clock",
        "--p2p-power",
        "80,90",
        "--schedule",
        "gpipe",
        "--transfer-ms",
        "2",
        "--sweep-stride",
        "60",
        "--envpipe-transfer-ms",
        "0.7",
        "--combine",
        "slowest",
    ]);
    let terms: Value = serde_json::from_slice(&order.terms).unwrap();
    assert_eq!((&terms["policy"], &terms["knob"]), (&"zeus-per-stage".into(), &"clock".into()));
    assert_eq!(terms["p2p_power_w"], json!([80.0, 90.0]));
    assert_eq!((&terms["transfer_s"], &terms["sweep_stride"]), (&0.002.into(), &60.into()));
    assert_eq!(
        (&terms["combine"], &terms["envpipe_transfer_s"]),
        (&"slowest".into(), &7e-4.into())
    );
}

#[test]
fn a_term_that_there_is_not_is_refused_before_anything_is_asked() {
    let daemon = FakeDaemon::answering(|_| no_jobs()).with_agent(|other| panic!("{other:?}"));
    let ran = daemon.run(&["tune", "j", "--set", "round=8"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("unknown field `round`"), "{ran:?}");
}

#[test]
fn without_an_agent_nothing_is_tuned_and_the_remedy_is_to_start_it() {
    let ran = FakeDaemon::answering(|_| no_jobs()).run(&["tune", "j"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("cannot reach pfo-agent"), "{ran:?}");
    assert!(ran.stderr.contains("systemctl start pfo-agent"), "{ran:?}");
}

#[test]
fn a_tune_is_begun_without_waiting_watched_again_and_stopped() {
    let daemon = agent_that_ends(TuneEnd::Kept);
    let ran = daemon.run(&["tune", "j", "--detach"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for words in ["proving pfo 1, round 2 of about 4, 25 %, 1 min 35 s left", "--attach", "--stop"]
    {
        assert!(ran.stdout.contains(words), "no {words:?} in {ran:?}");
    }
    assert!(matches!(daemon.agent_request(), AgentRequest::TuneStart(_)));
    let ran = daemon.run(&["tune", "j", "--attach"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(matches!(daemon.agent_request(), AgentRequest::TuneWatch { seen: 0, .. }));

    let daemon = FakeDaemon::answering(|_| no_jobs()).with_agent(|request| match request {
        AgentRequest::TuneStop(_) => tune(9, TuneState::Ended(TuneEnd::Stopped)),
        other => panic!("asked the agent for {other:?}"),
    });
    let ran = daemon.run(&["tune", "j", "--stop"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("returns to default clocks"), "{ran:?}");
}

/// Sends a signal to a `pfoctl tune` that waits; how it ended, and whether it had the tune stopped.
fn signalled(signal: Signal) -> (Ran, bool) {
    static WATCHED: AtomicUsize = AtomicUsize::new(0);
    let before = WATCHED.load(SeqCst);
    let daemon = FakeDaemon::answering(|_| no_jobs()).with_agent(|request| match request {
        AgentRequest::TuneStart(_) => tune(1, TuneState::Proof),
        AgentRequest::TuneWatch { .. } => {
            WATCHED.fetch_add(1, SeqCst);
            std::thread::sleep(Duration::from_secs(3600));
            unreachable!()
        }
        AgentRequest::TuneStop(_) => tune(9, TuneState::Ended(TuneEnd::Stopped)),
        other => panic!("asked the agent for {other:?}"),
    });
    let mut command = daemon.pfoctl(&["tune", "j"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while WATCHED.load(SeqCst) == before {
        assert!(Instant::now() < deadline, "pfoctl never waits");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
    let ran = Ran::ended(&command, child);
    assert!(matches!(daemon.agent_request(), AgentRequest::TuneStart(_)));
    let is_stopped = ran.stderr.contains("stopped; job j returns to default clocks");
    (ran, is_stopped)
}

#[test]
fn without_a_terminal_sigint_and_sigterm_stop_a_tune_and_sighup_leaves_it_running() {
    for (signal, stops) in
        [(Signal::SIGINT, true), (Signal::SIGTERM, true), (Signal::SIGHUP, false)]
    {
        let (ran, is_stopped) = signalled(signal);
        assert_eq!((ran.code, is_stopped), (Some(130), stops), "{signal}: {ran:?}");
        assert_eq!(ran.stderr.contains("--attach"), !stops, "{signal}: {ran:?}");
    }
}

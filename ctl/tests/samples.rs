//! `pfoctl profile samples` against an agent that measures as a test says.

use std::sync::Mutex;

use crate::fake_daemon::FakeDaemon;
use pfo_protocol::{
    AgentRequest, AgentResponse, DpRank, Instruction, InstructionSample, Mhz, Rank, RecordedRank,
    RecordedTrial, Refusal, RefusalCode, SamplePage, Stage, TpRank, TrialRank, TrialResult,
    TrialRun, TrialStep, Unit,
};

/// A trial of one rank.
fn trial() -> AgentResponse {
    let rank = TrialRank {
        rank: Rank(3),
        stage: Stage(1),
        dp_rank: DpRank(0),
        tp_rank: TpRank(0),
        gpu_uuid: "GPU-1".parse().unwrap(),
        gpu_model: "A40".to_owned(),
        time_s: 1.0,
        energy_j: None,
        mismatched_steps: 0,
    };
    let recorded = RecordedRank {
        rank: Rank(3),
        readings: 100,
        stray_readings: 0,
        rows: Vec::new(),
        waits: Vec::new(),
    };
    let steps = vec![TrialStep { time_s: 1.0, energy_j: None }];
    let trial = TrialResult { plan: None, first_step: 7, steps, ranks: vec![rank] };
    AgentResponse::Recorded(Box::new(RecordedTrial { trial, ranks: vec![recorded] }))
}

fn page(microbatch: u32, dropped: u64) -> SamplePage {
    let sample = InstructionSample {
        step: 7,
        unit: Unit::new(Instruction::Forward, microbatch),
        began_ns: 1_000_000_000,
        ended_ns: 1_500_000_000,
        mhz: None,
        observed: Some((Mhz(1740), 1_200_000_000)),
        throttle_reasons: 0,
        counter_j: Some(70.0),
        counter_refreshes: 5,
        left_out: None,
    };
    SamplePage { rank: Rank(3), samples: vec![sample], dropped }
}

/// Two pages for each trial, and what was to be run.
fn measuring() -> (FakeDaemon, std::sync::mpsc::Receiver<TrialRun>) {
    let pages = Mutex::new(Vec::new());
    let (asked, ran) = std::sync::mpsc::channel();
    let pfod = FakeDaemon::answering(|request| panic!("asked pfod for {request:?}"));
    let daemon = pfod.with_agent(move |request| match request {
        AgentRequest::Record { run, samples: true, .. } => {
            asked.send(run.clone()).unwrap();
            *pages.lock().unwrap() = vec![page(1, 9), page(0, 9)];
            trial()
        }
        AgentRequest::Samples(_) => AgentResponse::Samples(pages.lock().unwrap().pop()),
        AgentRequest::RecordingEnd { keep: false, .. } => AgentResponse::RecordingEnded(None),
        other => panic!("asked for {other:?}"),
    });
    (daemon, ran)
}

#[test]
fn every_page_is_fetched_and_dropped_instructions_are_reported_once() {
    let (daemon, ran) = measuring();
    let answered = daemon.run(&["profile", "samples", "j"]);
    assert_printed!(answered);
    assert_eq!(ran.try_iter().collect::<Vec<_>>(), [TrialRun::DefaultClocks]);
}

#[test]
fn each_clock_is_measured_by_itself_and_printed_as_json() {
    let (daemon, ran) = measuring();
    let answered = daemon.run(&["profile", "samples", "j", "--mhz", "900,600", "--json"]);
    assert_printed!(answered);
    let clocks = [900, 600].map(|mhz| TrialRun::Uniform(Mhz(mhz)));
    assert_eq!(ran.try_iter().collect::<Vec<_>>(), clocks);
}

#[test]
fn a_refused_measurement_leaves_the_file_of_an_earlier_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("samples.csv");
    std::fs::write(&file, "of an earlier measurement").unwrap();
    let pfod = FakeDaemon::answering(|request| panic!("asked pfod for {request:?}"));
    let daemon = pfod.with_agent(|request| match request {
        AgentRequest::Record { .. } => {
            let refusal = Refusal::new(RefusalCode::UnknownJob, "there is no job nojob", "look");
            AgentResponse::Refused(refusal)
        }
        other => panic!("asked for {other:?}"),
    });
    let ran = daemon.run(&["profile", "samples", "nojob", "-o", file.to_str().unwrap()]);
    assert_ne!(ran.code, Some(0), "{ran:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "of an earlier measurement");
}

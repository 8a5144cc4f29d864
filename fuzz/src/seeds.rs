//! What the targets start from: of every kind at least one input that is right, made by the code
//! that writes it, so that it never grows old.

use pfo_planner::{Frontier, Options, Pipeline, Profile, Schedule, Spread, Watts};
use pfo_protocol::{
    ClientMessage, Closing, ClosingReason, DaemonMessage, Doubt, Event, GpuListing, GpuName,
    HEADER_BYTES, Hello, Instruction, InstructionSample, JobSelector, LeftOut, Mark, RankPosition,
    Refusal, RefusalCode, Request, Response, SamplePage, Status, SwapTarget, TrialLength,
    TrialRank, TrialResult, TrialRow, TrialRun, TrialStep, Unit, Unsupported, WaitPower,
};

/// A target, and what to start it from.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// Every target.
pub const TARGETS: [Target; 9] = [
    ("config", crate::config::config, config),
    ("events", crate::events::events, events),
    ("frame", crate::frame::frame, frame),
    ("frontier", crate::frontier::frontier, frontier),
    ("hello", crate::hello::hello, hello),
    ("ledger", crate::ledger::ledger, ledger),
    ("lowtime_plan", crate::lowtime_plan::lowtime_plan, lowtime_plan),
    ("plan", crate::plan::plan, plan),
    ("sweep", crate::sweep::sweep, sweep),
];

const PLAN: &[u8] = include_bytes!("../../planner/tests/golden/plan.json");
const PFOD_TOML: &str = include_str!("../../daemon/pfod.toml");
const STATUS: &[u8] = include_bytes!("../../ctl/tests/golden/status.json");
const LOWTIME: [&[u8]; 2] = [
    include_bytes!("../../planner/tests/golden/freqs_pipeline_clocks.py"),
    include_bytes!("../../planner/tests/golden/freqs_pipeline_named.py"),
];

const PROFILE: &str = "stage,instruction,frequency,time,energy
0,forward,900,0.10,10\n0,forward,1200,0.08,12\n0,backward,900,0.20,20\n0,backward,1200,0.16,24
1,forward,900,0.11,11\n1,forward,1200,0.09,13\n1,backward,900,0.22,22\n1,backward,1200,0.18,26\n";

const LEDGER: &str = r#"{"format": "pfo-ledger/1", "boot_id": "b", "entries": [{"gpu_uuid": "GPU-1",
    "sm": true, "memory": false, "restore_to_mhz": [210, 1200], "job": "j", "uid": 7, "pid": 8,
    "session": 9}]}"#;

const REVOCATIONS: &str = r#"{"format": "pfo-revocations/1", "boot_id": "b", "revocations": [{"uid": 7,
    "job": "j", "gpu_uuid": "GPU-1", "by_uid": 0, "since_unix_s": 1763740800, "processes": [
    {"pid": 1, "started": 0}, {"pid": 8, "started": 14808702}]}]}"#;

const JOB: &str = r#"{"format": "pfo-job/1", "boot_id": "b", "job": {"uid": 7, "job": "team/j",
    "pp_degree": 1, "left_ns": 12, "swaps": [{"number": 1, "step": 0, "complete": true,
    "plan": null}, {"number": 2, "step": 5, "complete": false, "plan": {"status": {"number": 1,
    "label": "p.json", "predicted_time_s": 1.5, "predicted_energy_j": null, "suspended": null},
    "num_microbatches": 1, "stages": [[["Forward", 0, 0, 900], ["Backward", 0, 0, 1200]]]}}]}}"#;

const SWEEP: &str = r#"{"format": "pfo-sweep/1", "sweep": {"uid": 7, "job": "team/j", "by_uid": 7,
    "model": "gpt", "settings": {"steps": 4, "settling_steps": 1, "stride_mhz": 1, "min_mhz": 0,
    "max_slowdown": 0.1}, "shape": {"pp_degree": 2, "dp_degree": 1, "tp_degree": 1,
    "num_microbatches": 8, "ranks": [[0, "NVIDIA A100"], [1, "NVIDIA A100"]]}, "clocks": [1400, 1390],
    "pause": {"why": "asked to"}, "attended": false, "default_step_s": 1.0, "measured": [{"mhz": 1400,
    "step_s": 1.0, "rows": [{"stage": 0, "rank": 0, "dp_rank": 0, "tp_rank": 0, "instruction":
    "Forward", "chunk": 0, "count": 4, "time_s": 0.5, "time_sd_s": 0.01, "energy_j": 9.0,
    "energy_sd_j": 0.5}]}], "repeats": 0}}"#;

fn hello_of(rank: u32, next_step: u64) -> Hello {
    Hello {
        client: "libpfo".into(),
        job: "j".parse().unwrap(),
        position: RankPosition {
            rank,
            pp_rank: rank,
            dp_rank: 0,
            tp_rank: 0,
            pp_degree: 2,
            dp_degree: 1,
            tp_degree: 1,
        },
        gpu: GpuName::Uuid("GPU-1".parse().unwrap()),
        num_microbatches: Some(2),
        next_step,
    }
}

fn hello() -> Vec<Vec<u8>> {
    let payload = |rank, step| {
        let frame = ClientMessage::Hello(hello_of(rank, step)).to_frame().unwrap();
        let payload = &frame[HEADER_BYTES..];
        [&[payload.len() as u8], payload].concat()
    };
    vec![payload(0, 0), [payload(0, 0), payload(1, 7), payload(1, 7), payload(0, 3)].concat()]
}

fn events() -> Vec<Vec<u8>> {
    let unit = |instruction, microbatch| Unit { instruction, chunk: 0, microbatch };
    let order = [
        unit(Instruction::Forward, 0),
        unit(Instruction::Forward, 1),
        unit(Instruction::Backward, 0),
        unit(Instruction::Backward, 1),
    ];
    let instructions = order
        .into_iter()
        .flat_map(|unit| [Mark::InstructionBegin(unit), Mark::InstructionEnd(unit)]);
    let step = |step| {
        let begin = std::iter::once(Mark::StepBegin(step));
        begin.chain(instructions.clone()).chain([Mark::StepEnd(step)]).collect::<Vec<_>>()
    };
    let frames = |marks: Vec<Mark>| {
        let event = |(number, mark)| Event { sequence: number, client_ns: number * 1000, mark };
        let events = (0..).zip(marks).map(event);
        events.flat_map(|event| ClientMessage::Event(event).to_frame().unwrap()).collect()
    };
    vec![frames(step(0)), frames([step(0), step(1)].concat())]
}

fn frame() -> Vec<Vec<u8>> {
    let job = || JobSelector { job: "j".parse().unwrap(), uid: Some(7) };
    let to_daemon = [
        ClientMessage::Hello(hello_of(0, 0)),
        ClientMessage::Goodbye,
        ClientMessage::Request(Request::Status),
        ClientMessage::Request(Request::ClocksReset {
            gpu: Some(GpuName::PciBusId("00000000:07:00.0".parse().unwrap())),
            all: true,
        }),
        ClientMessage::Request(Request::PlanLoad {
            job: job(),
            label: "p.json".into(),
            plan: PLAN.to_vec(),
        }),
        ClientMessage::Request(Request::PlanSwap {
            job: job(),
            target: SwapTarget::Previous,
            not_before: Some(9),
            wait: true,
        }),
        ClientMessage::Request(Request::Trial {
            job: job(),
            run: TrialRun::Plan { label: "p.json".into(), plan: PLAN.to_vec() },
            length: TrialLength { settling_steps: 1, steps: 10 },
            samples: true,
        }),
        ClientMessage::Request(Request::TrialsEnd { job: job(), keep: true }),
    ];
    let status: Status = serde_json::from_slice(STATUS).unwrap();
    let listing = GpuListing {
        uuid: "GPU-1".parse().unwrap(),
        pci_bus_id: "00000000:07:00.0".parse().unwrap(),
        model: "A100".into(),
    };
    let to_client = [
        DaemonMessage::Refusal(Refusal::new(RefusalCode::GpuHeld, "held", "wait")),
        DaemonMessage::Closing(Closing { reason: ClosingReason::Idle, message: "idle".into() }),
        DaemonMessage::Unsupported(Unsupported { oldest: 1, newest: 1 }),
        DaemonMessage::Response(Response::Gpus(vec![listing])),
        DaemonMessage::Response(Response::Status(Box::new(status))),
        DaemonMessage::Response(Response::Trial(Box::new(trial()))),
        DaemonMessage::Response(Response::TrialSamples(Some(samples()))),
    ];
    let to_daemon = to_daemon.iter().map(|message| message.to_frame().unwrap());
    let mut seeds: Vec<_> =
        to_daemon.chain(to_client.iter().map(|message| message.to_frame().unwrap())).collect();
    seeds.extend(events());
    seeds
}

/// A trial of a rank that ran one instruction, and was seen to wait.
fn trial() -> TrialResult {
    let row = TrialRow {
        instruction: Instruction::Forward,
        chunk: 0,
        mhz: Some(1410),
        observed_mhz: Some(1410.0),
        count: 9,
        time_mean_s: 0.5,
        time_sd_s: 0.01,
        time_median_s: 0.5,
        energy_mean_j: Some(90.0),
        energy_median_j: Some(90.0),
        energy_sd_j: Some(1.0),
        left_out: LeftOut { settling: 1, ..LeftOut::default() },
    };
    let wait = WaitPower { mhz: None, count: 3, time_s: 1.0, power_w: 80.0, power_error_w: 1.0 };
    let rank = TrialRank {
        time_s: 2.0,
        energy_j: Some(300.0),
        readings: 100,
        stray_readings: 1,
        rows: vec![row],
        waits: vec![wait],
        ..TrialRank::unmeasured(1, "GPU-1".parse().unwrap(), "A100".into())
    };
    let step = TrialStep { time_s: 2.0, energy_j: Some(300.0) };
    TrialResult { plan: None, first_step: 7, steps: vec![step], ranks: vec![rank] }
}

fn samples() -> SamplePage {
    let sample = InstructionSample {
        step: 7,
        unit: Unit { instruction: Instruction::Forward, chunk: 0, microbatch: 3 },
        began_ns: 1000,
        ended_ns: 2000,
        mhz: Some(1410),
        observed: Some((1410, 1500)),
        throttle_reasons: 4,
        counter_j: Some(0.5),
        counter_refreshes: 1,
        left_out: Some(Doubt::Throttled),
    };
    SamplePage { rank: 1, samples: vec![sample], dropped: 2 }
}

fn plan() -> Vec<Vec<u8>> {
    vec![PLAN.to_vec()]
}

fn lowtime_plan() -> Vec<Vec<u8>> {
    LOWTIME.map(<[u8]>::to_vec).into()
}

fn frontier() -> Vec<Vec<u8>> {
    let profile = Profile::from_csv(PROFILE.as_bytes()).unwrap();
    let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, 2).unwrap();
    let options = Options { plans: 4, spread: Spread::Even };
    let frontier = Frontier::optimize(&pipeline, Watts(50.0), options, &|_| {}).unwrap();
    vec![frontier.to_bytes().unwrap()]
}

fn config() -> Vec<Vec<u8>> {
    let in_force = |marks: &[&str]| -> Vec<u8> {
        let bare = |line: &str| {
            let mark = marks.iter().find_map(|mark| line.strip_prefix(mark));
            mark.unwrap_or(line).to_owned() + "\n"
        };
        PFOD_TOML.lines().map(bare).collect::<String>().into_bytes()
    };
    vec![PFOD_TOML.as_bytes().to_vec(), in_force(&["#: "]), in_force(&["#: ", "#> "])]
}

fn ledger() -> Vec<Vec<u8>> {
    [LEDGER, REVOCATIONS, JOB].map(|text| text.as_bytes().to_vec()).into()
}

fn sweep() -> Vec<Vec<u8>> {
    vec![SWEEP.as_bytes().to_vec()]
}

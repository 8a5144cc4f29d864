//! The frames of sessions: everything that a rank of release 0.1 and its daemon say to each other.
//!
//! The list begins with one whole session, in the order in which its frames cross the socket.

use pfo_protocol::{
    ClientMessage, Closing, ClosingReason, DaemonMessage, Event, GpuListing, Hello, Instruction,
    Mark, RankPosition, Refusal, RefusalCode, Unit, Unsupported, Welcome,
};

use crate::recorded_frames::values::{
    Chunk, DpRank, Microbatch, Rank, SessionId, Stage, TpRank, gpu_list, list_gpus,
};
use crate::recorded_frames::{Recorded, to_client, to_daemon};

/// The GPUs of the node.
const GPUS: [(&str, &str); 2] = [
    ("GPU-3f1c2a9e-6b0d-4c58-9a57-1d2e8f4b7c60", "00000000:07:00.0"),
    ("GPU-8d4e1b72-0c93-4f6a-b2e5-7a9c3d5f1e08", "00000000:0B:00.0"),
];

pub(crate) fn frames() -> Vec<Recorded> {
    let mut frames = one_session();
    frames.extend(other_hellos());
    frames.extend(every_instruction());
    frames.extend(extreme_events());
    frames.extend(every_refusal());
    frames.extend(every_closing());
    frames.extend(rest());
    frames
}

fn listing((uuid, pci_bus_id): (&str, &str)) -> GpuListing {
    GpuListing {
        uuid: uuid.parse().unwrap(),
        pci_bus_id: pci_bus_id.parse().unwrap(),
        model: "NVIDIA A100-SXM4-80GB".into(),
    }
}

fn hello() -> Hello {
    Hello {
        client: "libpfo 0.1.0".into(),
        job: "llama-7b".parse().unwrap(),
        position: RankPosition {
            rank: Rank(1),
            pp_rank: Stage(1),
            dp_rank: DpRank(0),
            tp_rank: TpRank(0),
            pp_degree: 2,
            dp_degree: 1,
            tp_degree: 1,
        },
        gpu: GPUS[1].0.parse().unwrap(),
        num_microbatches: Some(2),
        next_step: 0,
    }
}

/// The last of two stages, two microbatches, two steps.
fn one_session() -> Vec<Recorded> {
    let welcome = Welcome {
        daemon: "pfod 0.1.0".into(),
        session: SessionId(7),
        gpu_uuid: GPUS[1].0.parse().unwrap(),
        gpu_model: "NVIDIA A100-SXM4-80GB".into(),
        idle_limit_ms: 30_000,
    };
    let mut frames = vec![
        to_daemon("hello", "rank 1 asks for the lease of its GPU", ClientMessage::Hello(hello())),
        to_client("welcome", "the session holds the lease", DaemonMessage::Welcome(welcome)),
    ];
    let mut sequence = 0;
    for step in 0..2 {
        let mut marks = vec![Mark::StepBegin(step)];
        for microbatch in 0..2 {
            for instruction in [Instruction::Forward, Instruction::Backward] {
                let unit =
                    Unit { instruction, chunk: Chunk(0), microbatch: Microbatch(microbatch) };
                marks.extend([Mark::InstructionBegin(unit), Mark::InstructionEnd(unit)]);
            }
        }
        marks.push(Mark::StepEnd(step));
        for mark in marks {
            let event = Event { sequence, client_ns: 90_000_000_000 + sequence * 5_000_000, mark };
            let (name, meaning) = (format!("event-{sequence}"), in_words(mark));
            frames.push(to_daemon(&name, &meaning, ClientMessage::Event(event)));
            sequence += 1;
        }
    }
    frames.push(to_daemon("goodbye", "the rank ends its session", ClientMessage::Goodbye));
    frames
}

fn in_words(mark: Mark) -> String {
    match mark {
        Mark::StepBegin(step) => format!("step {step} begins"),
        Mark::StepEnd(step) => format!("step {step} ends"),
        Mark::InstructionBegin(unit) => format!("{unit} begins"),
        Mark::InstructionEnd(unit) => format!("{unit} ends"),
        Mark::Untimed(calls) => format!("{calls} calls could not be timed"),
    }
}

fn other_hellos() -> Vec<Recorded> {
    let by_bus_id = Hello {
        gpu: GPUS[0].1.parse().unwrap(),
        num_microbatches: None,
        next_step: 1200,
        ..hello()
    };
    let large = Hello {
        job: "42".parse().unwrap(),
        position: RankPosition {
            rank: Rank(197),
            pp_rank: Stage(3),
            dp_rank: DpRank(1),
            tp_rank: TpRank(5),
            pp_degree: 8,
            dp_degree: 4,
            tp_degree: 8,
        },
        ..hello()
    };
    vec![
        to_daemon(
            "hello-by-bus-id",
            "by PCI bus id, microbatches unknown, training continues at step 1200",
            ClientMessage::Hello(by_bus_id),
        ),
        to_daemon(
            "hello-3d",
            "rank 197 of 8 stages, 4 replicas and 8 shards",
            ClientMessage::Hello(large),
        ),
    ]
}

fn every_instruction() -> Vec<Recorded> {
    let begin = |instruction: Instruction| {
        let unit = Unit { instruction, chunk: Chunk(1), microbatch: Microbatch(3) };
        let event = Event { sequence: 1, client_ns: 1, mark: Mark::InstructionBegin(unit) };
        let (name, meaning) = (format!("begin-{}", instruction.name()), format!("{unit} begins"));
        to_daemon(&name, &meaning, ClientMessage::Event(event))
    };
    Instruction::ALL.into_iter().map(begin).collect()
}

fn extreme_events() -> Vec<Recorded> {
    let unit = Unit {
        instruction: Instruction::Other,
        chunk: Chunk(u16::MAX),
        microbatch: Microbatch(u32::MAX),
    };
    let frame = |name: &str, meaning: &str, mark| {
        let event = Event { sequence: u64::MAX, client_ns: u64::MAX, mark };
        to_daemon(name, meaning, ClientMessage::Event(event))
    };
    vec![
        frame("largest-step", "the largest step begins", Mark::StepBegin(u64::MAX)),
        frame("largest-unit", "the largest unit ends", Mark::InstructionEnd(unit)),
    ]
}

fn every_refusal() -> Vec<Recorded> {
    let codes = [
        RefusalCode::Malformed,
        RefusalCode::NotAuthorized,
        RefusalCode::UnknownGpu,
        RefusalCode::GpuHeld,
        RefusalCode::MigEnabled,
        RefusalCode::GpuUnavailable,
        RefusalCode::DriverUnavailable,
        RefusalCode::LimitReached,
        RefusalCode::RankConflict,
        RefusalCode::UnknownJob,
        RefusalCode::PlanDoesNotFit,
        RefusalCode::NoPlan,
        RefusalCode::ShuttingDown,
        RefusalCode::Internal,
        RefusalCode::NoProcess,
        RefusalCode::Revoked,
    ];
    let refusal = |(number, code): (usize, RefusalCode)| {
        let message = match code {
            RefusalCode::Malformed => "rank is 5, but there are only 4".to_owned(),
            _ => format!("{code:?}"),
        };
        let refusal = Refusal::new(code, message, if number % 2 == 0 { "" } else { "try again" });
        let (name, meaning) = (format!("refusal-{number}"), format!("refused: {code:?}"));
        to_client(&name, &meaning, DaemonMessage::Refusal(refusal))
    };
    codes.into_iter().enumerate().map(refusal).collect()
}

fn every_closing() -> Vec<Recorded> {
    let reasons = [
        ClosingReason::Idle,
        ClosingReason::ShuttingDown,
        ClosingReason::Malformed,
        ClosingReason::Revoked,
        ClosingReason::GpuLost,
    ];
    let closing = |(number, reason): (usize, ClosingReason)| {
        let closing = Closing { reason, message: format!("{reason:?}") };
        let (name, meaning) = (format!("closing-{number}"), format!("session ended: {reason:?}"));
        to_client(&name, &meaning, DaemonMessage::Closing(closing))
    };
    reasons.into_iter().enumerate().map(closing).collect()
}

fn rest() -> Vec<Recorded> {
    let no_driver = Refusal::new(
        RefusalCode::DriverUnavailable,
        "the NVIDIA driver is not loaded",
        "load it, or wait",
    );
    vec![
        to_daemon("list-gpus", "asks for the GPUs of the node", list_gpus()),
        to_client("gpu-list", "two GPUs", gpu_list(Ok(GPUS.map(listing).into()))),
        to_client("gpu-list-empty", "no GPU", gpu_list(Ok(Vec::new()))),
        to_client("gpu-list-refused", "no list, and why", gpu_list(Err(no_driver))),
        to_client(
            "unsupported",
            "the answer to a frame of another version",
            DaemonMessage::Unsupported(Unsupported { oldest: 1, newest: 1 }),
        ),
    ]
}

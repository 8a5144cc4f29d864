//! What may happen to a daemon next, decoded from the bytes of a fuzzer: mostly what a job would
//! do, with numbers and an order that none has.

use std::time::Duration;

use pfo_protocol::{
    Chunk, ClockTable, DpRank, GpuName, GpuUuid, Hello, Instruction, JobName, JobSelector,
    LeaseTarget, Mark, Mhz, Microbatch, PlannedUnit, Predicted, Rank, RankPosition, Request,
    SettleTimes, Stage, SwapTarget, TpRank, TrialLength, TrialRun, Uid, Unit, User,
};
use pfod::fuzzing::{Death, Who};

use super::machine::{GPUS, Machine};
use crate::input::Input;

/// Users who do anything; the second one within narrow terms.
pub(super) const USERS: [Uid; 2] = [Uid(2000), Uid(2001)];

/// The user whom nobody may hurt.
pub(super) const VICTIM: Uid = Uid(1000);

pub(super) const VICTIM_JOB: &str = "victim";

/// The connections that requests are made over.
pub(super) const LINES: [Who; 6] = [
    Who::User(USERS[0]),
    Who::User(USERS[1]),
    Who::AgentFor(USERS[0]),
    Who::Agent,
    Who::Administrator,
    Who::User(VICTIM),
];

/// The connections that are asked over, some more often. The last one is the victim's own.
const ASKED: [usize; 12] = [0, 0, 0, 0, 0, 1, 1, 2, 2, 3, ADMINISTRATOR, ADMINISTRATOR];

/// Means the victim no harm.
const ADMINISTRATOR: usize = 4;

/// Sessions of the users.
pub(super) const SEATS: u8 = 4;

/// A step of every rank, with clocks that the GPUs have.
pub(super) const STEP: [(Instruction, u32, u32); 4] = [
    (Instruction::Forward, 0, 900),
    (Instruction::Forward, 1, 915),
    (Instruction::Backward, 0, 1200),
    (Instruction::Backward, 1, 1215),
];

/// What happens next.
#[derive(Debug)]
pub(super) enum Operation {
    Hello {
        seat: usize,
        uid: Uid,
        gpu: usize,
        hello: Hello,
    },
    Steps {
        seat: usize,
        steps: Vec<Vec<Sent>>,
    },
    Events {
        seat: usize,
        events: Vec<Sent>,
    },
    Bytes {
        seat: usize,
        bytes: Vec<u8>,
    },
    HangUp {
        seat: usize,
    },
    FallSilent {
        seat: usize,
    },
    Ask {
        line: usize,
        request: Box<Request>,
    },
    Cut {
        line: usize,
    },
    Pass(Duration),
    /// Threads that read the GPUs have the time to do so.
    Measure,
    Fail,
    Recover,
    Next {
        death: Death,
        restore_first: bool,
        load: bool,
    },
}

/// An event, of which the sender counts what the fuzzer does not choose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// Events that are lost before it.
    pub(super) lost: u64,
    pub(super) client_ns: u64,
    pub(super) what: What,
}

/// What an event marks.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// The step after the last one begins.
    NextStep,
    /// The step ends.
    StepEnd,
    /// Anything.
    Mark(Mark),
}

impl Operation {
    /// The first user opens a session, so that there is something to ask about.
    pub(super) fn first() -> Self {
        let hello = hello(&mut Input::new(&[]), 1);
        Self::Hello { seat: 1, uid: USERS[0], gpu: 1, hello }
    }

    pub(super) fn read(input: &mut Input<'_>) -> Self {
        let seat = usize::from(1 + input.below(SEATS));
        match input.below(32) {
            0..4 => {
                let (uid, gpu) = (USERS[usize::from(input.once_in(4))], input.below(8));
                // Seldom the victim's.
                let gpu = if gpu == 0 { 0 } else { 1 + usize::from(gpu) % (GPUS - 1) };
                Self::Hello { seat, uid, gpu, hello: hello(input, gpu) }
            }
            4..11 => Self::Steps { seat, steps: input.list(4, step) },
            11..13 => Self::Events { seat, events: input.list(8, sent) },
            13 => {
                let length = usize::from(input.below(80));
                Self::Bytes { seat, bytes: input.bytes(length).to_vec() }
            }
            14 if input.once_in(3) => Self::FallSilent { seat },
            14 => Self::HangUp { seat },
            15..25 => {
                let line = input.pick(&ASKED);
                Self::Ask { line, request: Box::new(request(input, line == ADMINISTRATOR)) }
            }
            25 => Self::Cut { line: input.pick(&ASKED) },
            26 => Self::Pass(Duration::from_millis(1 << input.below(12))),
            27 if input.once_in(4) => Self::Measure,
            27 => Self::Pass(Duration::from_secs(1)),
            28 => Self::Fail,
            29 => Self::Recover,
            _ => Self::Next {
                death: input.pick(&[Death::Killed, Death::Stopped]),
                restore_first: input.once_in(2),
                load: input.once_in(16),
            },
        }
    }
}

fn job(input: &mut Input<'_>) -> JobName {
    let name = if input.once_in(8) { "team/b" } else { "a" };
    name.parse().expect("a name")
}

fn hello(input: &mut Input<'_>, gpu: usize) -> Hello {
    let pp_degree = 1 + u64::from(input.once_in(4));
    let rank = u64::from(input.below(2)).min(pp_degree - 1);
    let mut number = |right: u64| input.mostly(right) as u32;
    let position = RankPosition {
        rank: Rank(number(rank)),
        pp_rank: Stage(number(rank) as u16),
        dp_rank: DpRank(number(0)),
        tp_rank: TpRank(number(0)),
        pp_degree: number(pp_degree),
        dp_degree: number(1),
        tp_degree: number(1),
    };
    Hello {
        client: "fuzz".into(),
        job: job(input),
        position,
        gpu: GpuName::Uuid(Machine::get().uuids[gpu].clone()),
        num_microbatches: input.optional(|input| input.mostly(2) as u32),
        next_step: input.number(),
    }
}

/// The events of a step, mostly as planned.
fn step(input: &mut Input<'_>) -> Vec<Sent> {
    let sent = |input: &mut Input<'_>, what| Sent {
        lost: if input.once_in(32) { input.number() } else { 0 },
        client_ns: input.time_ns(),
        what,
    };
    let mut events = vec![sent(input, What::NextStep)];
    if input.once_in(8) {
        let mark = Mark::StepBegin(input.number());
        events[0].what = What::Mark(mark);
    }
    for (instruction, microbatch, _) in STEP {
        let unit = Unit::new(instruction, microbatch);
        let unit = if input.once_in(24) { self::unit(input) } else { unit };
        for mark in [Mark::InstructionBegin(unit), Mark::InstructionEnd(unit)] {
            if !input.once_in(32) {
                events.push(sent(input, What::Mark(mark)));
            }
        }
    }
    events.push(sent(input, What::StepEnd));
    events
}

/// Any event.
fn sent(input: &mut Input<'_>) -> Sent {
    let mark = match input.below(7) {
        0 | 1 => What::NextStep,
        2 => What::Mark(Mark::StepBegin(input.number())),
        3 => What::Mark(Mark::StepEnd(input.number())),
        4 => What::Mark(Mark::InstructionBegin(unit(input))),
        5 => What::Mark(Mark::InstructionEnd(unit(input))),
        _ => What::Mark(Mark::Untimed(input.number())),
    };
    let lost = if input.once_in(8) { input.number() } else { 0 };
    Sent { lost, client_ns: input.time_ns(), what: mark }
}

fn unit(input: &mut Input<'_>) -> Unit {
    let microbatch = Microbatch(input.short_number());
    let chunk = Chunk(if input.once_in(4) { input.number() as u16 } else { 0 });
    Unit { instruction: input.pick(&Instruction::ALL), chunk, microbatch }
}

/// A clock that the GPUs have or, seldom, any.
fn clock(input: &mut Input<'_>) -> Mhz {
    let right = 600 + 15 * u64::from(input.below(42));
    Mhz(input.mostly(right) as u32)
}

fn table(input: &mut Input<'_>) -> Option<ClockTable> {
    let stages = if input.once_in(12) { input.below(4) } else { 1 + u8::from(input.once_in(4)) };
    let mut stage = || -> Vec<PlannedUnit> {
        let length = if input.once_in(16) { usize::from(input.below(5)) } else { STEP.len() };
        let planned = STEP.iter().cycle().take(length).map(|(instruction, microbatch, _)| {
            let right = Unit::new(*instruction, *microbatch);
            let unit = if input.once_in(32) { unit(input) } else { right };
            PlannedUnit {
                unit,
                mhz: clock(input),
                wait_mhz: input.once_in(3).then(|| clock(input)),
            }
        });
        planned.collect()
    };
    let stages = (0..stages).map(|_| stage()).collect();
    let predicted = input.once_in(2);
    let predicted =
        predicted.then(|| Predicted { time_s: input.figure(), energy_j: input.figure() });
    ClockTable::new(input.mostly(2) as u32, predicted, stages).ok()
}

fn label(input: &mut Input<'_>) -> String {
    input.pick(&["p.json", "", "späte Läufe (β) at 1.2", "a\u{202e}b", "0"]).into()
}

fn selector(input: &mut Input<'_>, harmless: bool) -> JobSelector {
    let names_victim = !harmless && input.once_in(16);
    let job = if names_victim { VICTIM_JOB.parse().expect("a name") } else { job(input) };
    let uid = match input.below(16) {
        0 => Some(USERS[0]),
        1 => Some(USERS[1]),
        2 if !harmless => Some(VICTIM),
        3 if !harmless => Some(Uid(input.short_number())),
        _ => None,
    };
    JobSelector { job, uid }
}

fn gpu_uuid(input: &mut Input<'_>, harmless: bool) -> GpuUuid {
    let gpu = usize::from(input.below(GPUS as u8)).max(harmless.into());
    Machine::get().uuids[gpu].clone()
}

fn gpu(input: &mut Input<'_>, harmless: bool) -> GpuName {
    GpuName::Uuid(gpu_uuid(input, harmless))
}

fn lease(input: &mut Input<'_>, harmless: bool) -> LeaseTarget {
    if input.once_in(2) {
        LeaseTarget::Gpu(gpu(input, harmless))
    } else {
        LeaseTarget::Job(selector(input, harmless))
    }
}

fn settle_times(input: &mut Input<'_>, harmless: bool) -> Request {
    let times = SettleTimes::always(input.mostly(15_000_000));
    Request::SettleTimes { gpu: gpu_uuid(input, harmless), times }
}

fn power_cap(input: &mut Input<'_>, harmless: bool) -> Request {
    let limit_w = (!input.once_in(4)).then(|| input.mostly(200) as u32);
    Request::PowerCap { gpu: gpu_uuid(input, harmless), limit_w }
}

fn grant(input: &mut Input<'_>, harmless: bool) -> Request {
    let gpus = vec![gpu(input, harmless)];
    if input.once_in(2) {
        return Request::GrantRevoke { uid: None, gpus };
    }
    let (uid, until_unix_s) = (Uid(input.short_number()), input.optional(Input::number));
    Request::Grant { uid, gpus, until_unix_s }
}

fn about_plan(input: &mut Input<'_>, job: JobSelector) -> Request {
    let Some(table) = table(input) else { return Request::PlanRead(job) };
    let label = label(input);
    if input.once_in(4) {
        return Request::PlanCheck { job, label, table };
    }
    Request::PlanLoad { job, label, table }
}

fn swap(input: &mut Input<'_>, job: JobSelector) -> Request {
    let target = target(input);
    let at_step = if input.once_in(3) { Some(input.number()) } else { None };
    let wait = input.once_in(4);
    match input.once_in(4) {
        true => Request::PlanSwapHere { job, target, at_step, wait },
        false => Request::PlanSwap { job, target, at_step, after: None, wait },
    }
}

/// A request; a harmless one does not mean the victim.
fn request(input: &mut Input<'_>, harmless: bool) -> Request {
    let job = selector(input, harmless);
    match input.below(32) {
        0..4 => about_plan(input, job),
        4..13 => swap(input, job),
        13..19 => {
            let run = match input.below(6) {
                0 => TrialRun::DefaultClocks,
                4 => TrialRun::FreeMemory,
                1 => TrialRun::Uniform(clock(input)),
                2 => TrialRun::Replicas(input.list(2, clock)),
                3 => TrialRun::PowerLimits {
                    label: label(input),
                    limits_w: input.list(2, |input| input.mostly(200) as u32),
                },
                _ => table(input).map_or(TrialRun::DefaultClocks, |table| TrialRun::Plan {
                    label: label(input),
                    table,
                }),
            };
            let settling_steps = 1 + u64::from(input.below(4));
            let (settling_steps, steps) = (input.mostly(settling_steps), input.mostly(1));
            let (settling_steps, steps) = (settling_steps as u32, steps as u32);
            let length = TrialLength { settling_steps, steps };
            let after = input.once_in(3).then(|| input.mostly(1));
            Request::Trial { job, run, length, after }
        }
        19..22 => Request::TrialsEnd { job, keep: input.once_in(2) },
        22 | 23 => Request::Tap { job, counters: !input.once_in(3) },
        24 => match input.below(4) {
            0 | 1 => grant(input, harmless),
            _ => Request::Status,
        },
        25 => match input.below(6) {
            0 => Request::Leases,
            1 => Request::Jobs,
            2 => Request::Gpus,
            3 => settle_times(input, harmless),
            4 => power_cap(input, harmless),
            _ => Request::WatchJobs,
        },
        26 => Request::SmClocks(gpu(input, false)),
        27 => Request::PowerLimits(gpu(input, false)),
        28 => Request::LeaseRevoke(lease(input, harmless)),
        29 => Request::LeaseAllow(lease(input, harmless)),
        30 if harmless && input.once_in(4) => Request::Reload,
        30 => {
            let (uid, groups) = (Uid(input.short_number()), Vec::new());
            let who = input.optional(|_| User { uid, groups, cgroup: None });
            Request::PolicyExplain { who, gpu: input.optional(|input| gpu(input, false)) }
        }
        31 if input.once_in(4) => Request::LedgerAcknowledge,
        _ => {
            let gpu = input.optional(|input| gpu(input, false));
            Request::ClocksReset { gpu, all: input.once_in(2) }
        }
    }
}

fn target(input: &mut Input<'_>) -> SwapTarget {
    match input.below(8) {
        0 => SwapTarget::Loaded,
        1 => SwapTarget::Previous,
        2 => SwapTarget::DefaultClocks,
        3 => SwapTarget::Replicas(input.list(2, clock)),
        4 => SwapTarget::PowerLimits {
            label: label(input),
            limits_w: input.list(2, |input| input.mostly(200) as u32),
        },
        _ => table(input)
            .map_or(SwapTarget::Previous, |table| SwapTarget::Table { label: label(input), table }),
    }
}

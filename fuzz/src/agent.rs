//! What the agent makes of a hostile job: a frontier with any figures, what its ranks report in any
//! order and with any times, stragglers, sweeps of a job of any shape.

use std::io::{Read, Write};
use std::sync::OnceLock;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use pfo_agent::fuzzing::{Watch, sweep_of};
use pfo_protocol::{
    Chunk, CounterReading, DaemonMessage, DpRank, Frame, Instruction, JobView, Mhz, Microbatch,
    PlanStatus, Rank, RankPosition, RankView, RankWindow, Response, SessionId, SettleTimes, Stage,
    SweepSettings, TapBatch, TapRecord, TappedRank, ThrottledNs, TpRank, TrialRank, TrialResult,
    TrialStep, Uid, Unit,
};

use crate::input::Input;
use crate::seeds;

/// Bytes of a frontier before those that are compressed.
const HEAD_BYTES: usize = 14;

/// The clocks of the frontier.
const CLOCKS: [Mhz; 2] = [Mhz(900), Mhz(1200)];

const RANKS: u8 = 2;

/// The target.
pub fn agent(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let ranks = tapped(&mut input);
    match input.below(4) {
        0 => sweep(&mut input, &ranks),
        _ => watch(&mut input, &ranks),
    }
}

fn watch(input: &mut Input<'_>, ranks: &[TappedRank]) {
    let Some(mut watch) = Watch::of(&frontier(input), ranks) else { return };
    let mut step = 0;
    while !input.is_empty() {
        step = step.max(input.mostly(step + 4));
        let Some(job) = decoded_job(job(input, step)) else { continue };
        let batches = input.list(3, |input| batch(input, step));
        watch.look(&job, &decoded(batches), input.figure());
        step = step.min(u64::MAX - 8);
    }
}

fn sweep(input: &mut Input<'_>, ranks: &[TappedRank]) {
    let settings = SweepSettings {
        steps: input.mostly(1).clamp(1, 10_000) as u32,
        settling_steps: input.mostly(1).clamp(1, 10_000) as u32,
        stride_mhz: Mhz(input.mostly(0).min(10_000) as u32),
        min_mhz: Mhz(input.mostly(0).min(10_000) as u32),
        max_slowdown: input.optional(|input| input.figure().clamp(0.0, 100.0)),
    };
    let Some(job) = decoded_job(job(input, 0)) else { return };
    let mut trials = *input;
    sweep_of(
        &job,
        ranks,
        settings,
        std::iter::from_fn(move || {
            (!trials.is_empty()).then(|| {
                let first_step = trials.mostly(4);
                let batches = (0..RANKS).map(|rank| trial_batch(&mut trials, rank, first_step));
                let batches = batches.collect();
                (trial(&mut trials, first_step), decoded(batches))
            })
        }),
    );
}

/// The frontier of the seeds, with a few of its numbers replaced.
fn frontier(input: &mut Input<'_>) -> Vec<u8> {
    static SEED: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    let (head, content) = SEED.get_or_init(|| {
        let seed = seeds::frontier().remove(0);
        let (head, compressed) = seed.split_at(HEAD_BYTES);
        let mut content = Vec::new();
        GzDecoder::new(compressed).read_to_end(&mut content).expect("a frontier");
        (head.to_vec(), content)
    });
    let mut content = content.clone();
    let figures = figures_of(&content);
    for _ in 0..input.below(4) {
        let any = usize::from(input.byte()) % (content.len() - 8);
        let at = if input.once_in(4) || figures.is_empty() { any } else { input.pick(&figures) };
        content[at..at + 8].copy_from_slice(&input.figure().to_le_bytes());
    }
    let mut file = GzEncoder::new(head.clone(), Compression::none());
    file.write_all(&content).expect("a frontier");
    file.finish().expect("a frontier")
}

/// Where a clock of the profile is followed by its time, and that by its energy.
fn figures_of(content: &[u8]) -> Vec<usize> {
    let is_clock =
        |at: &usize| CLOCKS.iter().any(|mhz| content[*at..*at + 4] == mhz.0.to_le_bytes());
    let clocks = (0..content.len().saturating_sub(20)).filter(is_clock);
    clocks.flat_map(|at| [at + 4, at + 12]).collect()
}

fn session(rank: u8) -> SessionId {
    SessionId(u64::from(rank))
}

fn tapped(input: &mut Input<'_>) -> Vec<TappedRank> {
    let ranks = (0..RANKS).map(|rank| TappedRank {
        rank: Rank(rank.into()),
        session: session(rank),
        gpu_uuid: "GPU-1".parse().expect("a name"),
        sm_clocks: CLOCKS.to_vec(),
        settle: SettleTimes::always(input.mostly(15_000_000)),
    });
    ranks.collect()
}

fn position(input: &mut Input<'_>, rank: u8) -> RankPosition {
    let mut number = |right: u8| input.mostly(right.into()) as u32;
    RankPosition {
        rank: Rank(rank.into()),
        pp_rank: Stage(number(rank) as u16),
        dp_rank: DpRank(number(0)),
        tp_rank: TpRank(number(0)),
        pp_degree: number(RANKS),
        dp_degree: number(1),
        tp_degree: number(1),
    }
}

fn job(input: &mut Input<'_>, step: u64) -> JobView {
    let swap = input.mostly(1);
    let rank = |input: &mut Input<'_>, rank| RankView {
        position: position(input, rank),
        session: session(rank),
        run: None,
        gpu_uuid: "GPU-1".parse().expect("a name"),
        gpu_model: "NVIDIA A40".into(),
        sm_clocks: CLOCKS.iter().map(|mhz| Mhz(input.mostly(mhz.0.into()) as u32)).collect(),
        counts_energy: !input.once_in(16),
        num_microbatches: Some(input.mostly(2) as u32),
        swap,
        step: Some(step),
        window: input.optional(|input| RankWindow {
            steps: input.mostly(step),
            time_s: input.figure(),
            energy_j: input.optional(Input::figure),
        }),
        meter: None,
        problem: None,
    };
    let ranks = (0..RANKS).map(|number| rank(input, number)).collect();
    let plan = PlanStatus {
        number: 1,
        label: "p".into(),
        predicted_time_s: Some(input.figure()),
        predicted_energy_j: Some(input.figure()),
        suspended: None,
        power_limits_w: Vec::new(),
    };
    JobView {
        job: "j".parse().expect("a name"),
        uid: Uid(7),
        pp_degree: input.mostly(RANKS.into()) as u32,
        plan: Some(plan),
        swap,
        measured_by: None,
        ranks,
    }
}

fn unit(input: &mut Input<'_>) -> Unit {
    let instruction =
        if input.once_in(8) { input.pick(&Instruction::ALL) } else { Instruction::Forward };
    let chunk = Chunk(input.mostly(0) as u16);
    Unit { instruction, chunk, microbatch: Microbatch(input.short_number()) }
}

/// An instruction that ran under a clock.
fn ran(input: &mut Input<'_>) -> TapRecord {
    let clock = |input: &mut Input<'_>| {
        let right = input.pick(&CLOCKS);
        Mhz(input.mostly(right.0.into()) as u32)
    };
    let asked = input.optional(clock);
    let mhz = if input.once_in(6) { clock(input) } else { asked.unwrap_or(CLOCKS[0]) };
    let began_ns = input.time_ns();
    TapRecord::Ran {
        unit: unit(input),
        began_ns,
        ended_ns: if input.once_in(4) { input.number() } else { input.time_ns() },
        asked,
        locked: input
            .optional(|input| (mhz, if input.once_in(2) { began_ns } else { input.number() })),
        astray: input.once_in(16),
    }
}

fn counter(input: &mut Input<'_>) -> TapRecord {
    TapRecord::Counter(CounterReading {
        at_ns: input.time_ns(),
        energy_j: input.optional(Input::figure),
        read_ns: input.time_ns(),
        sm_clock: input.optional(|input| input.pick(&CLOCKS)),
        throttle_reasons: if input.once_in(8) { input.number() } else { 0 },
        throttled_ns: ThrottledNs::of(std::array::from_fn(|_| input.optional(Input::number))),
    })
}

fn record(input: &mut Input<'_>, step: u64) -> TapRecord {
    match input.below(12) {
        0 | 1 => TapRecord::StepBegan {
            step: input.mostly(step),
            at_ns: input.time_ns(),
            astray: input.once_in(8),
        },
        2 => TapRecord::StepEnded { at_ns: input.time_ns(), astray: input.once_in(8) },
        3 | 4 => counter(input),
        5 if input.once_in(4) => {
            TapRecord::TrialBegan { first_step: input.number(), steps: input.short_number() }
        }
        6 if input.once_in(8) => TapRecord::Ended,
        _ => ran(input),
    }
}

fn batch(input: &mut Input<'_>, step: u64) -> TapBatch {
    let rank = Rank(input.below(RANKS).into());
    let lost = if input.once_in(8) { input.number() } else { 0 };
    TapBatch { rank, lost, records: input.list(16, |input| record(input, step)) }
}

/// What the tap of a rank sends during a trial, mostly.
fn trial_batch(input: &mut Input<'_>, rank: u8, first_step: u64) -> TapBatch {
    let steps = input.mostly(1) as u32;
    let mut records = vec![counter(input), TapRecord::TrialBegan { first_step, steps }];
    for step in [0, 1] {
        records.push(TapRecord::StepBegan {
            step: first_step.saturating_add(step),
            at_ns: input.time_ns(),
            astray: input.once_in(16),
        });
        records.extend(input.list(8, |input| match input.below(8) {
            0..4 => ran(input),
            4..7 => counter(input),
            _ => record(input, first_step),
        }));
    }
    let lost = if input.once_in(16) { input.number() } else { 0 };
    TapBatch { rank: Rank(rank.into()), lost, records }
}

fn trial(input: &mut Input<'_>, first_step: u64) -> TrialResult {
    let steps = vec![TrialStep { time_s: input.figure(), energy_j: input.optional(Input::figure) }];
    let rank = |rank: u8| TrialRank {
        rank: Rank(rank.into()),
        stage: Stage(rank.into()),
        dp_rank: DpRank(0),
        tp_rank: TpRank(0),
        gpu_uuid: "GPU-1".parse().expect("a name"),
        gpu_model: "NVIDIA A40".into(),
        time_s: input.figure(),
        energy_j: input.optional(Input::figure),
        mismatched_steps: input.mostly(0),
    };
    let ranks = (0..RANKS).map(rank).collect();
    TrialResult { plan: None, first_step, steps, ranks }
}

/// The batches as the agent decodes them.
fn decoded(batches: Vec<TapBatch>) -> Vec<TapBatch> {
    let read = |batch| match sent(&DaemonMessage::Tap(batch))? {
        DaemonMessage::Tap(batch) => Some(batch),
        _ => None,
    };
    batches.into_iter().filter_map(read).collect()
}

/// The job as the agent decodes it, if it does.
fn decoded_job(job: JobView) -> Option<JobView> {
    match sent(&DaemonMessage::Response(Response::Jobs(vec![job])))? {
        DaemonMessage::Response(Response::Jobs(mut jobs)) => jobs.pop(),
        _ => None,
    }
}

fn sent(message: &DaemonMessage) -> Option<DaemonMessage> {
    let bytes = message.to_frame().ok()?;
    let frame = Frame::first_of(&bytes).ok()??;
    DaemonMessage::from_payload(frame.kind, frame.payload).ok()
}

//! Anchors: optimal relaxed schedules all along the frontier, which plans are rounded from.

use pfo_vocabulary::Watts;

use crate::choices::tradeoff::Tradeoffs;
use crate::limits::{LONG_STEP, VERY_LONG_STEP};
use crate::pipeline::Pipeline;
use crate::progress::Progress;
use crate::relaxation::Relaxation;
use crate::relaxation::bound::LowerBound;
use crate::relaxation::events::Events;
use crate::waits::per_stage::PerStage;

/// Deadlines that get a schedule. Twice as many close less than a hundredth of the gap to the
/// bound.
const ANCHORS: usize = 128;

/// The same for a long step.
const ANCHORS_OF_LONG_STEP: usize = 64;

/// The same for a very long step.
const ANCHORS_OF_VERY_LONG_STEP: usize = 24;

/// The same if plans for a single deadline are wanted: those nearest to it.
const ANCHORS_NEAR: usize = 3;

/// The relaxation counts whole ns, rounded down: an operation may take this much longer, in
/// seconds.
const ROUNDED_S: f64 = 1e-9;

/// An optimal relaxed schedule, in which every operation has the time that rounding took from it.
pub(crate) struct Anchor {
    /// Seconds that the step takes.
    pub(crate) deadline_s: f64,
    /// Seconds that each operation takes.
    pub(crate) durations_s: Vec<f64>,
}

/// Solves the relaxed problem and passes on schedules all along the frontier, more at its fast end,
/// where it bends most, and the one of least energy. With `near_s`, a deadline in seconds, only a few
/// about it, and every operation at its fastest; what is faster is not solved then.
pub(crate) fn anchors(
    pipeline: &Pipeline,
    p2p_power: &PerStage<Watts>,
    tradeoffs: &Tradeoffs,
    near_s: Option<f64>,
    pass: &mut dyn FnMut(Anchor),
    progress: &Progress<'_>,
) -> LowerBound {
    let events = Events::new(pipeline.network());
    let mut relaxation = Relaxation::coarse(&events, tradeoffs, grain(pipeline));
    let mut bound = LowerBound::at_slow_end(pipeline, p2p_power, tradeoffs, &relaxation);
    let fastest_s = bound.fastest_s();
    let range_s = bound.slowest_s() - fastest_s;
    let count = match pipeline.network().len() {
        len if len <= LONG_STEP => ANCHORS,
        len if len <= VERY_LONG_STEP => ANCHORS_OF_LONG_STEP,
        _ => ANCHORS_OF_VERY_LONG_STEP,
    };
    let mut deadlines: Vec<f64> = (0..count)
        .map(|i| 1.0 - i as f64 / (count - 1) as f64)
        .map(|x| fastest_s + range_s * x * (1.0 + x) / 2.0)
        .collect();
    let more_s = rounded_s(pipeline);
    let within = |near_s: f64| (near_s - more_s).clamp(fastest_s, fastest_s + range_s);
    if let Some(near_s) = near_s.map(within) {
        deadlines.push(near_s);
        deadlines.sort_by(|a, b| (a - near_s).abs().total_cmp(&(b - near_s).abs()));
        deadlines.truncate(ANCHORS_NEAR);
        deadlines.sort_by(|a, b| b.total_cmp(a));
    }
    let mut deadlines = deadlines.into_iter().peekable();

    let mut at_s = Vec::new();
    let idle_w = p2p_power.total_w(pipeline.profile().num_stages());
    let mut is_past_cheapest = false;
    let mut pass_at = |relaxation: &Relaxation, time_s: f64, [each_s, all_s]: [f64; 2]| {
        relaxation.schedule(time_s, &mut at_s);
        let span = |&(start, end): &(u32, u32)| at_s[end as usize] - at_s[start as usize] + each_s;
        let durations_s = events.spans.iter().map(span).collect();
        pass(Anchor { deadline_s: time_s + all_s, durations_s });
    };
    while let Some(piece) = relaxation.advance() {
        bound.add(piece);
        progress.say(bound.solved());
        if !is_past_cheapest && piece.slope_w >= idle_w {
            is_past_cheapest = true;
            pass_at(&relaxation, piece.slow_s, [ROUNDED_S, more_s]);
        }
        while let Some(deadline_s) = deadlines.next_if(|&deadline_s| deadline_s >= piece.fast_s) {
            pass_at(&relaxation, deadline_s, [ROUNDED_S, more_s]);
        }
        if near_s.is_some() && deadlines.peek().is_none() {
            pass(fastest(pipeline, tradeoffs));
            return bound;
        }
    }
    // Some plan has to be as fast as any.
    pass_at(&relaxation, fastest_s, [0.0, 0.0]);
    bound
}

/// Every operation at its fastest.
fn fastest(pipeline: &Pipeline, tradeoffs: &Tradeoffs) -> Anchor {
    let network = pipeline.network();
    let durations_s: Vec<f64> =
        (0..network.len()).map(|operation| tradeoffs.get(operation).choices[0].time_s).collect();
    Anchor { deadline_s: network.makespan(|operation| durations_s[operation]), durations_s }
}

/// How coarse the costs of a second are: exact up to as many stages as most pipelines have, and
/// rounded to a few watts of the thousands that a second of a deep pipeline costs.
fn grain(pipeline: &Pipeline) -> Watts {
    const EXACT_STAGES: u16 = 8;
    const EACH_STAGE_W: f64 = 1.5;
    match pipeline.profile().num_stages() {
        ..=EXACT_STAGES => Watts(0.0),
        stages => Watts(EACH_STAGE_W * f64::from(stages - EXACT_STAGES)),
    }
}

/// What the relaxation may take too little for a step, in seconds.
pub(crate) fn rounded_s(pipeline: &Pipeline) -> f64 {
    ROUNDED_S * pipeline.network().len() as f64
}

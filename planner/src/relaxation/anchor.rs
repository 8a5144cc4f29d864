//! Anchors: optimal relaxed schedules all along the frontier, which plans are rounded from.

use pfo_vocabulary::Watts;

use crate::choices::tradeoff::Tradeoffs;
use crate::pipeline::Pipeline;
use crate::relaxation::Relaxation;
use crate::relaxation::bound::LowerBound;
use crate::relaxation::events::Events;

/// Deadlines that get a schedule. Twice as many close less than a hundredth of the gap to the
/// bound.
const ANCHORS: usize = 128;

/// An optimal relaxed schedule.
pub(crate) struct Anchor {
    /// Seconds that the step takes.
    pub(crate) deadline_s: f64,
    /// Seconds that each operation takes.
    pub(crate) durations_s: Vec<f64>,
}

/// Solves the relaxed problem and passes on schedules all along the frontier, more at its fast end,
/// where it bends most, and the one of least energy.
pub(crate) fn anchors(
    pipeline: &Pipeline,
    p2p_power: Watts,
    tradeoffs: &Tradeoffs,
    pass: &mut dyn FnMut(Anchor),
    progress: impl Fn(f64),
) -> LowerBound {
    let events = Events::new(pipeline.network());
    let mut relaxation = Relaxation::new(&events, tradeoffs);
    let mut bound = LowerBound::at_slow_end(pipeline, p2p_power, tradeoffs, &relaxation);
    let fastest_s = bound.fastest_s();
    let range_s = bound.slowest_s() - fastest_s;
    let mut deadlines = (0..ANCHORS)
        .map(|i| 1.0 - i as f64 / (ANCHORS - 1) as f64)
        .map(|x| fastest_s + range_s * x * (1.0 + x) / 2.0)
        .peekable();

    let mut at_s = Vec::new();
    let idle_w = p2p_power.0 * f64::from(pipeline.profile().num_stages());
    let mut is_past_cheapest = false;
    let mut pass_at = |relaxation: &Relaxation, deadline_s| {
        relaxation.schedule(deadline_s, &mut at_s);
        let span = |&(start, end): &(u32, u32)| at_s[end as usize] - at_s[start as usize];
        pass(Anchor { deadline_s, durations_s: events.spans.iter().map(span).collect() });
    };
    while let Some(piece) = relaxation.advance() {
        bound.add(piece);
        progress((bound.slowest_s() - piece.fast_s) / range_s);
        if !is_past_cheapest && piece.slope_w >= idle_w {
            is_past_cheapest = true;
            pass_at(&relaxation, piece.slow_s);
        }
        while let Some(deadline_s) = deadlines.next_if(|&deadline_s| deadline_s >= piece.fast_s) {
            pass_at(&relaxation, deadline_s);
        }
    }
    // Rounding may leave the last one below the fast end by less than a ns; or there is no range.
    pass_at(&relaxation, fastest_s);
    bound
}

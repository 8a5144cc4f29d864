//! A tradeoff in whole ns and µW, so that ties are ties.

use crate::choices::tradeoff::Tradeoff;

/// More than any flow, and small enough to add a few.
pub(super) const UNBOUNDED: i64 = 1 << 60;
/// More than any length, and small enough to add a few.
pub(super) const NEVER: i64 = i64::MAX / 4;

/// An arc's hull from the slowest point on: while the flow is in `[costs[j], costs[j + 1])` the
/// operation takes `times[j]`.
pub(super) struct Curve {
    pub(super) times_ns: Vec<i64>,
    pub(super) costs_uw: Vec<i64>,
}

impl Curve {
    /// Times and costs are rounded down, so that no plan beats what they add up to. With a coarser
    /// grain than 1 µW, costs are the nearest multiples of `grain_uw`, and that is not so.
    pub(super) fn new(tradeoff: &Tradeoff, grain_uw: i64) -> Self {
        let mut curve = Self { times_ns: Vec::new(), costs_uw: Vec::new() };
        let mut slower: Option<(i64, f64)> = None;
        for &index in tradeoff.hull.iter().rev() {
            let choice = &tradeoff.choices[usize::from(index)];
            // A whole number of ns may be a hair below itself in binary.
            let time_ns = (choice.time_s * 1e9 + 1e-3) as i64;
            let cost_uw = match slower {
                None => 0,
                Some((slower_ns, _)) if slower_ns == time_ns => continue,
                Some((slower_ns, effective_j)) => {
                    let slope_uw =
                        (choice.effective_j - effective_j) * 1e15 / (slower_ns - time_ns) as f64;
                    let last = curve.costs_uw.last().copied().unwrap_or(0);
                    let slope_uw = (slope_uw as i64 + grain_uw / 2) / grain_uw * grain_uw;
                    if grain_uw > 1 && slope_uw <= last && curve.times_ns.len() > 1 {
                        // The point before is on the line to this one.
                        curve.times_ns.pop();
                        curve.costs_uw.pop();
                        last
                    } else {
                        // Strictly rising, and as many as there can be stages add up to less than
                        // UNBOUNDED.
                        slope_uw.clamp(last + grain_uw, last + grain_uw + (UNBOUNDED >> 14))
                    }
                }
            };
            slower = Some((time_ns, choice.effective_j));
            curve.times_ns.push(time_ns);
            curve.costs_uw.push(cost_uw);
        }
        curve.costs_uw.push(UNBOUNDED);
        curve
    }

    pub(super) fn fastest(&self) -> i64 {
        self.times_ns.last().copied().unwrap_or(0)
    }

    pub(super) fn precedence() -> Self {
        Self { times_ns: vec![0], costs_uw: vec![0, UNBOUNDED] }
    }
}

//! A tradeoff as the flow sees it: whole ns and µW, so that ties are ties.

use crate::tradeoff::Tradeoff;

/// More than any flow, and small enough to add a few.
pub(crate) const UNBOUNDED: i64 = 1 << 60;
/// More than any length, and small enough to add a few.
pub(crate) const NEVER: i64 = i64::MAX / 4;

/// An arc's hull from the slowest point on: while the flow is in `[costs[j], costs[j + 1])` the
/// operation takes `times[j]`.
pub(crate) struct Curve {
    pub(crate) times_ns: Vec<i64>,
    pub(crate) costs_uw: Vec<i64>,
}

impl Curve {
    /// Times and costs are rounded down, so that no plan beats what they add up to.
    pub(crate) fn new(tradeoff: &Tradeoff) -> Self {
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
                    // Strictly rising, and as many as there can be stages add up to less than
                    // UNBOUNDED.
                    (slope_uw as i64).clamp(last + 1, last + 1 + (UNBOUNDED >> 14))
                }
            };
            slower = Some((time_ns, choice.effective_j));
            curve.times_ns.push(time_ns);
            curve.costs_uw.push(cost_uw);
        }
        curve.costs_uw.push(UNBOUNDED);
        curve
    }

    pub(crate) fn fastest(&self) -> i64 {
        self.times_ns.last().copied().unwrap_or(0)
    }

    pub(crate) fn precedence() -> Self {
        Self { times_ns: vec![0], costs_uw: vec![0, UNBOUNDED] }
    }
}

/// How far an arc's flow can go up or down before its length changes.
#[derive(Clone, Copy)]
pub(crate) struct Residual {
    /// Length and capacity forwards.
    pub(crate) up: (i64, i64),
    /// Length and capacity backwards; a length of `NEVER` if there is none.
    pub(crate) down: (i64, i64),
}

impl Residual {
    pub(crate) fn new(curve: &Curve, segment: usize, flow: i64) -> Self {
        let up = (curve.times_ns[segment], curve.costs_uw[segment + 1] - flow);
        let down = if flow > curve.costs_uw[segment] {
            (curve.times_ns[segment], flow - curve.costs_uw[segment])
        } else if segment > 0 {
            let capacity = curve.costs_uw[segment] - curve.costs_uw[segment - 1];
            (curve.times_ns[segment - 1], capacity)
        } else {
            (NEVER, 0)
        };
        Self { up, down }
    }
}

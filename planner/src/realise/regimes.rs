//! The few plans that all others are spliced from; they are few, so each gets much effort.

use crate::choices::pareto::{falling, lower_hull};
use crate::choices::{Choices, Packed, Realised};
use crate::limits::{LONG_STEP, VERY_LONG_STEP};
use crate::parallel::in_parallel_and_say;
use crate::progress::Progress;
use crate::realise::Realiser;
use crate::realise::splice::Regimes;
use crate::realise::steady::steady;
use crate::step::network::Network;

/// Operations that may be filled while time is redistributed. Where there would be more, each plan
/// gets every n-th kind of operation, and its neighbours the others: all kinds for each plan save
/// another 0.01 % of the energy in the mean.
const AFFORDABLE: usize = 2_000_000;

/// A regime for the middle of a step, and a plan whose ends fill and drain the pipeline for it.
struct Composite<'a> {
    ends: &'a Realised,
    middle: &'a Packed,
    /// The number of operations of each end.
    cut: usize,
}

/// Improves plans that were rounded one by one. Returns better plans all along the frontier,
/// fastest first, and the regimes among them.
pub(crate) fn regimes(
    network: &Network,
    choices: &Choices,
    rounded: Vec<Realised>,
    progress: &Progress<'_>,
) -> (Vec<Realised>, Regimes) {
    // The share of the work that is done after the composites, for a large pipeline.
    const COMPOSING: f64 = 0.4;
    let composing = progress.part(0.0, COMPOSING);
    let redistributing = progress.part(COMPOSING, 1.0);
    let new = || Realiser::new(network, choices);
    let hull = |plans: &[Realised]| lower_hull(plans.iter().cloned(), Realised::cost);
    let mut plans = falling(rounded, Realised::cost);
    let steady = steady(network, choices, &composing);
    let ends = hull(&plans);
    let composites = composites((network, choices), &steady, &ends, &composing);
    let is_no_better = |made: &Realised| {
        let in_time = plans.partition_point(|plan| plan.time_s <= made.time_s);
        plans[..in_time].last().is_some_and(|plan| plan.effective_j <= made.effective_j)
    };
    let compose = |realiser: &mut Realiser<'_>, composite: &Composite<'_>| {
        let made = realiser.compose(&composite.ends.assignment, composite.middle, composite.cut);
        // Most are not worth the room.
        (!is_no_better(&made)).then_some(made)
    };
    let composed = in_parallel_and_say(&composites, new, compose, &composing);
    plans.extend(composed.into_iter().flatten());
    plans = falling(plans, Realised::cost);
    let best = hull(&plans);
    let every = (best.len() * choices.ranges().len() * network.len()).div_ceil(AFFORDABLE);
    let best: Vec<(usize, Realised)> = best.into_iter().enumerate().collect();
    let redistribute = |realiser: &mut Realiser<'_>, (place, plan): &(usize, Realised)| {
        realiser.redistribute(plan, plan.time_s, (place % every, every), &redistributing)
    };
    plans.extend(in_parallel_and_say(&best, new, redistribute, &redistributing));
    plans = falling(plans, Realised::cost);
    let regimes = Regimes(hull(&plans));
    (plans, regimes)
}

/// Composites of steady regimes, and of the plans themselves, with the ends of plans of about the
/// same time.
fn composites<'a>(
    (network, choices): (&Network, &Choices),
    steady: &'a [Packed],
    plans: &'a [Realised],
    progress: &Progress<'_>,
) -> Vec<Composite<'a>> {
    // From the time in which the pipeline fills to half of the step; the best ones first.
    const CUTS: [usize; 4] = [12, 6, 32, 4];
    // A steady regime takes longer by itself than with suitable ends: those of some faster plans, and
    // of the next slower one.
    let (cuts, faster, slower) = match network.len() {
        len if len <= LONG_STEP => (&CUTS[..], 3, 1),
        len if len <= VERY_LONG_STEP => (&CUTS[..2], 2, 1),
        _ => (&CUTS[..1], 3, 0),
    };
    let steady = steady.iter().map(|regime| {
        progress.go_on();
        let time_s = |operation| choices.get(choices.unpacked(regime, operation)).time_s;
        (network.makespan(time_s), regime)
    });
    let middles = steady.chain(plans.iter().map(|plan| (plan.time_s, &plan.assignment)));
    let mut composites = Vec::new();
    for (time_s, middle) in middles {
        let next = plans.partition_point(|plan| plan.time_s <= time_s);
        let about = next.saturating_sub(faster)..(next + slower).min(plans.len());
        for ends in plans[about].iter().filter(|ends| ends.assignment != *middle) {
            composites.extend(cuts.iter().map(|part| Composite {
                ends,
                middle,
                cut: network.len() / part,
            }));
        }
    }
    composites
}

//! The few plans that all others are spliced from; they are few, so each gets much effort.

use crate::choices::pareto::{falling, lower_hull};
use crate::choices::{Assignment, Choices, Realised};
use crate::parallel::in_parallel_and_say;
use crate::progress::Progress;
use crate::realise::Realiser;
use crate::realise::splice::Regimes;
use crate::realise::steady::steady;
use crate::step::network::Network;

/// A regime for the middle of a step, and a plan whose ends fill and drain the pipeline for it.
struct Composite<'a> {
    ends: &'a Realised,
    middle: &'a Assignment,
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
    // The shares of the work that are done after the composites and before the seams, for a large
    // pipeline.
    const COMPOSING: f64 = 0.25;
    const REDISTRIBUTING: f64 = 0.99;
    let composing = progress.part(0.0, COMPOSING);
    let redistributing = progress.part(COMPOSING, REDISTRIBUTING);
    let joining = progress.part(REDISTRIBUTING, 1.0);
    let new = || Realiser::new(network, choices);
    let hull = |plans: &[Realised]| lower_hull(plans.iter().cloned(), Realised::cost);
    let mut plans = falling(rounded, Realised::cost);
    let steady = steady(network, choices, &composing);
    let ends = hull(&plans);
    let composites = composites((network, choices), &steady, &ends, &composing);
    let compose = |realiser: &mut Realiser<'_>, composite: &Composite<'_>| {
        realiser.compose(&composite.ends.assignment, composite.middle, composite.cut)
    };
    plans.extend(in_parallel_and_say(&composites, new, compose, &composing));
    plans = falling(plans, Realised::cost);
    let redistribute = |realiser: &mut Realiser<'_>, plan: &Realised| {
        realiser.redistribute(plan, plan.time_s, &redistributing)
    };
    plans.extend(in_parallel_and_say(&hull(&plans), new, redistribute, &redistributing));
    plans = falling(plans, Realised::cost);
    let regimes = Regimes::new(hull(&plans), new, &joining);
    (plans, regimes)
}

/// Composites of steady regimes, and of the plans themselves, with the ends of plans of about the
/// same time.
fn composites<'a>(
    (network, choices): (&Network, &Choices),
    steady: &'a [Assignment],
    plans: &'a [Realised],
    progress: &Progress<'_>,
) -> Vec<Composite<'a>> {
    // A steady regime takes longer by itself than with suitable ends.
    const FASTER: usize = 3;
    const SLOWER: usize = 1;
    // From the time in which the pipeline fills to half of the step.
    const CUTS: [usize; 4] = [32, 12, 6, 4];
    let steady = steady.iter().map(|regime| {
        progress.go_on();
        (network.makespan(|operation| choices.get(regime[operation]).time_s), regime)
    });
    let middles = steady.chain(plans.iter().map(|plan| (plan.time_s, &plan.assignment)));
    let mut composites = Vec::new();
    for (time_s, middle) in middles {
        let next = plans.partition_point(|plan| plan.time_s <= time_s);
        let about = next.saturating_sub(FASTER)..(next + SLOWER).min(plans.len());
        for ends in plans[about].iter().filter(|ends| ends.assignment != *middle) {
            composites.extend(CUTS.map(|part| Composite {
                ends,
                middle,
                cut: network.len() / part,
            }));
        }
    }
    composites
}

//! What a second costs on each arc, at one iteration time.
//!
//! These are Lagrange multipliers: with the price of every arc's time in its energy, each operation
//! can be judged by itself, and no plan takes less than all of them at their cheapest.

use crate::choices::tradeoff::Tradeoffs;
use crate::progress::Progress;
use crate::relaxation::Relaxation;
use crate::relaxation::events::Events;

/// For each arc the watts that a second less costs on it. What flows into an event flows out of it.
pub(crate) fn prices_w(
    events: &Events,
    tradeoffs: &Tradeoffs,
    time_s: f64,
    progress: &Progress<'_>,
) -> Vec<f64> {
    let mut relaxation = Relaxation::new(events, tradeoffs);
    if time_s >= relaxation.slowest_s() {
        return vec![0.0; events.arcs.len()];
    }
    while relaxation.advance().is_some_and(|piece| piece.fast_s > time_s) {
        progress.go_on();
    }
    (0..events.arcs.len()).map(|arc| relaxation.flow_w(arc)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pipeline::Pipeline;
    use crate::schedule::name::Schedule;
    use crate::test_profiles::any_profile;
    use pfo_vocabulary::Watts;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_flows_into_an_event_flows_out_of_it_and_the_prices_make_the_bound(
            profile in any_profile(3, 5), microbatches in 1_u32..5, share in 0.0_f64..1.1,
        ) {
            let schedule = Schedule::OneForwardOneBackward;
            let pipeline = Pipeline::new(&profile, schedule, microbatches).unwrap();
            let power = Watts(80.0);
            let tradeoffs = Tradeoffs::new(&pipeline, &power.into());
            let events = Events::new(pipeline.network());
            let bound = crate::LowerBound::new(&pipeline, power);
            let (fastest_s, slowest_s) = (bound.fastest_s(), bound.slowest_s());
            let time_s = fastest_s + share * (slowest_s - fastest_s);
            let price_w = prices_w(&events, &tradeoffs, time_s, &Progress::new(&|_| {}));
            let mut left_w = vec![0.0; events.count];
            for (arc, price_w) in events.arcs.iter().zip(&price_w) {
                left_w[arc.tail as usize] -= price_w;
                left_w[arc.head as usize] += price_w;
            }
            let end_w = left_w[events.sink() as usize];
            prop_assert!((left_w[Events::SOURCE as usize] + end_w).abs() < 1e-3);
            let inner = &left_w[1..left_w.len() - 1];
            prop_assert!(inner.iter().all(|left_w| left_w.abs() < 1e-3), "{left_w:?}");
            let cheapest_j: f64 = events.arcs.iter().zip(&price_w).filter_map(|(arc, price_w)| {
                let choices = &tradeoffs.get(arc.operation? as usize).choices;
                let costs = choices.iter().map(|choice| choice.effective_j + price_w * choice.time_s);
                costs.min_by(f64::total_cmp)
            }).sum();
            let idle_j = power.0 * f64::from(profile.num_stages()) * time_s;
            let bound_j = cheapest_j - end_w * time_s + idle_j;
            // Times in whole ns, and a second that costs up to 0.6 MW.
            prop_assert!((bound_j - bound.energy_j(time_s)).abs() < 0.1, "{bound_j}");
        }
    }
}

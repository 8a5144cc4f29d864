//! Exchanges: several operations of a finished plan get other choices at once.
//!
//! Rounding and filling decide operation by operation, and in a short step the next clock of one is
//! a large share. So the operations of a *stretch* of the step are decided anew, all together and
//! exactly, while those around it keep their choices. Stretches overlap, and get longer while there
//! is time; a step of a few operations is a single stretch in the end.

mod candidates;
mod stretch;

use crate::choices::{Choices, Realised};
use crate::progress::Progress;
use crate::realise::TOLERANCE_S;
use crate::realise::exchange::candidates::{Candidate, ranked};
use crate::realise::exchange::stretch::Stretch;
use crate::relaxation::events::Events;
use crate::step::network::Network;

/// Operations of a stretch, one pass through the step after the other.
const WIDTHS: [usize; 5] = [6, 12, 20, 32, 64];

/// Visits of arcs within one stretch. Most take a hundredth of it.
const MOST_VISITS: usize = 40_000;

/// Visits of arcs for a plan, some hundredths of a second.
pub(crate) const AFFORDABLE: usize = 600_000;

/// The same from all plans that are begun with, in a step that is not of few operations: some thousandths
/// of a second. Five times as many save less than 0.005 % of the energy.
pub(crate) const AFFORDABLE_TOGETHER: usize = 120_000;

/// A step of so few operations may be decided at once in as many visits as take some tenths of a second:
/// with coarse clocks, the best plan may differ from others all over the step, as no part of it shows.
const FEW: usize = 24;
const AFFORDABLE_FOR_FEW: usize = 16_000_000;

/// A plan whose operations are decided anew.
pub(crate) struct Exchange<'a> {
    choices: &'a Choices,
    events: &'a Events,
    /// For each arc, what a second less costs there.
    price_w: &'a [f64],
    deadline_s: f64,
    /// For each arc, the choices of its operation, best first at the price of its time.
    candidates: Vec<Vec<Candidate>>,
    /// For each arc, its present choice.
    present: Vec<Candidate>,
    /// The arcs that have a choice.
    free: Vec<usize>,
    visits_left: usize,
}

impl<'a> Exchange<'a> {
    /// For plans that take at most `deadline_s`, with the prices of about that time and so many visits.
    pub(crate) fn new(
        choices: &'a Choices,
        events: &'a Events,
        price_w: &'a [f64],
        deadline_s: f64,
        visits_left: usize,
    ) -> Self {
        let arcs = events.arcs.iter().zip(price_w);
        let candidates: Vec<Vec<Candidate>> =
            arcs.map(|(arc, &price_w)| ranked(choices, arc.operation, price_w)).collect();
        let free = (0..candidates.len()).filter(|&arc| candidates[arc].len() > 1).collect();
        let present = candidates.iter().map(|candidates| candidates[0]).collect();
        Self { choices, events, price_w, deadline_s, candidates, present, free, visits_left }
    }

    /// The plan, which is in time, or a better one that is found from it; and how many visits are left.
    pub(crate) fn improved(
        mut self,
        network: &Network,
        plan: Realised,
        progress: &Progress<'_>,
    ) -> (Realised, usize) {
        self.take(&plan);
        for width in WIDTHS {
            while self.pass(width, progress) {}
        }
        if let [first, .., last] = self.free[..]
            && self.free.len() <= FEW
        {
            self.decide((first, last), AFFORDABLE_FOR_FEW);
        }
        let mut assignment = self.choices.all_unpacked(&plan.assignment);
        for (arc, present) in self.events.arcs.iter().zip(&self.present) {
            if let Some(operation) = arc.operation {
                assignment[operation as usize] = present.index;
            }
        }
        let time_s = network.makespan(|operation| self.choices.get(assignment[operation]).time_s);
        let effective_j = self.choices.effective_j(&assignment);
        let better = if effective_j < plan.effective_j && time_s <= self.deadline_s + TOLERANCE_S {
            Realised { time_s, effective_j, assignment: self.choices.packed(&assignment) }
        } else {
            plan
        };
        (better, self.visits_left)
    }

    fn take(&mut self, plan: &Realised) {
        for (index, arc) in self.events.arcs.iter().enumerate() {
            let Some(operation) = arc.operation else { continue };
            let own = self.choices.unpacked(&plan.assignment, operation as usize);
            let found = self.candidates[index].iter().find(|candidate| candidate.index == own);
            self.present[index] = found.copied().unwrap_or(self.candidates[index][0]);
        }
    }

    /// Decides every stretch of `width` operations; returns whether that saved anything.
    fn pass(&mut self, width: usize, progress: &Progress<'_>) -> bool {
        let mut is_better = false;
        let mut first = 0;
        while first < self.free.len() && self.visits_left > 0 {
            progress.go_on();
            let end = (first + width).min(self.free.len());
            let visits = self.visits_left.min(MOST_VISITS);
            let (better, taken) = self.decide((self.free[first], self.free[end - 1]), visits);
            self.visits_left -= taken;
            is_better |= better;
            if end == self.free.len() {
                break;
            }
            first += width / 2;
        }
        is_better
    }

    /// Decides the stretch from one arc to another; returns whether that saved anything, and how many of
    /// these visits it took.
    fn decide(&mut self, ends: (usize, usize), visits: usize) -> (bool, usize) {
        let step = (self.events, self.price_w, &self.candidates[..]);
        let stretch = Stretch::new(step, &self.present, ends, (self.deadline_s, visits));
        let Some(mut stretch) = stretch else { return (false, 0) };
        let better = stretch.better();
        let taken = visits - stretch.visits_left();
        let is_better = better.is_some();
        for (arc, candidate) in better.into_iter().flatten() {
            self.present[arc] = candidate;
        }
        (is_better, taken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::choices::tradeoff::Tradeoffs;
    use crate::pipeline::Pipeline;
    use crate::profile::Profile;
    use crate::relaxation::prices::prices_w;
    use crate::schedule::name::Schedule;
    use crate::test_profiles::{any_profile, power_law};
    use pfo_vocabulary::Watts;

    fn pipeline(profile: &Profile, microbatches: u32) -> Pipeline {
        Pipeline::new(profile, Schedule::OneForwardOneBackward, microbatches).unwrap()
    }

    /// A plan for a share of the range of times, from that of the highest clocks, before and after
    /// exchanges.
    fn exchanged(pipeline: &Pipeline, share: f64) -> (Realised, Realised, f64) {
        let (network, power) = (pipeline.network(), Watts(80.0).into());
        let tradeoffs = Tradeoffs::new(pipeline, &power);
        let choices = Choices::new(&tradeoffs);
        let events = Events::new(network);
        let fastest: Vec<u32> = (0..network.len()).map(|op| choices.fastest(op)).collect();
        let slowest = (0..network.len()).map(|op| choices.of(op).1 - 1);
        let slowest: Vec<u32> = slowest.collect();
        let makespan_s =
            |assignment: &[u32]| network.makespan(|op| choices.get(assignment[op]).time_s);
        let (fastest_s, slowest_s) = (makespan_s(&fastest), makespan_s(&slowest));
        let deadline_s = fastest_s + share * (slowest_s - fastest_s);
        let plan = Realised {
            time_s: fastest_s,
            effective_j: choices.effective_j(&fastest),
            assignment: choices.packed(&fastest),
        };
        let progress = Progress::new(&|_| {});
        let price_w = prices_w(&events, &tradeoffs, deadline_s, &progress);
        let exchange = Exchange::new(&choices, &events, &price_w, deadline_s, AFFORDABLE);
        let (better, _) = exchange.improved(network, plan.clone(), &progress);
        let replayed: Vec<u32> = choices.all_unpacked(&better.assignment);
        assert_eq!(better.time_s, makespan_s(&replayed));
        assert!((better.effective_j - choices.effective_j(&replayed)).abs() < 1e-9);
        (plan, better, deadline_s)
    }

    /// The least effective energy of all plans in time.
    fn least_j(pipeline: &Pipeline, deadline_s: f64) -> f64 {
        let network = pipeline.network();
        let choices = Choices::new(&Tradeoffs::new(pipeline, &Watts(80.0).into()));
        let mut digits: Vec<u32> = (0..network.len()).map(|op| choices.fastest(op)).collect();
        let mut least_j = f64::INFINITY;
        loop {
            if network.makespan(|op| choices.get(digits[op]).time_s) <= deadline_s {
                least_j = least_j.min(choices.effective_j(&digits));
            }
            let next = (0..digits.len()).find(|&op| digits[op] + 1 < choices.of(op).1);
            let Some(next) = next else { return least_j };
            digits[next] += 1;
            (0..next).for_each(|op| digits[op] = choices.fastest(op));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_step_of_a_few_operations_gets_the_best_plan_there_is(
            profile in any_profile(2, 3), microbatches in 1_u32..3, share in 0.0_f64..1.1,
        ) {
            let pipeline = pipeline(&profile, microbatches);
            let (_, better, deadline_s) = exchanged(&pipeline, share);
            let least_j = least_j(&pipeline, deadline_s);
            prop_assert!(better.effective_j < least_j + 1e-5, "{} {least_j}", better.effective_j);
        }

        #[test]
        fn exchanges_keep_the_deadline_and_cost_nothing(
            profile in any_profile(4, 6), microbatches in 1_u32..9, share in 0.0_f64..1.1,
        ) {
            let (plan, better, deadline_s) = exchanged(&pipeline(&profile, microbatches), share);
            prop_assert!(better.time_s <= deadline_s + 1e-9);
            prop_assert!(better.effective_j <= plan.effective_j);
        }
    }

    #[test]
    fn exchanges_say_often_that_they_go_on() {
        let profile = power_law(&[1.0, 1.1], [0.05, 0.1], 0.8, &(1000..=1400).step_by(40));
        let pipeline = pipeline(&profile, 12);
        let said = std::sync::atomic::AtomicUsize::new(0);
        let say = |_| {
            said.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        };
        let power = Watts(80.0).into();
        let tradeoffs = Tradeoffs::new(&pipeline, &power);
        let choices = Choices::new(&tradeoffs);
        let events = Events::new(pipeline.network());
        let price_w = vec![0.0; events.arcs.len()];
        let fastest: Vec<u32> =
            (0..pipeline.network().len()).map(|op| choices.fastest(op)).collect();
        let plan = Realised {
            time_s: pipeline.network().makespan(|op| choices.get(fastest[op]).time_s),
            effective_j: choices.effective_j(&fastest),
            assignment: choices.packed(&fastest),
        };
        let exchange = Exchange::new(&choices, &events, &price_w, plan.time_s, AFFORDABLE);
        exchange.improved(pipeline.network(), plan, &Progress::new(&say));
        assert!(said.into_inner() > 10);
    }
}

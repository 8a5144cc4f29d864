//! From the relaxed optimum to a plan of measured clocks that keeps a deadline.
//!
//! The relaxation mixes clocks freely; a GPU cannot. There are several ways to round, none of them
//! best everywhere; each leaves some slack, which is filled, best saving per second first.

mod fill;
pub(crate) mod regimes;
mod splice;
mod steady;

use crate::choices::{Assignment, Choices, Realised};
use crate::step::network::Network;

/// Times closer than this are equal, in seconds.
const TOLERANCE_S: f64 = 1e-12;

/// The relaxation counts whole ns, and so may be that much too fast.
const RELAXED_TOLERANCE_S: f64 = 2e-9;

/// Rounds, fills and splices; keeps its buffers from one plan to the next.
pub(crate) struct Realiser<'a> {
    network: &'a Network,
    choices: &'a Choices,
    /// Watts from which on to fill, falling.
    levels_w: Vec<f64>,
    /// For each operation, the shortest way from its end to the end of the step, in seconds.
    tail_s: Vec<f64>,
    /// The plan in the making; the earliest start and end of each operation, and the latest.
    assignment: Assignment,
    start_s: Vec<f64>,
    end_s: Vec<f64>,
    latest_start_s: Vec<f64>,
    latest_end_s: Vec<f64>,
    /// What `fill` still has to look at.
    loose: Vec<u32>,
    /// What `alternate` counts and aims at.
    turn: Vec<u32>,
    target: Assignment,
}

impl<'a> Realiser<'a> {
    pub(crate) fn new(network: &'a Network, choices: &'a Choices) -> Self {
        let n = network.len();
        let fastest: Assignment = (0..n).map(|operation| choices.fastest(operation)).collect();
        let mut realiser = Self {
            network,
            choices,
            levels_w: levels_w(choices.best_rate_w()),
            tail_s: Vec::new(),
            target: fastest.clone(),
            assignment: fastest,
            start_s: vec![0.0; n],
            end_s: vec![0.0; n + 1],
            latest_start_s: vec![0.0; n + 1],
            latest_end_s: vec![0.0; n],
            loose: Vec::with_capacity(n),
            turn: vec![0; n + 1],
        };
        realiser.latest(0.0);
        realiser.tail_s = realiser.latest_end_s.iter().map(|&end| -end).collect();
        realiser
    }

    /// The least time that any plan takes, in seconds.
    pub(crate) fn fastest_s(&mut self) -> f64 {
        for (operation, index) in self.assignment.iter_mut().enumerate() {
            *index = self.choices.fastest(operation);
        }
        self.earliest()
    }

    /// The best of what the ways to round make of these durations (seconds).
    pub(crate) fn round(&mut self, duration_s: &[f64], deadline_s: f64) -> Realised {
        let mut best = None;
        for hull_only in [false, true] {
            self.carry(duration_s, deadline_s, hull_only);
            self.fill(deadline_s);
            self.keep_if_better(&mut best);
        }
        self.round_down(duration_s);
        self.fill(deadline_s);
        self.keep_if_better(&mut best);
        self.alternate(duration_s, deadline_s);
        self.fill(deadline_s);
        self.keep_if_better(&mut best);
        best.unwrap_or_else(|| self.present())
    }

    /// Speeds one kind of operation up after the other and gives the slack that this makes to
    /// whoever saves most with it; keeps what is better, for the same time.
    pub(crate) fn redistribute(&mut self, plan: &Realised) -> Realised {
        let mut best = plan.clone();
        for &kind in self.choices.ranges() {
            self.assignment.clone_from(&best.assignment);
            for (operation, index) in self.assignment.iter_mut().enumerate() {
                if self.choices.of(operation) == kind {
                    *index = self.choices.faster_on_hull(operation, *index);
                }
            }
            self.fill(plan.time_s);
            if self.choices.effective_j(&self.assignment) < best.effective_j {
                best = self.present();
            }
        }
        best
    }

    fn time_s(&self, operation: usize) -> f64 {
        self.choices.get(self.assignment[operation]).time_s
    }

    fn earliest_start_s(&self, operation: usize) -> f64 {
        self.network.start_s(operation, &self.end_s)
    }

    fn latest_end_s(&self, operation: usize) -> f64 {
        let [a, b] = self.network.successors[operation];
        f64::min(self.latest_start_s[a as usize], self.latest_start_s[b as usize])
    }

    /// Starts every operation as early as it can; returns the makespan in seconds.
    fn earliest(&mut self) -> f64 {
        let mut makespan = 0.0_f64;
        for operation in 0..self.network.len() {
            let start = self.earliest_start_s(operation);
            let end = start + self.time_s(operation);
            self.start_s[operation] = start;
            self.end_s[operation] = end;
            makespan = makespan.max(end);
        }
        makespan
    }

    /// Ends every operation as late as the deadline allows.
    fn latest(&mut self, deadline_s: f64) {
        let n = self.network.len();
        self.latest_start_s[n] = deadline_s;
        for operation in (0..n).rev() {
            let end = self.latest_end_s(operation);
            self.latest_end_s[operation] = end;
            self.latest_start_s[operation] = end - self.time_s(operation);
        }
    }

    /// Takes, in the order of the step, the slowest choice that still ends each operation by the
    /// latest time that the durations give it: what one leaves unused, its successors get.
    fn carry(&mut self, duration_s: &[f64], deadline_s: f64, hull_only: bool) {
        let n = self.network.len();
        self.latest_start_s[n] = deadline_s;
        for operation in (0..n).rev() {
            let end = self.latest_end_s(operation);
            self.latest_end_s[operation] = end.min(deadline_s - self.tail_s[operation]);
            self.latest_start_s[operation] = end - duration_s[operation];
        }
        for operation in 0..n {
            let start = self.earliest_start_s(operation);
            let window_s = self.latest_end_s[operation] - start + TOLERANCE_S;
            self.assignment[operation] = if hull_only {
                self.choices.slowest_on_hull_within(operation, window_s)
            } else {
                self.choices.slowest_within(operation, window_s)
            };
            self.end_s[operation] = start + self.time_s(operation);
        }
    }

    /// Rounds every duration down to the hull, which leaves the slack where it arises.
    fn round_down(&mut self, duration_s: &[f64]) {
        for (operation, (index, &duration_s)) in
            self.assignment.iter_mut().zip(duration_s).enumerate()
        {
            let most_s = duration_s + RELAXED_TOLERANCE_S;
            *index = self.choices.slowest_on_hull_within(operation, most_s);
        }
    }

    /// Lets operations between two points of the hull take one and the other in turn.
    ///
    /// In a pipeline without slack, a slow operation here and another there delay the step twice
    /// if any path meets both. So all of them count turns together: an operation's turn is the
    /// most such operations on any way to it, and at the same turn all are slow or all are fast.
    /// Then every path meets as many slow ones. Who is too close to the bottleneck for even one
    /// turn's delay stays fast, and his slack is what lets the others take turns.
    fn alternate(&mut self, duration_s: &[f64], deadline_s: f64) {
        // Less than this share of turns is rounding of the relaxation's times.
        const LEAST_SHARE: f64 = 1e-4;
        self.round_down(duration_s);
        self.target.clone_from(&self.assignment);
        let n = self.network.len();
        for (operation, &duration_s) in duration_s.iter().enumerate() {
            let [a, b] = self.network.predecessors[operation];
            let turn = self.turn[a as usize].max(self.turn[b as usize]);
            self.turn[operation] = turn;
            let fast = self.assignment[operation];
            let Some(slow) = self.choices.slower_on_hull(operation, fast) else { continue };
            let (fast_s, slow_s) = (self.time_s(operation), self.choices.get(slow).time_s);
            let share = (duration_s - fast_s) / (slow_s - fast_s);
            if share < LEAST_SHARE {
                continue;
            }
            self.turn[operation] = turn + 1;
            let slow_turns = |turns: u32| (f64::from(turns) * share).floor();
            if slow_turns(turn + 1) > slow_turns(turn) {
                self.target[operation] = slow;
            }
        }
        self.earliest();
        self.latest_start_s[n] = deadline_s;
        for operation in (0..n).rev() {
            let end = self.latest_end_s(operation);
            let target = self.target[operation];
            if self.choices.get(target).time_s <= end - self.start_s[operation] {
                self.assignment[operation] = target;
            }
            self.latest_start_s[operation] = end - self.time_s(operation);
        }
    }

    fn present(&mut self) -> Realised {
        Realised {
            time_s: self.earliest(),
            effective_j: self.choices.effective_j(&self.assignment),
            assignment: self.assignment.clone(),
        }
    }

    fn keep_if_better(&mut self, best: &mut Option<Realised>) {
        let effective_j = self.choices.effective_j(&self.assignment);
        if best.as_ref().is_none_or(|best| effective_j < best.effective_j) {
            *best = Some(self.present());
        }
    }
}

/// Levels between the best saving there is and none.
pub(crate) fn levels_w(best_w: f64) -> Vec<f64> {
    const LEVELS: i32 = 24;
    const RATIO: f64 = 0.8;
    (1..LEVELS).map(|level| best_w * RATIO.powi(level)).chain([0.0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choices::tradeoff::Tradeoffs;
    use crate::pipeline::Pipeline;
    use crate::schedule::name::Schedule;
    use crate::test_profiles::unequal;
    use pfo_vocabulary::Watts;

    pub(super) fn with_realiser(check: impl FnOnce(&mut Realiser<'_>, &Choices)) {
        let schedule = Schedule::OneForwardOneBackward;
        let pipeline = Pipeline::new(&unequal(), schedule, 6).unwrap();
        let choices = Choices::new(&Tradeoffs::new(&pipeline, Watts(80.0)));
        check(&mut Realiser::new(pipeline.network(), &choices), &choices);
    }

    fn slowest(choices: &Choices, operations: usize) -> Assignment {
        (0..operations).map(|operation| choices.of(operation).1 - 1).collect()
    }

    #[test]
    fn every_way_to_round_keeps_a_deadline_that_its_durations_keep() {
        with_realiser(|realiser, choices| {
            let fastest_s = realiser.fastest_s();
            let n = realiser.network.len();
            let fast = realiser.assignment.clone();
            let slow = slowest(choices, n);
            for share in [0.0, 0.3, 0.7, 1.0] {
                let duration_s: Vec<f64> = fast
                    .iter()
                    .zip(&slow)
                    .map(|(&fast, &slow)| (choices.get(fast).time_s, choices.get(slow).time_s))
                    .map(|(fast_s, slow_s)| fast_s + share * (slow_s - fast_s))
                    .collect();
                let deadline_s = realiser.network.makespan(|operation| duration_s[operation]);
                assert!(deadline_s >= fastest_s - 1e-9);
                let plan = realiser.round(&duration_s, deadline_s);
                assert!(plan.time_s <= deadline_s + 1e-9, "{share}");
            }
        });
    }

    #[test]
    fn redistributing_keeps_the_time_and_never_costs_energy() {
        with_realiser(|realiser, _| {
            let deadline_s = realiser.fastest_s() * 1.07;
            realiser.fill(deadline_s);
            let plan = realiser.present();
            let better = realiser.redistribute(&plan);
            assert!(better.time_s <= plan.time_s + 1e-9);
            assert!(better.effective_j <= plan.effective_j);
        });
    }
}

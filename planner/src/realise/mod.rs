//! From the relaxed optimum to a plan of measured clocks that keeps a deadline.
//!
//! The relaxation mixes clocks freely; a GPU cannot. There are several ways to round, and none is
//! the best everywhere. Each leaves some slack, which is then filled: the operations that save most
//! per second slow down first.
//!
//! A *regime* is a plan for the middle of a step, where the pipeline runs at an even pace. Between
//! two neighbouring anchors, plans are *spliced*: one regime up to some operation, the next from
//! there on ([`splice`]). [`regimes`] makes good ones, partly from [`steady`] mixes. In a short step,
//! [`exchange`] decides the operations of a plan anew, several at once.

pub(crate) mod exchange;
mod fill;
pub(crate) mod regimes;
pub(crate) mod splice;
mod steady;

use std::ops::Range;

use crate::choices::{Assignment, Choices, Packed, Realised};
use crate::limits::LONG_STEP;
use crate::progress::Progress;
use crate::step::network::Network;

/// Times closer than this are equal, in seconds.
const TOLERANCE_S: f64 = 1e-12;

/// The relaxation counts whole ns and may be too fast by this much, in seconds.
const RELAXED_TOLERANCE_S: f64 = 2e-9;

/// Rounds, fills and splices plans; reuses its buffers.
pub(crate) struct Realiser<'a> {
    network: &'a Network,
    choices: &'a Choices,
    /// The least saving, in watts, of each pass of filling; falling.
    levels_w: Vec<f64>,
    /// For each operation, the least seconds from its end to the end of the step.
    tail_s: Vec<f64>,
    /// The present plan, with the earliest and the latest start and end of each operation.
    assignment: Assignment,
    start_s: Vec<f64>,
    end_s: Vec<f64>,
    latest_start_s: Vec<f64>,
    latest_end_s: Vec<f64>,
    /// The operations that `fill` still visits; of each whether one behind or before it has moved
    /// since, and the most watts that it can save.
    loose: Vec<u32>,
    is_due_behind: Vec<bool>,
    is_due_before: Vec<bool>,
    saves_w: Vec<f64>,
    /// The turns that `alternate` counts, and the choices that it prefers.
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
            levels_w: levels_w(choices.best_rate_w(), n),
            tail_s: Vec::new(),
            target: fastest.clone(),
            assignment: fastest,
            start_s: vec![0.0; n],
            end_s: vec![0.0; n + 1],
            latest_start_s: vec![0.0; n + 1],
            latest_end_s: vec![0.0; n],
            loose: Vec::with_capacity(n),
            is_due_behind: vec![true; n + 1],
            is_due_before: vec![true; n + 1],
            saves_w: vec![0.0; n],
            turn: vec![0; n + 1],
        };
        realiser.latest(0.0);
        realiser.tail_s = realiser.latest_end_s.iter().map(|&end| -end).collect();
        realiser
    }

    /// The time of the fastest plan, in seconds.
    pub(crate) fn fastest_s(&mut self) -> f64 {
        for (operation, index) in self.assignment.iter_mut().enumerate() {
            *index = self.choices.fastest(operation);
        }
        self.earliest()
    }

    /// The best plan that the ways to round make from these durations (seconds).
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

    /// Speeds up every n-th kind of operation after the other, beginning with `first`, gives the slack that this makes to the
    /// operations that save most with it, and keeps what is better within a deadline (s).
    pub(crate) fn redistribute(
        &mut self,
        plan: &Realised,
        deadline_s: f64,
        (first, every): (usize, usize),
        progress: &Progress<'_>,
    ) -> Realised {
        let mut best = plan.clone();
        for &kind in self.choices.ranges().iter().skip(first).step_by(every) {
            progress.go_on();
            self.take(&best.assignment, 0..self.network.len());
            for (operation, index) in self.assignment.iter_mut().enumerate() {
                if self.choices.of(operation) == kind {
                    *index = self.choices.faster_on_hull(operation, *index);
                }
            }
            self.fill(deadline_s);
            if self.choices.effective_j(&self.assignment) < best.effective_j {
                best = self.present();
            }
        }
        best
    }

    /// Takes the choices of a plan for these operations.
    fn take(&mut self, plan: &Packed, operations: Range<usize>) {
        for operation in operations {
            self.assignment[operation] = self.choices.unpacked(plan, operation);
        }
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

    /// Takes, in the order of the step, the slowest choice that still ends each operation by its
    /// latest end under the durations. Time that one operation leaves unused goes to its
    /// successors.
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

    /// Rounds every duration down to the hull, which leaves the slack in place.
    fn round_down(&mut self, duration_s: &[f64]) {
        for (operation, (index, &duration_s)) in
            self.assignment.iter_mut().zip(duration_s).enumerate()
        {
            let most_s = duration_s + RELAXED_TOLERANCE_S;
            *index = self.choices.slowest_on_hull_within(operation, most_s);
        }
    }

    /// Alternates operations whose duration lies between two points of the hull between these
    /// points.
    ///
    /// In a pipeline without slack, two slow operations delay the step twice if a path meets both.
    /// So all of them count turns together: the turn of an operation is the largest number of such
    /// operations on a path to it, and at each turn either all are slow or all are fast. Then every
    /// path meets the same number of slow ones. Operations that are too close to the bottleneck for
    /// the delay of one turn stay fast, and their slack lets the others alternate.
    fn alternate(&mut self, duration_s: &[f64], deadline_s: f64) {
        // A smaller share comes from rounding in the relaxation.
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
            assignment: self.choices.packed(&self.assignment),
        }
    }

    fn keep_if_better(&mut self, best: &mut Option<Realised>) {
        let effective_j = self.choices.effective_j(&self.assignment);
        if best.as_ref().is_none_or(|best| effective_j < best.effective_j) {
            *best = Some(self.present());
        }
    }
}

/// Levels from the best possible saving down to none; fewer for a step of many operations.
pub(crate) fn levels_w(best_w: f64, operations: usize) -> Vec<f64> {
    let (levels, ratio) = if operations > LONG_STEP { (12, 0.64_f64) } else { (24, 0.8) };
    (1..levels).map(|level| best_w * ratio.powi(level)).chain([0.0]).collect()
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
        let choices = Choices::new(&Tradeoffs::new(&pipeline, &Watts(80.0).into()));
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
            let better = realiser.redistribute(&plan, plan.time_s, (0, 1), &Progress::new(&|_| {}));
            assert!(better.time_s <= plan.time_s + 1e-9);
            assert!(better.effective_j <= plan.effective_j);
        });
    }

    #[test]
    fn whoever_redistributes_is_asked_before_every_kind() {
        with_realiser(|realiser, choices| {
            realiser.fastest_s();
            let plan = realiser.present();
            let asked = std::sync::atomic::AtomicUsize::new(0);
            let ask = |_| {
                asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            };
            realiser.redistribute(&plan, plan.time_s, (0, 1), &Progress::new(&ask));
            assert_eq!(asked.into_inner(), choices.ranges().len());
        });
    }
}

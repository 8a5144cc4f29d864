//! A step with late clocks, kept up to date while single clocks change.
//!
//! A new clock moves the end of its own operation and, until it is in force, the ends of those
//! after it on the stage; everything behind them moves as in any pipeline. Only what moves is
//! computed again, in the order of the step, and a change can be undone until the caller keeps it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use pfo_vocabulary::{Mhz, Watts};

use crate::choices::tradeoff::Tradeoffs;
use crate::choices::{Assignment, Choices, Realised};
use crate::late::change_j;
use crate::late::clocks::{Call, LateClocks, Run, nearest};
use crate::pipeline::Pipeline;
use crate::step::network::Network;
use crate::waits::per_stage::PerStage;

/// Times closer than this are equal, in seconds.
const TOLERANCE_S: f64 = 1e-12;
/// Smaller differences are rounding, in joules.
const TOLERANCE_J: f64 = 1e-9;

/// What a clock does that is replaced before it is in force depends on the last millisecond. Asking
/// for it costs this share of what a waiting GPU draws in the latency, so a clock is kept for at
/// least that long unless much is gained.
const HASTY_SHARE: f64 = 0.5;

/// Time and effective energy of every kind of operation at every clock of the step.
#[derive(Clone, Debug)]
pub(crate) struct Rates {
    /// For each of all choices, the index of its clock among all clocks.
    clock_of: Vec<u16>,
    /// For each kind of operation and each clock, seconds and effective joules.
    at: Vec<Vec<(f64, f64)>>,
    kind_of: Vec<u16>,
    /// For each clock, the seconds until it is in force.
    latency_s: Vec<f64>,
    /// The cost of a change of clocks, in joules.
    change_j: f64,
    /// The additional cost of one that is requested before the last one is in force.
    hasty_j: f64,
}

impl Rates {
    pub(crate) fn new(
        pipeline: &Pipeline,
        tradeoffs: &Tradeoffs,
        choices: &Choices,
        p2p_power: &PerStage<Watts>,
    ) -> Self {
        let mut clocks: Vec<Mhz> = choices.all().iter().map(|choice| choice.frequency).collect();
        clocks.sort_unstable();
        clocks.dedup();
        let clock_of = choices
            .all()
            .iter()
            .map(|choice| clocks.partition_point(|&clock| clock < choice.frequency) as u16)
            .collect();
        let mut at = vec![Vec::new(); tradeoffs.list.len()];
        for (operation, &kind) in pipeline.network().operations.iter().zip(&tradeoffs.of) {
            let kind = &mut at[usize::from(kind)];
            if kind.is_empty() && operation.is_run() {
                let table = pipeline.profile().part_table(
                    operation.stage,
                    operation.instruction,
                    operation.part(),
                );
                let waiting_w = p2p_power.of(operation.stage).0;
                let rows = clocks.iter().filter_map(|&clock| nearest(table, clock));
                kind.extend(rows.map(|row| (row.time_s, row.energy_j - waiting_w * row.time_s)));
            }
        }
        let delays = pipeline.network().delays;
        let latency_s = clocks.iter().map(|&clock| delays.latency_s(clock)).collect();
        let mean = p2p_power.mean();
        let change_j = change_j(mean, delays);
        let hasty_j = match delays.set_call_s > 0.0 {
            true => HASTY_SHARE * mean.0 * delays.longest_latency_s(),
            false => 0.0,
        };
        Self { clock_of, at, kind_of: tradeoffs.of.clone(), latency_s, change_j, hasty_j }
    }
}

/// The present plan.
pub(crate) struct LateStep<'a> {
    network: &'a Network,
    choices: &'a Choices,
    late: &'a LateClocks,
    rates: &'a Rates,
    assignment: Assignment,
    start_s: Vec<f64>,
    /// With an additional 0 at the end, for operations that wait for none.
    end_s: Vec<f64>,
    calls: Vec<Call<u16>>,
    /// Effective energy, and the cost of a change.
    operation_j: Vec<f64>,
    effective_j: f64,
    /// The latest end of each operation, as of the last look back from the deadline.
    latest_end_s: Vec<f64>,
    latest_start_s: Vec<f64>,
    /// Operations to compute again, in the order of the step.
    due: BinaryHeap<Reverse<u32>>,
    is_due: Vec<bool>,
    undo: Vec<Undo>,
    /// Changes that move more operations than this are refused.
    farthest: usize,
}

enum Undo {
    Choice {
        operation: usize,
        choice: u32,
    },
    Run {
        operation: usize,
        start_s: f64,
        end_s: f64,
        call: Call<u16>,
        joules: f64,
        effective_j: f64,
    },
}

impl<'a> LateStep<'a> {
    /// A step of the fastest clocks.
    pub(crate) fn new(
        network: &'a Network,
        choices: &'a Choices,
        late: &'a LateClocks,
        rates: &'a Rates,
    ) -> Self {
        let n = network.len();
        let mut step = Self {
            network,
            choices,
            late,
            rates,
            assignment: Assignment::new(),
            start_s: vec![0.0; n],
            end_s: vec![0.0; n + 1],
            calls: vec![Call::before(0); n],
            operation_j: vec![0.0; n],
            effective_j: 0.0,
            latest_end_s: vec![0.0; n],
            latest_start_s: vec![0.0; n + 1],
            due: BinaryHeap::new(),
            is_due: vec![false; n],
            undo: Vec::new(),
            farthest: usize::MAX,
        };
        step.load((0..n).map(|operation| choices.fastest(operation)).collect());
        step
    }

    /// Refuses changes that move more than this many operations, because following them through a
    /// long step takes long.
    pub(crate) fn move_at_most(&mut self, operations: usize) {
        self.farthest = operations;
    }

    /// Runs the step with these choices; its own time becomes the deadline.
    pub(crate) fn load(&mut self, assignment: Assignment) {
        self.assignment = assignment;
        for operation in 0..self.network.len() {
            let start_s = self.network.start_s(operation, &self.end_s);
            let run = self.run(operation, start_s);
            self.start_s[operation] = start_s;
            self.end_s[operation] = start_s + run.time_s;
            self.calls[operation] = run.call;
            self.operation_j[operation] = self.cost_j(&run);
        }
        self.effective_j = self.operation_j.iter().sum();
        self.aim_at(self.makespan_s());
    }

    /// Takes, in the order of the step, the slowest choice that still ends each operation by its
    /// latest end under these durations (s); the time of the result becomes the deadline. Where a
    /// late clock leaves no such choice, the step takes longer.
    pub(crate) fn carry(&mut self, duration_s: &[f64], deadline_s: f64) {
        let n = self.network.len();
        // What was there before does not matter, although first clocks depend on last ones.
        self.assignment = (0..n).map(|operation| self.choices.fastest(operation)).collect();
        self.look_back(deadline_s, |operation, _| duration_s[operation]);
        for operation in 0..n {
            let start_s = self.network.start_s(operation, &self.end_s);
            let window_s = self.latest_end_s[operation] - start_s + TOLERANCE_S;
            let (fastest, end) = self.choices.of(operation);
            for choice in (fastest..end).rev() {
                self.assignment[operation] = choice;
                let run = self.run(operation, start_s);
                self.end_s[operation] = start_s + run.time_s;
                self.calls[operation] = run.call;
                if run.time_s <= window_s {
                    break;
                }
            }
        }
        // The first clocks of a step depend on its last ones.
        let assignment = std::mem::take(&mut self.assignment);
        self.load(assignment);
    }

    /// When the last operation ends.
    pub(crate) fn makespan_s(&self) -> f64 {
        self.end_s.iter().copied().fold(0.0, f64::max)
    }

    pub(crate) fn deadline_s(&self) -> f64 {
        self.latest_start_s[self.network.len()]
    }

    pub(crate) fn effective_j(&self) -> f64 {
        self.effective_j
    }

    pub(crate) fn network(&self) -> &'a Network {
        self.network
    }

    pub(crate) fn choices(&self) -> &'a Choices {
        self.choices
    }

    pub(crate) fn late(&self) -> &'a LateClocks {
        self.late
    }

    pub(crate) fn has_late_clocks(&self) -> bool {
        self.network.delays.make_changes_late()
    }

    pub(crate) fn choice(&self, operation: usize) -> u32 {
        self.assignment[operation]
    }

    pub(crate) fn assignment(&self) -> &Assignment {
        &self.assignment
    }

    pub(crate) fn realised(&self) -> Realised {
        Realised {
            time_s: self.makespan_s(),
            effective_j: self.effective_j,
            assignment: self.choices.packed(&self.assignment),
        }
    }

    /// Sets the deadline and the latest end of each operation that follows from it.
    pub(crate) fn aim_at(&mut self, deadline_s: f64) {
        self.look_back(deadline_s, |operation, step| {
            step.end_s[operation] - step.start_s[operation]
        });
    }

    /// Computes the latest end of every operation for these durations.
    fn look_back(&mut self, deadline_s: f64, time_s: impl Fn(usize, &Self) -> f64) {
        let n = self.network.len();
        self.latest_start_s[n] = deadline_s;
        for operation in (0..n).rev() {
            let [a, b] = self.network.successors[operation];
            let end_s = f64::min(self.latest_start_s[a as usize], self.latest_start_s[b as usize]);
            self.latest_end_s[operation] = end_s;
            self.latest_start_s[operation] = end_s - time_s(operation, self);
        }
    }

    /// Seconds by which an operation may end later, as of the last look back from the deadline.
    pub(crate) fn slack_s(&self, operation: usize) -> f64 {
        self.latest_end_s[operation] - self.end_s[operation]
    }

    /// Gives operations other choices if there are any and the deadline is kept; returns whether it
    /// did.
    pub(crate) fn make(&mut self, changes: &[(usize, u32)]) -> bool {
        let is_made = !changes.is_empty() && self.change(changes);
        if is_made {
            self.undo.clear();
        } else {
            self.take_back();
        }
        is_made
    }

    /// Gives operations other choices if that saves energy and keeps the deadline; returns whether
    /// it did.
    pub(crate) fn try_out(&mut self, changes: &[(usize, u32)]) -> bool {
        let before_j = self.effective_j;
        let is_better = self.change(changes) && self.effective_j < before_j - TOLERANCE_J;
        if is_better {
            self.undo.clear();
        } else {
            self.take_back();
        }
        is_better
    }

    /// Gives operations other choices and follows the effects; stops and returns false where the
    /// deadline is missed.
    fn change(&mut self, changes: &[(usize, u32)]) -> bool {
        for &(operation, choice) in changes {
            let before = std::mem::replace(&mut self.assignment[operation], choice);
            self.undo.push(Undo::Choice { operation, choice: before });
            self.disturb(operation);
        }
        while let Some(Reverse(operation)) = self.due.pop() {
            let operation = operation as usize;
            self.is_due[operation] = false;
            let start_s = self.network.start_s(operation, &self.end_s);
            let run = self.run(operation, start_s);
            let (end_s, joules) = (start_s + run.time_s, self.cost_j(&run));
            if end_s > self.latest_end_s[operation] + TOLERANCE_S || self.undo.len() > self.farthest
            {
                return false;
            }
            let before_s = std::mem::replace(&mut self.end_s[operation], end_s);
            let before_j = std::mem::replace(&mut self.operation_j[operation], joules);
            let call = std::mem::replace(&mut self.calls[operation], run.call);
            self.undo.push(Undo::Run {
                operation,
                start_s: std::mem::replace(&mut self.start_s[operation], start_s),
                end_s: before_s,
                call,
                joules: before_j,
                effective_j: self.effective_j,
            });
            self.effective_j += joules - before_j;
            if before_s != end_s {
                for successor in self.network.successors[operation] {
                    self.make_due(successor as usize);
                }
            }
            if before_s != end_s || call != run.call {
                self.make_late_ones_due(operation, before_s.max(end_s));
            }
        }
        true
    }

    /// Undoes the last change.
    fn take_back(&mut self) {
        while let Some(Reverse(operation)) = self.due.pop() {
            self.is_due[operation as usize] = false;
        }
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Choice { operation, choice } => self.assignment[operation] = choice,
                Undo::Run { operation, start_s, end_s, call, joules, effective_j } => {
                    self.effective_j = effective_j;
                    self.calls[operation] = call;
                    self.start_s[operation] = start_s;
                    self.end_s[operation] = end_s;
                    self.operation_j[operation] = joules;
                }
            }
        }
    }

    /// Makes due what another clock of an operation may change.
    fn disturb(&mut self, operation: usize) {
        self.make_due(operation);
        self.make_late_ones_due(operation, self.end_s[operation]);
        if let Some(before) = self.late.held_up_by(operation) {
            self.make_due(before);
        }
        if let Some(first) = self.late.first_of_next_step(operation) {
            self.make_due(first);
            self.make_late_ones_due(first, 0.0);
        }
    }

    /// Makes due the next operation, whose call follows those of this one, and all that start
    /// before the clocks that are set until this end are in force.
    fn make_late_ones_due(&mut self, operation: usize, end_s: f64) {
        let from_s = self.late.in_force_s(end_s);
        let mut next = self.late.next(operation);
        while let Some(operation) = next {
            self.make_due(operation);
            next = self.late.next(operation).filter(|&next| self.start_s[next] < from_s);
        }
    }

    fn make_due(&mut self, operation: usize) {
        if operation < self.network.len() && !std::mem::replace(&mut self.is_due[operation], true) {
            self.due.push(Reverse(operation as u32));
        }
    }

    /// Effective energy in joules.
    fn cost_j(&self, run: &Run<u16>) -> f64 {
        let change_j = if run.is_change { self.rates.change_j } else { 0.0 };
        let hasty_j = if run.is_hasty { self.rates.hasty_j } else { 0.0 };
        run.energy_j + change_j + hasty_j
    }

    /// Runs an operation; its energy is the effective one.
    fn run(&self, operation: usize, start_s: f64) -> Run<u16> {
        let rates = &self.rates.at[usize::from(self.rates.kind_of[operation])];
        let clock = |operation: usize| self.rates.clock_of[self.assignment[operation] as usize];
        let at = |clock: u16| match self.late.asks(operation) {
            true => rates[usize::from(clock)],
            false => {
                let choice = self.choices.get(self.assignment[operation]);
                (choice.time_s, choice.effective_j)
            }
        };
        let latency_s = |clock: u16| self.rates.latency_s[usize::from(clock)];
        let costs = (at, latency_s);
        self.late.run(operation, start_s, (&self.end_s, &self.calls), clock, None, costs)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::schedule::name::Schedule;
    use crate::schedule::settings::Settings;
    use crate::step::delays::Delays;
    use crate::test_profiles::any_profile;

    proptest! {
        // After a change only what it moved is computed again, and that is all that differs.
        #[test]
        fn changes_leave_the_step_as_if_it_had_been_run_anew(
            profile in any_profile(3, 6),
            microbatches in 1_u32..5,
            latency_s in prop_oneof![1 => Just(0.0), 3 => 0.0_f64..0.3],
            set_call_s in prop::option::of(0.0_f64..0.4),
            held_up_s in prop::option::of(0.0_f64..0.1),
            by_clock in prop::option::of(prop::collection::vec((300_u32..1600, 0.0_f64..0.3), 2..4)),
            is_gpipe in any::<bool>(),
            changes in prop::collection::vec((0_usize..40, 0_u32..6, 1.0_f64..1.2), 1..40),
        ) {
            let schedule =
                if is_gpipe { Schedule::GPipe } else { Schedule::OneForwardOneBackward };
            let delays = Delays {
                switch_latency_s: latency_s,
                set_call_s: set_call_s.unwrap_or(0.0),
                held_up_s: held_up_s.unwrap_or(0.0),
                ..Delays::default()
            };
            let by_clock = by_clock.unwrap_or_default().into_iter().map(|(mhz, s)| (Mhz(mhz), s));
            // Who wrote a file may have said less, or more, for all clocks than for each.
            let delays = Delays { latency_by_clock: by_clock.collect(), ..delays };
            let settings = Settings { delays, ..Settings::default() };
            let pipeline =
                Pipeline::with_settings(&profile, schedule, microbatches, &settings).unwrap();
            let (network, power) = (pipeline.network(), Watts(80.0).into());
            let tradeoffs = Tradeoffs::new(&pipeline, &power);
            let choices = Choices::new(&tradeoffs);
            let late = LateClocks::new(network);
            let rates = Rates::new(&pipeline, &tradeoffs, &choices, &power);
            let mut step = LateStep::new(network, &choices, &late, &rates);
            for (operation, choice, stretch) in changes {
                let operation = operation % network.len();
                let (first, end) = choices.of(operation);
                let deadline_s = stretch * step.makespan_s();
                step.aim_at(deadline_s);
                let before_j = step.effective_j();
                let is_better = step.try_out(&[(operation, first + choice % (end - first))]);
                let mut anew = LateStep::new(network, &choices, &late, &rates);
                anew.load(step.assignment.clone());
                prop_assert_eq!(&step.start_s, &anew.start_s);
                prop_assert_eq!(&step.end_s, &anew.end_s);
                prop_assert_eq!(&step.calls, &anew.calls);
                prop_assert!((step.effective_j() - anew.effective_j()).abs() < 1e-9);
                prop_assert_eq!(is_better, step.effective_j() < before_j);
                prop_assert!(!is_better || step.makespan_s() <= deadline_s + 1e-9);
            }
            let durations_s: Vec<f64> =
                (0..network.len()).map(|op| step.end_s[op] - step.start_s[op]).collect();
            let mut anew = LateStep::new(network, &choices, &late, &rates);
            let deadline_s = step.makespan_s();
            step.carry(&durations_s, deadline_s);
            anew.carry(&durations_s, deadline_s);
            prop_assert_eq!(step.assignment, anew.assignment);
        }
    }
}

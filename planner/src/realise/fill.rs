//! Filling: slows operations down into the slack of a plan, best saving per second first.

use super::{Realiser, TOLERANCE_S};

impl Realiser<'_> {
    /// Uses all slack that some operation can use.
    pub(super) fn fill(&mut self, deadline_s: f64) {
        self.earliest();
        self.latest(deadline_s);
        self.is_due_behind.fill(false);
        self.is_due_before.fill(false);
        // An operation without slack never gets any: only the others are visited, last ones first, and of
        // these only those whose neighbours have moved or that save enough.
        let mut loose = std::mem::take(&mut self.loose);
        loose.clear();
        let mut most_w = 0.0;
        for operation in (0..self.network.len()).rev() {
            if !self.has_slack(operation) {
                continue;
            }
            loose.push(operation as u32);
            let window_s = self.latest_end_s[operation] - self.start_s[operation];
            self.find_saving(operation, window_s);
            most_w = f64::max(most_w, self.saves_w[operation]);
        }
        for level in 0..self.levels_w.len() {
            let least_w = self.levels_w[level];
            if most_w == 0.0 {
                break;
            }
            if least_w > most_w {
                continue;
            }
            let saves = |watts: f64| watts > 0.0 && watts >= least_w;
            loose.retain(|&operation| {
                let operation = operation as usize;
                let is_due = self.is_due_behind[operation] || saves(self.saves_w[operation]);
                !is_due || self.fill_from_behind(operation, least_w)
            });
            most_w = 0.0;
            for operation in loose.iter().rev().map(|&operation| operation as usize) {
                if self.is_due_before[operation] || saves(self.saves_w[operation]) {
                    self.fill_from_before(operation, least_w);
                }
                most_w = f64::max(most_w, self.saves_w[operation]);
            }
        }
        self.loose = loose;
    }

    fn has_slack(&self, operation: usize) -> bool {
        self.latest_end_s[operation] > self.end_s[operation] + TOLERANCE_S
    }

    /// Slows an operation down if that saves at least `least_w`, and starts it as late as its
    /// successors allow; returns whether it has slack left.
    fn fill_from_behind(&mut self, operation: usize, least_w: f64) -> bool {
        let end_s = self.latest_end_s(operation);
        let window_s = end_s - self.start_s[operation];
        self.slow_down(operation, window_s, least_w);
        let time_s = self.time_s(operation);
        self.latest_end_s[operation] = end_s;
        let latest_start_s = end_s - time_s;
        if latest_start_s != self.latest_start_s[operation] {
            self.latest_start_s[operation] = latest_start_s;
            for before in self.network.predecessors[operation] {
                self.is_due_behind[before as usize] = true;
            }
        }
        self.end(operation, self.start_s[operation] + time_s);
        self.is_due_behind[operation] = false;
        self.has_slack(operation)
    }

    /// The same, but starts it as early as its predecessors allow, and finds the most watts that it
    /// can still save. Later it cannot save more, because its window only shrinks.
    fn fill_from_before(&mut self, operation: usize, least_w: f64) {
        let start_s = self.earliest_start_s(operation);
        let window_s = self.latest_end_s[operation] - start_s;
        self.slow_down(operation, window_s, least_w);
        self.start_s[operation] = start_s;
        self.end(operation, start_s + self.time_s(operation));
        self.find_saving(operation, window_s);
        self.is_due_before[operation] = false;
    }

    /// Finds the most watts that an operation can still save within a time.
    fn find_saving(&mut self, operation: usize, window_s: f64) {
        let (present, most_s) = (self.assignment[operation], window_s + TOLERANCE_S);
        self.saves_w[operation] = self.choices.best_rate_within_w(operation, present, most_s);
    }

    /// Ends an operation at this time, which its neighbours see if it is another one.
    fn end(&mut self, operation: usize, end_s: f64) {
        if end_s == self.end_s[operation] {
            return;
        }
        self.end_s[operation] = end_s;
        self.is_due_behind[operation] = true;
        for after in self.network.successors[operation] {
            self.is_due_before[after as usize] = true;
        }
    }

    fn slow_down(&mut self, operation: usize, window_s: f64, least_w: f64) {
        let present = self.assignment[operation];
        let most_s = window_s + TOLERANCE_S;
        self.assignment[operation] =
            self.choices.worth_slowing_to(operation, present, most_s, least_w);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::choices::tradeoff::Tradeoffs;
    use crate::choices::{Choices, Realised};
    use crate::pipeline::Pipeline;
    use crate::profile::Profile;
    use crate::schedule::name::Schedule;
    use crate::test_profiles::profile;
    use pfo_vocabulary::Watts;

    /// Stages whose times are so coarse that slack is often used up to nothing.
    fn coarse_profile() -> impl Strategy<Value = Profile> {
        let row = (1_u32..12, 1.0_f64..60.0)
            .prop_map(|(tens_of_ms, joules)| (f64::from(tens_of_ms) * 0.01, joules));
        let table = || prop::collection::vec(row.clone(), 1..=6);
        prop::collection::vec([table(), table()], 1..=4).prop_map(|stages| {
            let stages: Vec<[&[(f64, f64)]; 2]> =
                stages.iter().map(|[f, b]| [f.as_slice(), b.as_slice()]).collect();
            profile(&stages)
        })
    }

    proptest! {
        #[test]
        fn filling_keeps_the_deadline_and_leaves_no_slack_that_an_operation_could_use(
            profile in coarse_profile(),
            microbatches in 1_u32..9,
            picks in prop::collection::vec(0_u32..8, 60),
            more_tens_of_ms in 0_u32..20,
        ) {
            let schedule = Schedule::OneForwardOneBackward;
            let pipeline = Pipeline::new(&profile, schedule, microbatches).unwrap();
            let choices = Choices::new(&Tradeoffs::new(&pipeline, &Watts(80.0).into()));
            let mut realiser = Realiser::new(pipeline.network(), &choices);
            for (operation, pick) in (0..realiser.network.len()).zip(picks.iter().cycle()) {
                let (first, end) = choices.of(operation);
                realiser.assignment[operation] = first + pick % (end - first);
            }
            let before = realiser.present();
            let deadline_s = before.time_s + f64::from(more_tens_of_ms) * 0.01;
            realiser.fill(deadline_s);
            let after = realiser.present();
            prop_assert!(after.time_s <= deadline_s + 1e-9, "{after:?}");
            let choices_of = |plan: &Realised| choices.all_unpacked(&plan.assignment);
            let (faster, slower) = (choices_of(&before), choices_of(&after));
            prop_assert!(faster.iter().zip(&slower).all(|(a, b)| a <= b));
            realiser.latest(deadline_s);
            for operation in 0..realiser.network.len() {
                let window_s = realiser.latest_end_s[operation] - realiser.start_s[operation];
                let present = realiser.assignment[operation];
                if present + 1 < choices.of(operation).1 {
                    prop_assert!(choices.get(present + 1).time_s > window_s - 1e-9);
                }
            }
        }
    }
}

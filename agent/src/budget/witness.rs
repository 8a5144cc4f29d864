//! What the GPUs of a job drew, by their counters and the agent's clock. When its steps began is a trainer's
//! word: one that says they took longer would seem to draw less. Pure.

use std::collections::VecDeque;

/// Readings that are kept, and that there are at least before anything follows from them.
const MOST: usize = 12;
const LEAST: usize = 3;

/// For what counters scatter.
const SCATTER: f64 = 0.98;

#[derive(Clone, Copy, Debug)]
struct Reading {
    at_s: f64,
    /// For how long before it nobody has looked.
    unseen_s: f64,
    energy_j: f64,
}

/// Readings of the counters under one swap, of looks at which they had gone on.
#[derive(Clone, Debug, Default)]
pub(super) struct Witness {
    now_s: f64,
    swap: u64,
    readings: VecDeque<Reading>,
}

impl Witness {
    /// Takes what the counters of all ranks on the node have come to, so long after the last time.
    pub(super) fn take(&mut self, swap: u64, energy_j: Option<f64>, elapsed_s: f64) {
        self.now_s += elapsed_s;
        let before_j = self.readings.back().map(|last| last.energy_j);
        let is_anew = energy_j.zip(before_j).is_none_or(|(now_j, before_j)| now_j < before_j);
        if swap != self.swap || is_anew {
            (self.swap, self.readings) = (swap, VecDeque::new());
        }
        let Some(energy_j) = energy_j.filter(|now_j| Some(*now_j) != before_j) else { return };
        if self.readings.len() == MOST {
            self.readings.pop_front();
        }
        let reading = Reading { at_s: self.now_s, unseen_s: elapsed_s, energy_j };
        self.readings.push_back(reading);
    }

    /// The least power that was drawn, in watts, independently of the trainer's reports; none
    /// before enough readings. A counter is read when a step begins, so the first reading may be as
    /// old as the look before it.
    pub(super) fn least_w(&self) -> Option<f64> {
        let (first, last) = (self.readings.front()?, self.readings.back()?);
        if self.readings.len() <= LEAST {
            return None;
        }
        let longest_s = last.at_s - first.at_s + first.unseen_s;
        Some(SCATTER * (last.energy_j - first.energy_j) / longest_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is known after looks every two seconds at a job of 500 W whose steps take so long.
    fn after(step_s: f64, looks: u32) -> Option<f64> {
        let mut witness = Witness::default();
        for look in 1..=looks {
            let steps = (2.0 * f64::from(look) / step_s).floor();
            witness.take(1, Some(500.0 * step_s * steps), 2.0);
        }
        witness.least_w()
    }

    #[test]
    fn it_is_never_more_than_was_drawn_and_nearly_as_much_however_long_steps_take() {
        for step_s in [0.01, 0.7, 1.9, 2.0, 3.3, 17.0] {
            let least_w = after(step_s, 200).unwrap();
            assert!((400.0..=500.0).contains(&least_w), "{least_w} W, steps of {step_s} s");
        }
        assert_eq!(after(0.5, 3), None);
    }

    #[test]
    fn another_plan_or_other_counters_begin_anew() {
        let mut witness = Witness::default();
        for look in 1..9 {
            witness.take(1, Some(100.0 * f64::from(look)), 2.0);
        }
        assert!(witness.least_w().is_some());
        let mut swapped = witness.clone();
        swapped.take(2, Some(900.0), 2.0);
        assert_eq!(swapped.least_w(), None);
        witness.take(1, Some(5.0), 2.0);
        assert_eq!(witness.least_w(), None);
    }
}

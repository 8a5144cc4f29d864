//! The time and energy of each step of a trial on one rank, computed from the rank's records and
//! the readings of its GPU's counter as they arrive. Pure.

use std::collections::VecDeque;
use std::ops::Range;

use pfo_protocol::TapRecord;

use super::curve::{Knot, energy_between};

/// How long to wait for the counter after the last step.
const PATIENCE_NS: u64 = 5_000_000_000;

/// Readings kept until records up to their time arrive. A rank that is silent for longer has
/// nothing to measure.
const MOST_PENDING: usize = 1 << 16;

/// A step as one rank began it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StepMark {
    /// The step's number.
    pub(super) step: u64,
    /// When the step began.
    pub(super) at_ns: u64,
    /// What the counter showed at that time, in joules.
    pub(super) energy_j: Option<f64>,
}

/// The steps of one rank.
#[derive(Debug, Default)]
pub(super) struct StepEnergies {
    range: Option<Range<u64>>,
    steps: Vec<StepMark>,
    /// Steps whose energy has been looked up.
    steps_read: usize,
    step_counts: bool,
    /// When the last step of the range ended.
    over_ns: Option<u64>,
    mismatched_steps: u64,
    known_ns: u64,
    pending: VecDeque<(u64, Option<f64>)>,
    /// The newest reading taken.
    newest: Option<Knot>,
    sampled_ns: u64,
    lost: bool,
    ended: bool,
}

impl StepEnergies {
    /// Whether the counter was read, or the rank has none.
    pub(super) fn is_ready(&self) -> bool {
        self.newest.is_some() || self.pending.iter().any(|(_, energy_j)| energy_j.is_some())
    }

    /// Whether it counts the trial whose first measured step this is. Until then it may count those
    /// of an earlier trial.
    pub(super) fn counts_from(&self, first_step: u64) -> bool {
        self.range.as_ref().is_some_and(|range| range.start == first_step)
    }

    /// Whether the measurement is complete.
    pub(super) fn is_complete(&self) -> bool {
        let read = |over_ns: u64| {
            self.steps_read == self.steps.len()
                || self.sampled_ns > over_ns.saturating_add(PATIENCE_NS)
        };
        self.over_ns.is_some_and(read)
    }

    /// Whether records are missing, or the session has ended.
    pub(super) fn is_broken(&self) -> bool {
        self.lost || self.ended
    }

    /// Whether the rank reported every step of the range, and the one after it.
    pub(super) fn is_whole(&self) -> bool {
        let range = self.range.clone().unwrap_or_default();
        self.steps.iter().map(|mark| mark.step).eq(range.start..=range.end)
    }

    /// Every step of the range and the one after it.
    pub(super) fn steps(&self) -> &[StepMark] {
        &self.steps
    }

    /// Steps of the range that did not follow the plan.
    pub(super) fn mismatched_steps(&self) -> u64 {
        self.mismatched_steps
    }

    /// Takes records; `lost` ones before them are missing.
    pub(super) fn take(&mut self, lost: u64, records: &[TapRecord]) {
        self.lost |= lost > 0 && self.range.is_some();
        for record in records {
            match *record {
                TapRecord::TrialBegan { first_step, steps } => {
                    self.begin_trial(first_step..first_step.saturating_add(steps.into()));
                }
                TapRecord::StepBegan { step, at_ns, astray } => {
                    self.end_step(astray);
                    self.begin_step(step, at_ns);
                    self.know_until(at_ns);
                }
                TapRecord::StepEnded { at_ns, astray } => {
                    self.end_step(astray);
                    self.know_until(at_ns);
                }
                TapRecord::Ran { ended_ns, .. } => self.know_until(ended_ns),
                TapRecord::Counter(reading) => self.wait_for(reading.at_ns, reading.energy_j),
                TapRecord::Ended => self.ended = true,
            }
        }
    }

    /// Starts counting the steps of this range. Anything counted so far belongs to an earlier
    /// trial, whose records were still on their way.
    fn begin_trial(&mut self, range: Range<u64>) {
        *self = Self {
            range: Some(range),
            known_ns: self.known_ns,
            pending: std::mem::take(&mut self.pending),
            newest: self.newest,
            sampled_ns: self.sampled_ns,
            ended: self.ended,
            ..Self::default()
        };
    }

    fn begin_step(&mut self, step: u64, at_ns: u64) {
        let Some(range) = &self.range else { return };
        if range.contains(&step) || self.step_counts && step == range.end {
            self.steps.push(StepMark { step, at_ns, energy_j: None });
        }
        if step >= range.end && self.over_ns.is_none() {
            self.over_ns = Some(at_ns);
        }
        self.step_counts = range.contains(&step);
    }

    fn end_step(&mut self, astray: bool) {
        if astray && self.step_counts {
            self.mismatched_steps = self.mismatched_steps.saturating_add(1);
        }
    }

    /// Everything up to this time is known: readings until then can be taken.
    fn know_until(&mut self, at_ns: u64) {
        self.known_ns = self.known_ns.max(at_ns);
        while let Some((at_ns, energy_j)) =
            self.pending.pop_front_if(|(at_ns, _)| *at_ns <= self.known_ns)
        {
            self.sampled_ns = self.sampled_ns.max(at_ns);
            if let Some(energy_j) = energy_j {
                self.read_counter(Knot { at_ns, energy_j });
            }
        }
    }

    fn wait_for(&mut self, at_ns: u64, energy_j: Option<f64>) {
        if self.pending.len() >= MOST_PENDING {
            self.pending.clear();
            self.newest = None;
        }
        self.pending.push_back((at_ns, energy_j));
        self.know_until(self.known_ns);
    }

    fn read_counter(&mut self, knot: Knot) {
        let Some(before) = self.newest.replace(knot) else { return };
        let unread = self.steps.get_mut(self.steps_read..).unwrap_or_default();
        for mark in unread.iter_mut().take_while(|mark| mark.at_ns <= knot.at_ns) {
            mark.energy_j = energy_between(before, knot, mark.at_ns);
            self.steps_read = self.steps_read.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{CounterReading, ThrottledNs};

    use super::*;

    const MS: u64 = 1_000_000;

    fn step(step: u64, at_ms: u64) -> TapRecord {
        TapRecord::StepBegan { step, at_ns: at_ms * MS, astray: false }
    }

    fn counter(at_ms: u64, energy_j: f64) -> TapRecord {
        TapRecord::Counter(CounterReading {
            at_ns: at_ms * MS,
            energy_j: Some(energy_j),
            read_ns: at_ms * MS,
            sm_clock: None,
            throttled_ns: ThrottledNs::default(),
            throttle_reasons: 0,
        })
    }

    fn trial() -> TapRecord {
        TapRecord::TrialBegan { first_step: 2, steps: 2 }
    }

    #[test]
    fn each_step_has_what_the_counter_showed_when_it_began() {
        let mut energies = StepEnergies::default();
        energies.take(0, &[counter(0, 0.0), step(1, 10), trial(), step(2, 100)]);
        // A reading may come before the record of an earlier moment.
        energies.take(0, &[counter(200, 200.0), step(3, 150)]);
        energies.take(0, &[step(4, 210), counter(300, 300.0)]);
        assert!(!energies.is_complete());
        energies.take(0, &[step(5, 400)]);
        assert!(energies.is_complete() && energies.is_whole() && !energies.is_broken());
        let energies: Vec<_> = energies.steps().iter().map(|mark| mark.energy_j.unwrap()).collect();
        assert_eq!(energies, [100.0, 150.0, 210.0]);
    }

    #[test]
    fn what_is_still_on_its_way_from_an_earlier_trial_counts_for_nothing() {
        let mut energies = StepEnergies::default();
        let earlier = TapRecord::TrialBegan { first_step: 0, steps: 1 };
        let astray = TapRecord::StepEnded { at_ns: 5 * MS, astray: true };
        energies.take(0, &[earlier, counter(0, 0.0), step(0, 1), astray, step(1, 10)]);
        energies.take(7, &[trial()]);
        assert!(energies.is_ready() && !energies.is_complete() && !energies.is_broken());
        energies.take(
            0,
            &[step(2, 100), step(3, 150), step(4, 210), counter(300, 300.0), step(5, 400)],
        );
        assert!(energies.is_complete() && energies.is_whole());
        assert_eq!((energies.steps().len(), energies.mismatched_steps()), (3, 0));
    }

    #[test]
    fn a_rank_without_a_counter_is_waited_for_in_vain_only_for_a_while() {
        let mut energies = StepEnergies::default();
        energies.take(0, &[trial(), step(2, 0), step(3, 10), step(4, 20)]);
        assert!(energies.is_whole() && !energies.is_complete());
        let silent = CounterReading {
            at_ns: 5100 * MS,
            energy_j: None,
            read_ns: 5100 * MS,
            sm_clock: None,
            throttled_ns: ThrottledNs::default(),
            throttle_reasons: 0,
        };
        energies.take(0, &[TapRecord::Counter(silent), step(5, 5200)]);
        assert!(energies.is_complete());
        assert!(energies.steps().iter().all(|mark| mark.energy_j.is_none()));
    }

    #[test]
    fn a_step_that_is_skipped_a_loss_and_an_end_are_noticed() {
        let mut skipped = StepEnergies::default();
        skipped.take(0, &[trial(), step(2, 0), step(4, 10)]);
        assert!(!skipped.is_whole());
        let mut lossy = StepEnergies::default();
        lossy.take(1, &[trial(), step(2, 0)]);
        assert!(!lossy.is_broken(), "lost before the trial");
        lossy.take(1, &[step(3, 5)]);
        assert!(lossy.is_broken());
        let mut ended = StepEnergies::default();
        ended.take(0, &[TapRecord::Ended]);
        assert!(ended.is_broken());
    }

    #[test]
    fn times_and_numbers_at_their_end_do_no_harm() {
        let mut energies = StepEnergies::default();
        let last = TapRecord::TrialBegan { first_step: u64::MAX, steps: u32::MAX };
        let at = |step| TapRecord::StepBegan { step, at_ns: u64::MAX, astray: true };
        energies.take(u64::MAX, &[last, at(u64::MAX), at(u64::MAX), counter(1, 1.0)]);
        let _ = (energies.is_complete(), energies.is_whole());
    }
    #[test]
    fn steps_whose_times_run_backwards_are_whole_and_have_an_energy_or_none() {
        let mut energies = StepEnergies::default();
        energies.take(0, &[counter(0, 0.0), trial(), step(2, 300), step(3, 200), step(4, 100)]);
        energies.take(0, &[counter(150, 10.0), counter(400, 20.0), step(5, 500)]);
        assert!(energies.is_whole() && !energies.is_broken());
        assert!(energies.steps().iter().filter_map(|mark| mark.energy_j).all(f64::is_finite));
    }

    #[test]
    fn a_trial_at_the_last_steps_of_all_is_over_or_not_but_does_no_harm() {
        for first_step in [u64::MAX - 1, u64::MAX] {
            let mut energies = StepEnergies::default();
            energies.take(0, &[TapRecord::TrialBegan { first_step, steps: 1 }]);
            for step in [u64::MAX - 1, u64::MAX, 0, u64::MAX] {
                let at_ns = u64::MAX;
                energies.take(0, &[TapRecord::StepBegan { step, at_ns, astray: false }]);
                energies.take(0, &[TapRecord::StepEnded { at_ns, astray: true }]);
            }
            let _ = (energies.is_complete(), energies.is_whole(), energies.mismatched_steps());
        }
    }

    #[test]
    fn readings_that_no_record_ever_reaches_are_forgotten_in_the_end() {
        let mut energies = StepEnergies::default();
        (1..=MOST_PENDING as u64 + 5).for_each(|at_ms| energies.take(0, &[counter(at_ms, 1.0)]));
        assert!(energies.pending.len() <= MOST_PENDING);
    }
}

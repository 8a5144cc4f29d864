//! The progress of a sweep as it is on disk, and what follows from it: what to measure next, or the
//! end.

use std::io;
use std::ops::Not;

use pfo_protocol::{
    JobName, Mhz, ProfileKey, RecordedTrial, SweepEnd, SweepSettings, SweepState, SweepStatus,
    TrialLength, TrialRun, Uid,
};
use serde::{Deserialize, Serialize};

use crate::job::JobKey;
use crate::profile::ProfileStore;
use crate::sweep::enough::{self, GOOD_ERROR};
use crate::sweep::estimate::at_most_s;
use crate::sweep::obstacle::Obstacle;
use crate::sweep::rising::Rising;
use crate::sweep::shape::JobShape;
use crate::sweep::swept::{SweptClock, instructions, median_step_s, profile_csv};

/// Lines of a profile. Sixteen GPUs with four kinds of instructions and a hundred clocks have 6400;
/// one takes some 100 bytes.
const MOST_ROWS: usize = 32_768;

/// How often to repeat a trial in which the energy of an instruction is unknown. On a busy node it
/// is known in the next trial; that of an instruction too short for the counter never is.
const MOST_REPEATS: u32 = 2;

/// A sweep, without its state at this moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SweepRecord {
    /// The owner of the job.
    pub(crate) uid: Uid,
    /// The name of the job.
    pub(crate) job: JobName,
    /// Who began the sweep.
    pub(crate) by_uid: Uid,
    /// The model that the job trains.
    pub(crate) model: JobName,
    /// How it sweeps.
    pub(crate) settings: SweepSettings,
    /// The ranks that it is about.
    pub(crate) shape: JobShape,
    /// The clocks, from the highest down.
    pub(crate) clocks: Vec<Mhz>,
    /// Why it is paused, if it is.
    pub(crate) pause: Option<Pause>,
    /// Whether it has an attendant, without whom it must not continue.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub(crate) attended: bool,
    default_step_s: Option<f64>,
    /// Each clock that was tried, without rows if it could not be had.
    measured: Vec<SweptClock>,
    /// Why the last one that has no rows could not be had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unheld: Option<String>,
    /// How often the trial of the next clock was repeated.
    #[serde(default)]
    repeats: u32,
    /// The steps of its next trial, if more than asked for.
    #[serde(default)]
    more_steps: u32,
}

/// Why a sweep is paused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pause {
    /// None if a user asked for it.
    pub(crate) why: Option<String>,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// To measure a step at default clocks.
    DefaultClocks,
    /// To measure this clock.
    Clock(Mhz),
    /// Nothing: the profile is complete.
    End(SweepEnd),
}

impl SweepRecord {
    /// A sweep that has measured nothing.
    pub(crate) fn new(
        job: JobKey,
        by_uid: Uid,
        model: JobName,
        settings: SweepSettings,
        shape: JobShape,
        clocks: Vec<Mhz>,
    ) -> Self {
        let JobKey { uid, name: job } = job;
        Self {
            uid,
            job,
            by_uid,
            model,
            settings,
            shape,
            clocks,
            pause: None,
            attended: false,
            default_step_s: None,
            measured: Vec::new(),
            unheld: None,
            repeats: 0,
            more_steps: 0,
        }
    }

    pub(crate) fn key(&self) -> JobKey {
        JobKey { uid: self.uid, name: self.job.clone() }
    }

    pub(crate) fn profile(&self) -> ProfileKey {
        self.shape.key(self.uid, self.model.clone())
    }

    /// Whether it has measured a clock.
    pub(crate) fn has_measured(&self) -> bool {
        self.measured.iter().any(|clock| !clock.rows.is_empty())
    }

    /// The profile of what was measured.
    pub(crate) fn csv(&self) -> String {
        profile_csv(&self.measured)
    }

    /// Stores the profile of what was measured.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn store(&self, profiles: &ProfileStore) -> io::Result<()> {
        profiles.write(&self.profile(), &self.csv())
    }

    /// What comes next.
    pub(crate) fn next(&self) -> Next {
        if self.settings.max_slowdown.is_some() && self.default_step_s.is_none() {
            return Next::DefaultClocks;
        }
        if self.measured.last().is_some_and(|last| self.is_too_slow(last)) {
            return Next::End(SweepEnd::TooSlow);
        }
        let mut rising = Rising::default();
        self.measured.iter().for_each(|clock| rising.add(clock.energies()));
        if rising.far_enough() {
            return Next::End(SweepEnd::EnergyRises);
        }
        let next = self.left().first();
        next.map_or(Next::End(SweepEnd::LowestClock), |clock| Next::Clock(*clock))
    }

    /// The clocks that are left to measure, from the highest down. Clocks above the one that the GPUs
    /// really had at the last one would only measure that once more.
    fn left(&self) -> &[Mhz] {
        let Some(last) = self.measured.last() else { return &self.clocks };
        let lower = &self.clocks[self.clocks.partition_point(|clock| *clock >= last.mhz)..];
        let is_held = |held_mhz| lower.partition_point(|clock| f64::from(clock.0) >= held_mhz);
        &lower[last.held_mhz().map_or(0, is_held).saturating_sub(1)..]
    }

    fn is_too_slow(&self, clock: &SweptClock) -> bool {
        let limit = self.default_step_s.zip(self.settings.max_slowdown);
        limit.is_some_and(|(default_s, slowdown)| clock.step_s > default_s * (1.0 + slowdown))
    }

    /// Whether a trial has every instruction that the first one had.
    fn is_whole(&self, clock: &SweptClock, trial: &RecordedTrial) -> bool {
        let first = self.measured.iter().find(|clock| !clock.rows.is_empty());
        let expected = first.map_or_else(|| instructions(trial), SweptClock::instructions);
        expected.is_subset(&clock.instructions())
    }

    /// Adds the trial of what came [next](Self::next).
    ///
    /// # Errors
    /// Why the trial is of no use, in words.
    pub(crate) fn take(&mut self, trial: &RecordedTrial) -> Result<(), String> {
        match self.next() {
            Next::DefaultClocks => self.default_step_s = Some(median_step_s(&trial.trial.steps)),
            Next::Clock(mhz) => {
                let clock = SweptClock::of(mhz, trial);
                let is_whole = self.is_whole(&clock, trial);
                let steps = self.length().steps;
                let error = is_whole.then(|| clock.worst_error());
                let more_steps = enough::steps(self.settings.steps, steps, clock.step_s, error);
                let obstacle = Obstacle::of(trial);
                let is_unheld = !is_whole && matches!(obstacle, Obstacle::OtherClock { .. });
                let is_worth_repeating = self.repeats < MOST_REPEATS
                    && !is_unheld
                    && !self.is_too_slow(&clock)
                    && error.is_none_or(|error| error > GOOD_ERROR && more_steps > steps);
                if is_worth_repeating {
                    (self.repeats, self.more_steps) = (self.repeats.saturating_add(1), more_steps);
                    return Ok(());
                }
                (self.repeats, self.more_steps) = (0, 0);
                if clock.energies().is_empty() {
                    let is_last = self.clocks.last() == Some(&mhz) && !self.has_measured();
                    if !is_unheld || is_last {
                        return Err(format!(
                            "no energy of an instruction could be measured at {mhz}: {obstacle}"
                        ));
                    }
                    self.unheld = Some(format!("{mhz} is left out: {obstacle}"));
                }
                let rows: usize = self.measured.iter().map(|clock| clock.rows.len()).sum();
                if rows.saturating_add(clock.rows.len()) > MOST_ROWS {
                    return Err(format!("its profile would have more than {MOST_ROWS} lines"));
                }
                self.measured.push(clock);
                self.more_steps = if is_unheld { 0 } else { more_steps };
            }
            Next::End(_) => {}
        }
        Ok(())
    }

    /// The length of the next trial.
    pub(crate) fn length(&self) -> TrialLength {
        let SweepSettings { settling_steps, steps, .. } = self.settings;
        TrialLength { settling_steps, steps: steps.max(self.more_steps) }
    }

    pub(crate) fn status(&self, state: SweepState) -> SweepStatus {
        let next = self.next();
        let last = self.measured.last();
        SweepStatus {
            job: self.job.clone(),
            profile: self.profile(),
            settings: self.settings,
            mhz: match next {
                Next::Clock(mhz) if !matches!(state, SweepState::Ended(_)) => Some(mhz),
                _ => None,
            },
            measured: self.measured.len() as u32,
            clocks: self.clocks.len() as u32,
            remark: self.remark(),
            step_time_s: last.map(|clock| clock.step_s),
            default_step_time_s: self.default_step_s,
            remaining_s: self.remaining_s(next).filter(|_| !matches!(state, SweepState::Ended(_))),
            state,
        }
    }

    /// What the clocks have shown that is not in the figures.
    fn remark(&self) -> Option<String> {
        let held_back = self.measured.iter().find_map(SweptClock::held_back);
        let remarks: Vec<String> = held_back.into_iter().chain(self.unheld.clone()).collect();
        (!remarks.is_empty()).then(|| remarks.join("; "))
    }

    fn remaining_s(&self, next: Next) -> Option<f64> {
        let Next::Clock(_) = next else { return None };
        let at_default = || Some((*self.clocks.first()?, self.default_step_s?));
        let last = self.measured.last().map(|clock| (clock.mhz, clock.step_s));
        let TrialLength { settling_steps, steps } = self.length();
        let steps = settling_steps.saturating_add(steps);
        Some(at_most_s(self.left(), steps, last.or_else(at_default)?))
    }
}

impl Next {
    /// What the job is to run for it; none if nothing is to be measured.
    pub(crate) fn run(self) -> Option<TrialRun> {
        match self {
            Self::DefaultClocks => Some(TrialRun::DefaultClocks),
            Self::Clock(mhz) => Some(TrialRun::Uniform(mhz)),
            Self::End(_) => None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use pfo_protocol::{Instruction, LeftOut, TrialResult, TrialStep};
    use proptest::prelude::*;

    use super::*;
    use crate::sweep::shape;
    use crate::sweep::swept::tests::trial;

    pub(crate) fn record(max_slowdown: Option<f64>, clocks: u32) -> SweepRecord {
        let settings = SweepSettings {
            steps: 4,
            settling_steps: 1,
            stride_mhz: Mhz(1),
            min_mhz: Mhz(0),
            max_slowdown,
        };
        SweepRecord::new(
            JobKey { uid: Uid(7), name: "team/j".parse().unwrap() },
            Uid(7),
            "gpt".parse().unwrap(),
            settings,
            shape::example(),
            (0..clocks).map(|rung| Mhz(1400 - 10 * rung)).collect(),
        )
    }

    /// What a job with a valley of energy takes.
    fn measure(next: Next, valley_mhz: u32) -> RecordedTrial {
        let mhz = match next {
            Next::Clock(mhz) => mhz.0,
            _ => 1400,
        };
        let energy_j = 10.0 + f64::from(mhz.abs_diff(valley_mhz));
        let time_s = 1400.0 / f64::from(mhz);
        trial(time_s, &[&[(Instruction::Forward, time_s / 2.0, Some(energy_j))]])
    }

    fn through_json(record: &SweepRecord) -> SweepRecord {
        serde_json::from_slice(&serde_json::to_vec(record).unwrap()).unwrap()
    }

    /// Everything that a sweep measures, and why it ends; `restart` is done before each trial.
    fn sweep(
        mut record: SweepRecord,
        valley_mhz: u32,
        restart: impl Fn(&SweepRecord) -> SweepRecord,
    ) -> (Vec<Next>, SweepEnd) {
        let mut ran = Vec::new();
        loop {
            record = restart(&record);
            match record.next() {
                Next::End(end) => return (ran, end),
                next => {
                    record.take(&measure(next, valley_mhz)).unwrap();
                    ran.push(next);
                }
            }
        }
    }

    fn clock(next: &Next) -> u32 {
        match next {
            Next::Clock(mhz) => mhz.0,
            _ => u32::MAX,
        }
    }

    #[test]
    fn default_clocks_are_measured_first_where_a_slowdown_is_to_be_kept() {
        let (ran, end) = sweep(record(Some(0.05), 40), 0, Clone::clone);
        assert_eq!((ran[0], end), (Next::DefaultClocks, SweepEnd::TooSlow));
        // 1400 / 1.05 = 1333
        assert_eq!(ran.last(), Some(&Next::Clock(Mhz(1330))));
    }

    #[test]
    fn without_a_rise_the_lowest_clock_is_the_last() {
        let (ran, end) = sweep(record(None, 12), 0, Clone::clone);
        assert_eq!((ran.len(), end), (12, SweepEnd::LowestClock));
    }

    #[test]
    fn a_trial_without_any_energy_is_refused_and_changes_nothing() {
        let mut record = record(None, 3);
        let before = record.clone();
        let trial = trial(1.0, &[&[(Instruction::Forward, 0.5, None)]]);
        (0..MOST_REPEATS).for_each(|_| record.take(&trial).unwrap());
        assert!(record.take(&trial).unwrap_err().contains("1400 MHz"));
        assert_eq!(record, before);
    }

    /// A trial of one rank whose GPU really had this clock, if forwards were measured.
    fn at_clock(observed_mhz: f64, forward_j: Option<f64>, left_out: LeftOut) -> RecordedTrial {
        let mut trial = trial(1.0, &[&[(Instruction::Forward, 0.5, forward_j)]]);
        let row = &mut trial.ranks[0].rows[0];
        (row.observed_mhz, row.left_out) = (Some(observed_mhz), left_out);
        row.throttled = forward_j.map(|_| 1.0);
        row.count = if forward_j.is_some() { 4 } else { 0 };
        trial
    }

    #[test]
    fn clocks_above_the_one_that_a_power_cap_holds_are_measured_once() {
        let mut record = record(None, 40);
        record.take(&at_clock(1307.0, Some(9.0), LeftOut::default())).unwrap();
        // The lowest clock that leads to 1307 MHz.
        assert_eq!(record.next(), Next::Clock(Mhz(1310)));
        record.take(&at_clock(1307.0, Some(9.0), LeftOut::default())).unwrap();
        assert_eq!(record.next(), Next::Clock(Mhz(1300)));
        record.take(&at_clock(1300.0, Some(8.9), LeftOut::default())).unwrap();
        assert_eq!(record.next(), Next::Clock(Mhz(1290)));
        let remark = through_json(&record).status(SweepState::Running).remark.unwrap();
        assert_eq!(remark, "power limits hold the GPUs at 1307 MHz where 1400 MHz was asked for");
        let csv = record.csv();
        assert!(csv.lines().nth(1).unwrap().ends_with(",1307,1"), "{csv}");
        let profile = pfo_planner::Profile::from_csv(csv.as_bytes()).unwrap();
        assert_eq!(profile.rows().count(), 2, "1400 MHz is no faster than 1310 MHz");
    }

    #[test]
    fn a_clock_that_gpus_do_not_have_for_no_reason_is_skipped_at_once_and_named() {
        let elsewhere = LeftOut { other_clock: 4, ..LeftOut::default() };
        let mut record = record(None, 3);
        for clock in [1400, 1390] {
            assert_eq!(record.next(), Next::Clock(Mhz(clock)));
            record.take(&at_clock(1200.0, None, elsewhere)).unwrap();
        }
        assert!(!record.has_measured());
        let remark = through_json(&record).status(SweepState::Running).remark.unwrap();
        for words in ["1390 MHz is left out", "rank 0 runs at 1200 MHz", "no reason"] {
            assert!(remark.contains(words), "no {words:?} in {remark:?}");
        }
        let before = record.clone();
        let nothing = record.take(&at_clock(1200.0, None, elsewhere)).unwrap_err();
        assert!(nothing.contains("1380 MHz: the GPU of rank 0 runs at 1200 MHz"), "{nothing}");
        assert_eq!(record, before);
        record.take(&at_clock(1380.0, Some(9.0), LeftOut::default())).unwrap();
        assert_eq!(record.next(), Next::End(SweepEnd::LowestClock));
    }

    #[test]
    fn a_trial_in_which_heat_left_everything_out_says_so() {
        let hot = LeftOut { throttled: 4, settling: 1, ..LeftOut::default() };
        let mut record = record(None, 3);
        let trial = at_clock(900.0, None, hot);
        (0..MOST_REPEATS).for_each(|_| record.take(&trial).unwrap());
        let error = record.take(&trial).unwrap_err();
        assert!(error.contains("heat") && error.contains("rank 0"), "{error}");
    }

    #[test]
    fn a_clock_at_which_something_is_missing_is_measured_again_but_not_for_ever() {
        let ran = |load_j, forward_j| {
            trial(
                1.0,
                &[&[(Instruction::Load, 0.1, load_j), (Instruction::Forward, 0.5, forward_j)]],
            )
        };
        let mut record = record(Some(0.5), 9);
        let mut take = |trial: &RecordedTrial| {
            record.take(trial).unwrap();
            record.status(SweepState::Running).measured
        };
        let measured =
            [(Some(1.0), Some(9.0)), (None, Some(9.0)), (None, Some(9.0)), (None, Some(9.0))]
                .map(|(load_j, forward_j)| take(&ran(load_j, forward_j)));
        assert_eq!(measured, [0, 0, 0, 1], "default clocks, then one that never has its load");
        // It was not measured at the first clock either.
        assert_eq!(take(&ran(None, Some(8.0))), 2);
        assert_eq!([take(&ran(None, None)), take(&ran(None, Some(7.0)))], [2, 3]);
        let whole = ran(Some(1.0), None);
        let steps = vec![TrialStep { time_s: 9.0, energy_j: None }];
        let slow = RecordedTrial { trial: TrialResult { steps, ..whole.trial }, ..whole };
        assert!(record.take(&slow).is_err(), "what is too slow is not tried again");
    }

    #[test]
    fn what_is_too_short_for_the_counter_is_measured_for_more_steps_and_from_then_on() {
        let ran = |step_s, error: f64| {
            let mut trial = trial(step_s, &[&[(Instruction::Forward, 0.001, Some(1.0))]]);
            // Of four.
            trial.ranks[0].rows[0].energy_sd_j = Some(2.0 * error);
            trial
        };
        let mut record = record(None, 9);
        let mut take = |trial: RecordedTrial| {
            record.take(&trial).unwrap();
            (record.status(SweepState::Running).measured, record.length().steps)
        };
        assert_eq!(take(ran(0.1, 0.020)), (0, 96), "sixteen times as many, and some to spare");
        assert_eq!(take(ran(0.1, 0.005)), (1, 144));
        assert_eq!(take(ran(0.1, 0.001)), (2, 8), "less is enough");
        assert_eq!(take(ran(0.1, 0.0)), (3, 4), "but not less than asked for");
        assert_eq!(take(ran(5.0, 0.1)), (4, 4), "that would take too long");
        assert_eq!(take(ran(0.1, 0.1)), (4, 200));
        assert_eq!(take(ran(0.1, 0.1)), (5, 200), "as long as it may");
    }

    #[test]
    fn a_profile_does_not_grow_without_end() {
        let mut record = record(None, 40);
        let rows = vec![(Instruction::Forward, 0.5, Some(1.0)); 10_000];
        let took: Vec<_> = (0..4).map(|_| record.take(&trial(1.0, &[&rows])).is_ok()).collect();
        assert_eq!(took, [true, true, true, false]);
    }

    #[test]
    fn a_status_tells_how_far_it_is_and_how_long_it_takes_at_most() {
        let mut record = record(None, 3);
        assert_eq!(record.status(SweepState::Running).remaining_s, None);
        record.take(&measure(record.next(), 0)).unwrap();
        let status = record.status(SweepState::Running);
        assert_eq!((status.measured, status.clocks, status.mhz), (1, 3, Some(Mhz(1390))));
        let left_s = 5.0 * (1400.0 / 1390.0 + 1400.0 / 1380.0);
        assert!((status.remaining_s.unwrap() - left_s).abs() < 1e-9, "{status:?}");
        let ended = record.status(SweepState::Ended(SweepEnd::Stopped));
        assert_eq!((ended.mhz, ended.remaining_s), (None, None));
    }

    proptest! {
        #[test]
        fn a_sweep_falls_keeps_the_slowdown_and_is_the_same_through_any_number_of_restarts(
            valley_mhz in 800u32..1400,
            clocks in 1u32..50,
            max_slowdown in prop::option::of(0.0f64..1.0),
        ) {
            let (ran, end) = sweep(record(max_slowdown, clocks), valley_mhz, Clone::clone);
            prop_assert!(ran.iter().map(clock).rev().is_sorted());
            if let (Some(slowdown), Some((_, kept))) = (max_slowdown, ran.split_last()) {
                let slowest = kept.iter().skip(1).map(|next| 1400.0 / f64::from(clock(next)));
                prop_assert!(slowest.fold(0.0, f64::max) <= 1.0 + slowdown);
            }
            let again = sweep(record(max_slowdown, clocks), valley_mhz, through_json);
            prop_assert_eq!((ran, end), again);
        }
    }
}

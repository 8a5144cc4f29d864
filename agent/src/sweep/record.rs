//! The progress of a sweep as it is on disk, and what follows from it: what to measure next, or the
//! end.

use std::collections::BTreeSet;
use std::io;
use std::ops::Not;

use pfo_protocol::{
    JobName, Mhz, ProfileKey, Rank, RecordedTrial, SweepEnd, SweepSettings, SweepState,
    SweepStatus, TrialLength, TrialRun, Uid,
};
use serde::{Deserialize, Serialize};

use crate::job::JobKey;
use crate::profile::ProfileStore;
use crate::sweep::enough::{self, GOOD_ERROR};
use crate::sweep::estimate::at_most_s;
use crate::sweep::obstacle::Obstacle;
use crate::sweep::replicas::{self, Levels};
use crate::sweep::rising::Rising;
use crate::sweep::shape::JobShape;
use crate::sweep::swept::{SweptClock, instructions, median_step_s, profile_csv};

/// Lines of a profile. Sixteen GPUs with four kinds of instructions and a hundred clocks have 6400;
/// one takes some 100 bytes.
const MOST_ROWS: usize = 32_768;

/// A GPU that is held at a clock is seen at it on average, within this share: clocks that it supports are
/// 0.5 % or more apart.
const SEEN_WITHIN: f64 = 0.0025;

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
    /// All clocks that it may measure, if one between two of these can turn out to be of use.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    allowed: BTreeSet<Mhz>,
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
    /// The steps of its next trial, if more than requested.
    #[serde(default)]
    more_steps: u32,
    /// How many replicas can measure different clocks at the same time.
    #[serde(default = "one")]
    replicas: u32,
    /// Whether they would measure how long they wait for each other.
    #[serde(default, skip_serializing_if = "Not::not")]
    one_by_one: bool,
}

fn one() -> u32 {
    1
}

/// What a trial has shown of one clock.
struct Shown {
    clock: SweptClock,
    obstacle: Obstacle,
    /// Whether the GPUs had another clock.
    is_unheld: bool,
    /// The largest error of an energy; none if one is unknown.
    error: Option<f64>,
}

/// Why a sweep is paused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pause {
    /// None if a user requested it.
    pub(crate) why: Option<String>,
    /// Whether the driver of a GPU did not do what a trial asked of it.
    #[serde(default)]
    pub(crate) not_in_force: bool,
}

impl Pause {
    /// For a reason that is no request.
    pub(crate) fn because(why: String) -> Self {
        Self { why: Some(why), not_in_force: false }
    }
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// To measure a step at default clocks.
    DefaultClocks,
    /// To measure this clock, and those below it that can be measured at the same time.
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
            allowed: BTreeSet::new(),
            pause: None,
            attended: false,
            default_step_s: None,
            measured: Vec::new(),
            unheld: None,
            repeats: 0,
            more_steps: 0,
            replicas: 1,
            one_by_one: false,
        }
    }

    /// The same of a job whose replicas, as many as these, each measure a clock of their own.
    pub(crate) fn over(self, replicas: u32) -> Self {
        Self { replicas, ..self }
    }

    /// The same, which may measure any of these clocks.
    pub(crate) fn among(self, allowed: BTreeSet<Mhz>) -> Self {
        let allowed = allowed.into_iter().filter(|clock| *clock >= self.settings.min_mhz).collect();
        Self { allowed, ..self }
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

    /// The clocks that are measured next, at the same time: one for each replica if it is known by how
    /// much these differ.
    fn round(&self) -> &[Mhz] {
        let left = self.left();
        let last = self.measured.last().filter(|_| self.levels().is_some());
        last.map_or(left.get(..1).unwrap_or_default(), |last| {
            replicas::round(left, self.replicas, (last.mhz, last.step_s), self.limit_s())
        })
    }

    /// How many rounds as long as this one have been measured.
    fn turn(&self, round: &[Mhz]) -> usize {
        self.measured.len().checked_div(round.len()).unwrap_or(0)
    }

    fn levels(&self) -> Option<Levels> {
        let replicas = Some(self.replicas).filter(|replicas| *replicas > 1 && !self.one_by_one)?;
        self.measured.iter().find_map(|clock| Levels::of(clock, replicas))
    }

    /// What the job is to run for what comes next; none if nothing is to be measured.
    pub(crate) fn run(&self) -> Option<TrialRun> {
        match self.next() {
            Next::DefaultClocks => Some(TrialRun::DefaultClocks),
            Next::Clock(_) => Some(replicas::run(self.round(), self.turn(self.round()))),
            Next::End(_) => None,
        }
    }

    /// The longest step that the job may have, in seconds.
    fn limit_s(&self) -> Option<f64> {
        let limit = self.default_step_s.zip(self.settings.max_slowdown);
        limit.map(|(default_s, slowdown)| default_s * (1.0 + slowdown))
    }

    fn is_too_slow(&self, clock: &SweptClock) -> bool {
        self.limit_s().is_some_and(|limit_s| clock.step_s > limit_s)
    }

    /// Whether a clock has every instruction that the first one had on the same ranks. Beside other
    /// clocks, those of fixed time may be missing.
    fn is_whole(&self, clock: &SweptClock, trial: &RecordedTrial, is_alone: bool) -> bool {
        let first = self.measured.iter().find(|clock| !clock.rows.is_empty());
        let expected = first.map_or_else(|| instructions(trial), SweptClock::instructions);
        let has = clock.instructions();
        let is_here = |wanted: Rank| trial.ranks.iter().any(|rank| rank.rank == wanted);
        expected.iter().all(|one @ (rank, instruction, _)| {
            has.contains(one) || !is_here(*rank) || !is_alone && instruction.is_fixed()
        })
    }

    /// Adds the trial of what came [next](Self::next).
    ///
    /// # Errors
    /// Why the trial is useless, in words.
    pub(crate) fn take(&mut self, trial: &RecordedTrial) -> Result<(), String> {
        match self.next() {
            Next::DefaultClocks => self.default_step_s = Some(median_step_s(&trial.trial.steps)),
            Next::Clock(_) => self.take_round(trial)?,
            Next::End(_) => {}
        }
        Ok(())
    }

    fn take_round(&mut self, trial: &RecordedTrial) -> Result<(), String> {
        let round = self.round().to_vec();
        let parts = replicas::parts(&round, self.turn(&round), trial);
        if replicas::have_waited(&parts) {
            (self.one_by_one, self.repeats, self.more_steps) = (true, 0, 0);
            return Ok(());
        }
        let steps = self.length().steps;
        let step_s = median_step_s(&trial.trial.steps);
        let shown = self.shown(&round, &parts, step_s);
        let more = |shown: &Shown| enough::steps(self.settings.steps, steps, step_s, shown.error);
        let is_worth_repeating = |shown: &Shown| {
            let is_bad = |error| error > GOOD_ERROR && more(shown) > steps;
            !shown.is_unheld && !self.is_too_slow(&shown.clock) && shown.error.is_none_or(is_bad)
        };
        if self.repeats < MOST_REPEATS && shown.iter().any(is_worth_repeating) {
            let more_steps = shown.iter().map(more).max().unwrap_or(0);
            (self.repeats, self.more_steps) = (self.repeats.saturating_add(1), more_steps);
            return Ok(());
        }
        let held = shown.iter().filter(|shown| !shown.is_unheld);
        let more_steps = held.map(more).max().unwrap_or(0);
        (self.repeats, self.more_steps) = (0, 0);
        self.add(shown)?;
        self.more_steps = more_steps;
        Ok(())
    }

    fn shown(&self, round: &[Mhz], parts: &[RecordedTrial], step_s: f64) -> Vec<Shown> {
        let is_alone = round.len() == 1;
        let levels = self.levels().filter(|_| !is_alone);
        let before = self.measured.last().map_or((Mhz(0), step_s), |last| (last.mhz, last.step_s));
        let times = replicas::step_times(round, step_s, before);
        let each = round.iter().zip(parts).zip(times);
        let shown = each.map(|((mhz, part), step_s)| {
            let clock = SweptClock { step_s, ..SweptClock::of(*mhz, part) };
            let clock = levels.iter().fold(clock, |clock, levels| levels.level(clock));
            let is_whole = self.is_whole(&clock, part, is_alone);
            let obstacle = Obstacle::of(part);
            let is_unheld = !is_whole && matches!(obstacle, Obstacle::OtherClock { .. });
            let error = is_whole.then(|| clock.worst_error());
            Shown { clock, obstacle, is_unheld, error }
        });
        shown.collect()
    }

    /// Adds clocks that are measured.
    fn add(&mut self, shown: Vec<Shown>) -> Result<(), String> {
        let mut unheld = None;
        for Shown { clock, obstacle, is_unheld, .. } in &shown {
            let mhz = clock.mhz;
            if clock.energies().is_empty() {
                let is_last = self.clocks.last() == Some(&mhz) && !self.has_measured();
                if !is_unheld || is_last {
                    return Err(format!(
                        "no energy of an instruction could be measured at {mhz}: {obstacle}"
                    ));
                }
                unheld = Some(format!("{mhz} is left out: {obstacle}"));
            }
        }
        let new = shown.into_iter().map(|shown| shown.clock);
        let measured: Vec<_> = self.measured.iter().cloned().chain(new).collect();
        if measured.iter().map(|clock| clock.rows.len()).sum::<usize>() > MOST_ROWS {
            return Err(format!("its profile would have more than {MOST_ROWS} lines"));
        }
        self.measured = measured;
        self.insert_useful();
        self.unheld = unheld.or(self.unheld.take());
        Ok(())
    }

    /// Inserts the clock above the one that power limits have left of the last one, unless one between is
    /// measured anyway: work is as fast at it, and what waits there draws less. It is not the one that was
    /// left itself, because a GPU may run a bin beside its lock.
    fn insert_useful(&mut self) {
        let Some(last) = self.measured.last() else { return };
        let Some(held_mhz) = last.held_mhz() else { return };
        let is_above = |clock: &&Mhz| f64::from(clock.0) > held_mhz * (1.0 + SEEN_WITHIN);
        let below_last = self.allowed.range(..last.mhz).rev();
        let Some(&useful) = below_last.take_while(is_above).last() else { return };
        let place = self.clocks.partition_point(|clock| *clock > useful);
        let leads_to_it = |clock: &Mhz| f64::from(clock.0) >= held_mhz * (1.0 - SEEN_WITHIN);
        if !self.clocks.get(place).is_some_and(leads_to_it) {
            self.clocks.insert(place, useful);
        }
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
            not_in_force: self.pause.as_ref().is_some_and(|pause| pause.not_in_force),
            remaining_s: self.remaining_s(next).filter(|_| !matches!(state, SweepState::Ended(_))),
            state,
        }
    }

    /// What the clocks have shown that is not in the figures.
    fn remark(&self) -> Option<String> {
        let held_back = self.measured.iter().find_map(SweptClock::held_back);
        let one_by_one = self.one_by_one.then_some(
            "replicas wait for each other inside of instructions, and measure one clock at a time",
        );
        let remarks = held_back.into_iter().chain(self.unheld.clone());
        let remarks: Vec<String> = remarks.chain(one_by_one.map(str::to_owned)).collect();
        (!remarks.is_empty()).then(|| remarks.join("; "))
    }

    fn remaining_s(&self, next: Next) -> Option<f64> {
        let Next::Clock(_) = next else { return None };
        let at_default = || Some((*self.clocks.first()?, self.default_step_s?));
        let last = self.measured.last().map(|clock| (clock.mhz, clock.step_s));
        let TrialLength { settling_steps, steps } = self.length();
        let steps = settling_steps.saturating_add(steps);
        let rounds = self.left().chunks(self.round().len().max(1));
        let lowest: Vec<_> = rounds.filter_map(|round| round.last().copied()).collect();
        Some(at_most_s(&lowest, steps, last.or_else(at_default)?))
    }
}

#[cfg(test)]
pub(crate) mod tests;

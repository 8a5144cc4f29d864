//! Whether a plan keeps on the job what it promised: default clocks and the plan take turns, and after
//! each round of four turns a confidence sequence says what is certain.
//!
//! Turns go there and back (default, plan, plan, default, …), so that what drifts steadily favours
//! neither. The comparison stops as soon as a verdict is certain, but keeps no plan before half of the
//! requested rounds. If no verdict is certain after as many rounds as were requested, and the most
//! rounds are not expected to make it certain, or were run, it is settled by what is most likely: a
//! plan whose estimate is within the limit, and whose saving is certain, is kept, unless it may as well be far
//! beyond the limit.
//!
//! Only usual steps are compared: what a checkpoint or an evaluation adds to some steps says nothing of clocks.

use serde::{Deserialize, Serialize};

use crate::interval::Interval;
use crate::sequence::{Round, Sequence, undisturbed};
use crate::usual::Usual;
use crate::window::Window;

/// What runs in some turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    DefaultClocks,
    Contender,
}

/// What became of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It saves energy and is as fast as it was asked to be.
    Kept,
    /// It does, but another plan saves more.
    SavesLess,
    /// It makes the job slower than was allowed.
    TooSlow,
    /// It does not save energy, or most likely not.
    SavesNothing,
    /// Steps scatter too much to tell: it may save, and it may be too slow.
    Undecided,
}

/// The plan against default clocks, as shares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// How many rounds were compared.
    pub rounds: u32,
    /// As a share of the energy of a step.
    pub saving: Interval,
    /// As a share of the time of a step.
    pub slowdown: Interval,
    /// Whether the plan would be faster with certainty. Lower clocks make nothing faster, so that something
    /// else favoured its turns. The intervals are wider by as much, and make nothing certain.
    #[serde(default)]
    pub disturbed: bool,
}

/// At most this many times the requested rounds are run.
const PATIENCE: usize = 3;

/// Turns in a round.
const TURNS: usize = 4;

/// A plan that may be slower than this many times the limit and this share is not kept on what is likely.
const FAR_BEYOND: f64 = 2.0;
const LITTLE: f64 = 0.05;

impl Compared {
    /// Whether the intervals say the same as a verdict, which is only likely otherwise.
    #[must_use]
    pub fn makes_certain(&self, verdict: Verdict, max_slowdown: f64) -> bool {
        let Self { saving, slowdown, disturbed, .. } = self;
        !disturbed
            && match verdict {
                Verdict::Kept | Verdict::SavesLess => {
                    saving.low > 0.0 && slowdown.high <= max_slowdown
                }
                Verdict::TooSlow => slowdown.low > max_slowdown,
                Verdict::SavesNothing => saving.high < 0.0,
                Verdict::Undecided => false,
            }
    }

    /// The same with what favoured the plan's turns in the intervals.
    fn with_disturbance(self) -> Self {
        let favoured = -self.slowdown.high;
        if favoured <= 0.0 {
            return self;
        }
        let wider = |Interval { estimate, low, high }: Interval| Interval {
            estimate,
            low: low - favoured,
            high: high + favoured,
        };
        let (saving, slowdown) = (wider(self.saving), wider(self.slowdown));
        Self { saving, slowdown, disturbed: true, ..self }
    }
}

/// The turns so far.
pub(crate) struct Verification {
    max_slowdown: f64,
    rounds: usize,
    turns: Vec<Turn>,
    /// The largest share that was done of what is expected.
    done: f64,
}

/// The steps of a turn.
#[derive(Clone, Debug)]
pub(crate) struct Turn(Window);

impl Turn {
    /// Mean time and energy of its usual steps, or of all if none is usual.
    fn figures(&self, usual: Usual) -> [f64; 2] {
        let Self(window) = self;
        let some = window.only(|time_s| usual.has(time_s));
        let window = if some.steps() > 0 { &some } else { window };
        [window.time_s(), window.energy_j()]
    }
}

impl Verification {
    /// For a plan that may make a step longer by this share. Before this many rounds, only what is certain
    /// decides. A turn at default clocks that has just ended is the first one.
    pub(crate) fn new(max_slowdown: f64, rounds: u32, last: Option<Turn>) -> Self {
        let turns = last.into_iter().collect();
        Self { max_slowdown, rounds: (rounds as usize).max(2), turns, done: 0.0 }
    }

    /// What to run next, and for how many turns: two turns of the same need no steps in between.
    pub(crate) fn next(&self) -> (Side, u32) {
        match self.turns.len() % TURNS {
            0 => (Side::DefaultClocks, 1),
            1 => (Side::Contender, 2),
            _ => (Side::DefaultClocks, 2),
        }
    }

    /// What those turns took, in equal parts.
    pub(crate) fn observe(&mut self, window: &Window) {
        let (_, turns) = self.next();
        self.turns.extend(window.parts(turns as usize).map(Turn));
    }

    /// The rounds before a plan is kept.
    fn least(&self) -> usize {
        (self.rounds / 2).max(2)
    }

    /// The last turn, if it was at default clocks.
    pub(crate) fn last(&self) -> Option<Turn> {
        self.turns.last().cloned().filter(|_| self.turns.len() % TURNS == 1)
    }

    /// The rounds to run as far as is known now, those that were run, and the share that is done.
    pub(crate) fn progress(&mut self) -> (usize, usize, f64) {
        let run = self.turns.len() / TURNS;
        let most = PATIENCE * self.rounds;
        let is_decided = |rounds: &usize| self.open(*rounds).is_empty();
        let known = self.compared().and_then(|_| (run + 1..most).find(is_decided));
        let rounds = match self.compared() {
            Some(_) => known.unwrap_or(self.rounds).max(self.least()).max(run + 1),
            None => self.least(),
        };
        let turns = (TURNS * rounds + 1) as f64;
        self.done = self.done.max(self.turns.len() as f64 / turns).min(1.0);
        (rounds, run, self.done)
    }

    /// How the plan compares; none before there are two rounds to compare.
    pub(crate) fn compared(&self) -> Option<Compared> {
        let (times, energies) = self.sequences()?;
        let compared = Compared {
            rounds: times.1,
            saving: energies.interval()?.negated(),
            slowdown: times.0.interval()?,
            disturbed: false,
        };
        Some(compared.with_disturbance())
    }

    fn sequences(&self) -> Option<((Sequence, u32), Sequence)> {
        let (default, plan) = (self.usual([0, 3]), self.usual([1, 2]));
        let figures = |turns: &[Turn]| {
            [default, plan, plan, default]
                .iter()
                .zip(turns)
                .map(|(usual, turn)| turn.figures(*usual))
                .collect()
        };
        let figures: Vec<Vec<[f64; 2]>> = self.turns.chunks_exact(TURNS).map(figures).collect();
        let rounds = |figure: usize| -> Vec<Round> {
            let of = |turns: &Vec<[f64; 2]>| {
                let [one, two, three, four] = [0, 1, 2, 3].map(|place: usize| turns[place][figure]);
                Round { default: [one, four], plan: [two, three] }
            };
            figures.iter().map(of).collect()
        };
        let (times, energies) = (rounds(0), rounds(1));
        let usual: Vec<bool> = undisturbed(&times)
            .into_iter()
            .zip(undisturbed(&energies))
            .map(|(time, energy)| time && energy)
            .collect();
        let kept = |rounds: &[Round]| -> Vec<Round> {
            rounds
                .iter()
                .zip(&usual)
                .filter(|(_, usual)| **usual)
                .map(|(round, _)| *round)
                .collect()
        };
        let (times, energies) = (kept(&times), kept(&energies));
        let count = times.len() as u32;
        Some(((Sequence::of(&times)?, count), Sequence::of(&energies)?))
    }

    /// The usual steps of those turns of each round that ran the same.
    fn usual(&self, places: [usize; 2]) -> Usual {
        let turns =
            || self.turns.chunks_exact(TURNS).flat_map(|turns| places.map(|place| &turns[place]));
        Usual::of_times(|| turns().flat_map(|Turn(window)| window.times_s.iter().copied()))
    }

    /// The same after as many rounds as this, of those that count.
    pub(crate) fn after(&self, rounds: u32) -> Option<Compared> {
        let has_run = self.turns.len() / TURNS >= PATIENCE * self.rounds;
        self.compared().filter(|compared| has_run || compared.rounds >= rounds)
    }

    /// How far each figure that is not certain yet would be from certainty after this many rounds, if turns
    /// scatter as they did.
    fn open(&self, rounds: usize) -> Vec<f64> {
        let Some((compared, ((times, _), energies))) = self.compared().zip(self.sequences()) else {
            return vec![f64::INFINITY];
        };
        let gaps =
            [(compared.slowdown, self.max_slowdown, times), (compared.saving, 0.0, energies)];
        let open = |(interval, limit, sequence): (Interval, f64, Sequence)| {
            let is_open = interval.low <= limit && limit <= interval.high;
            let left = sequence.reach_after(rounds) - (interval.estimate - limit).abs();
            Some(left).filter(|&left| is_open && left > 0.0)
        };
        gaps.into_iter().filter_map(open).collect()
    }

    /// What becomes of the plan; none while that takes more turns.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let compared = self.compared()?;
        let is_certain = |verdict: &Verdict| compared.makes_certain(*verdict, self.max_slowdown);
        let (rounds, most) = (self.turns.len() / TURNS, PATIENCE * self.rounds);
        let all = [Verdict::TooSlow, Verdict::SavesNothing, Verdict::Kept];
        if let Some(certain) = all.into_iter().find(is_certain) {
            return Some(certain).filter(|&one| one != Verdict::Kept || rounds >= self.least());
        }
        // A saving has to be certain, and is worth the most rounds.
        let saves = compared.saving.low > 0.0;
        let is_hopeless = saves && rounds >= self.rounds && !self.open(most).is_empty();
        if rounds < most && !is_hopeless {
            return None;
        }
        // More rounds would hardly tell. A saving has to be certain; who asked for a limit takes
        // what is most likely within it.
        let Compared { saving, slowdown, .. } = compared;
        Some(if slowdown.estimate > self.max_slowdown {
            Verdict::TooSlow
        } else if saving.estimate <= 0.0 {
            Verdict::SavesNothing
        } else if saving.low > 0.0 && slowdown.high <= FAR_BEYOND * self.max_slowdown + LITTLE {
            Verdict::Kept
        } else {
            Verdict::Undecided
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A job whose plan changes time and energy by these shares, whose figures scatter by so much
    /// and drift by so much from turn to turn.
    struct Job {
        slowdown: f64,
        saving: f64,
        scatter: f64,
        drift: f64,
    }

    impl Job {
        fn verified(&self, max_slowdown: f64, seed: u64) -> (Verdict, Compared) {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut verification = Verification::new(max_slowdown, 4, None);
            let mut drifted = 1.0;
            loop {
                if let Some(verdict) = verification.verdict() {
                    return (verdict, verification.compared().unwrap());
                }
                let (side, turns) = verification.next();
                let (slowdown, saving) = match side {
                    Side::DefaultClocks => (0.0, 0.0),
                    Side::Contender => (self.slowdown, self.saving),
                };
                let mut window = Window::default();
                for _ in 0..turns {
                    drifted *= 1.0 + self.drift;
                    let mut scattered =
                        || drifted * (1.0 + self.scatter * (2.0 * random.f64() - 1.0));
                    window.times_s.push(2.0 * scattered() * (1.0 + slowdown));
                    window.energies_j.push(1000.0 * scattered() * (1.0 - saving));
                }
                verification.observe(&window);
            }
        }
    }

    #[test]
    fn a_plan_that_surely_saves_in_time_is_kept_after_two_rounds() {
        let job = Job { slowdown: 0.001, saving: 0.15, scatter: 0.0005, drift: 0.0 };
        let (verdict, compared) = job.verified(0.005, 1);
        assert_eq!((verdict, compared.rounds), (Verdict::Kept, 2));
        assert!((compared.saving.estimate - 0.15).abs() < 0.002, "{compared:?}");
    }

    #[test]
    fn a_plan_is_not_kept_before_half_of_the_requested_rounds() {
        let steady = |turns: u32| {
            let energy_j = if turns == 2 { 0.8 } else { 1.0 };
            Window { times_s: vec![1.0; 2], energies_j: vec![energy_j; 2] }
        };
        let mut verification = Verification::new(0.5, 9, None);
        while verification.verdict().is_none() {
            let (side, turns) = verification.next();
            verification.observe(&steady(if side == Side::Contender { 2 } else { turns.min(1) }));
        }
        assert_eq!(verification.compared().unwrap().rounds, 4);
    }

    #[test]
    fn a_plan_that_is_surely_too_slow_is_not_run_for_longer() {
        let job = Job { slowdown: 0.05, saving: 0.15, scatter: 0.005, drift: 0.0 };
        let (verdict, compared) = job.verified(0.005, 1);
        assert_eq!((verdict, compared.rounds), (Verdict::TooSlow, 2));
    }

    #[test]
    fn a_plan_that_saves_nothing_is_not_kept_however_fast_it_is() {
        for saving in [0.0, -0.1] {
            let job = Job { slowdown: -0.01, saving, scatter: 0.003, drift: 0.0 };
            assert_eq!(job.verified(0.005, 1).0, Verdict::SavesNothing);
        }
    }

    #[test]
    fn a_plan_at_the_limit_is_settled_by_what_is_most_likely_after_the_requested_rounds() {
        let job = Job { slowdown: 0.005, saving: 0.1, scatter: 0.01, drift: 0.0 };
        let verified: Vec<_> = (0..100).map(|seed| job.verified(0.005, seed)).collect();
        let certain =
            |(verdict, compared): &&(Verdict, Compared)| compared.makes_certain(*verdict, 0.005);
        assert!(verified.iter().filter(certain).count() <= 5);
        let settled: Vec<_> = verified.iter().filter(|one| !certain(one)).collect();
        let soon = settled.iter().filter(|(_, compared)| compared.rounds <= 4).count();
        assert!(soon > 70, "{soon}");
        for (verdict, Compared { slowdown, .. }) in &settled {
            let within = slowdown.estimate <= 0.005;
            assert_eq!(*verdict, if within { Verdict::Kept } else { Verdict::TooSlow });
        }
    }

    #[test]
    fn a_saving_that_is_never_certain_is_none() {
        let job = Job { slowdown: 0.0, saving: 0.001, scatter: 0.05, drift: 0.0 };
        for seed in 0..20 {
            let (verdict, compared) = job.verified(0.5, seed);
            let certain = compared.makes_certain(verdict, 0.5);
            assert!(verdict != Verdict::Kept || certain, "{compared:?}");
        }
    }

    /// A job that pauses for nine times the step in each `every`th one, and whose plan is slower by this share.
    fn with_pauses(every: usize, slowdown: f64) -> (Verdict, Compared) {
        let mut verification = Verification::new(0.03, 4, None);
        let (mut random, mut step) = (fastrand::Rng::with_seed(every as u64), 0);
        loop {
            if let Some(verdict) = verification.verdict() {
                return (verdict, verification.compared().unwrap());
            }
            let (side, turns) = verification.next();
            let mut window = Window::default();
            for _ in 0..8 * turns {
                step += 1;
                let longer = if side == Side::Contender { 1.0 + slowdown } else { 1.0 };
                let less = if side == Side::Contender { 0.85 } else { 1.0 };
                let pause_s = if step % every == 0 { 3.0 } else { 0.0 };
                let scattered = 1.0 + 0.002 * (random.f64() - 0.5);
                window.times_s.push(0.33 * longer * scattered + pause_s);
                window.energies_j.push(100.0 * less * scattered + 60.0 * pause_s);
            }
            verification.observe(&window);
        }
    }

    #[test]
    fn steps_in_which_a_job_pauses_hide_no_plan_that_is_too_slow_and_no_saving() {
        for every in [7, 20, 50] {
            assert_eq!(with_pauses(every, 0.11).0, Verdict::TooSlow, "{every}");
            let (verdict, compared) = with_pauses(every, 0.01);
            assert_eq!(verdict, Verdict::Kept, "{every}: {compared:?}");
            assert!((compared.saving.estimate - 0.15).abs() < 0.002, "{every}: {compared:?}");
            assert!(compared.makes_certain(verdict, 0.03), "{every}: {compared:?}");
        }
    }

    #[test]
    fn a_plan_that_may_as_well_be_far_too_slow_is_not_kept_because_it_most_likely_is_not() {
        let job = Job { slowdown: 0.0, saving: 0.6, scatter: 0.5, drift: 0.0 };
        let verdicts: Vec<_> = (0..20).map(|seed| job.verified(0.01, seed)).collect();
        for (verdict, compared) in &verdicts {
            let is_far = compared.slowdown.high > 0.07;
            assert!(*verdict != Verdict::Kept || !is_far, "{verdict:?} {compared:?}");
        }
        assert!(verdicts.iter().any(|(verdict, _)| *verdict == Verdict::Undecided));
    }

    #[test]
    fn a_speed_up_that_would_be_certain_is_a_disturbance_and_makes_nothing_certain() {
        let job = Job { slowdown: -0.05, saving: 0.2, scatter: 0.001, drift: 0.0 };
        let (verdict, compared) = job.verified(0.01, 1);
        assert_eq!((verdict, compared.disturbed, compared.rounds), (Verdict::Kept, true, 12));
        assert!(!compared.makes_certain(verdict, 0.01));
        assert_eq!(compared.slowdown.high, 0.0);
    }

    #[test]
    fn the_last_turn_at_default_clocks_is_the_first_of_the_next_plan() {
        let steady = |steps| Window { times_s: vec![1.0; steps], energies_j: vec![1.0; steps] };
        let mut verification = Verification::new(0.5, 4, None);
        for (side, turns) in
            [(Side::DefaultClocks, 1), (Side::Contender, 2), (Side::DefaultClocks, 2)]
        {
            assert_eq!(verification.next(), (side, turns));
            assert_eq!(verification.last().is_some(), verification.turns.len() == 1);
            verification.observe(&steady(3 * turns as usize));
        }
        let next = Verification::new(0.5, 4, verification.last());
        assert_eq!(next.next(), (Side::Contender, 2));
    }

    proptest! {
        #[test]
        fn a_steady_drift_favours_neither_side(
            drift in -0.02_f64..0.02, slowdown in 0.0_f64..0.03, saving in 0.02_f64..0.3
        ) {
            let job = Job { slowdown, saving, scatter: 0.0, drift };
            let (_, compared) = job.verified(1.0, 1);
            prop_assert!((compared.slowdown.estimate - slowdown).abs() < 1e-9);
            prop_assert!((compared.saving.estimate - saving).abs() < 1e-9);
        }

        #[test]
        fn it_always_ends_and_what_is_kept_was_measured_within_the_limit(
            slowdown in -0.02_f64..0.04,
            saving in -0.1_f64..0.3,
            scatter in 0.0_f64..0.05,
            max_slowdown in 0.0_f64..0.02,
            seed in any::<u64>(),
        ) {
            let job = Job { slowdown, saving, scatter, drift: 0.0 };
            let (verdict, compared) = job.verified(max_slowdown, seed);
            prop_assert!(compared.rounds <= 12);
            if verdict == Verdict::Kept {
                prop_assert!(compared.slowdown.estimate <= max_slowdown);
                prop_assert!(compared.saving.low > 0.0);
            }
        }
    }
}

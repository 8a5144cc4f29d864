//! Whether a plan keeps on the job what it promised: default clocks and the plan take turns, and
//! each turn at the one is compared with the turn at the other beside it.
//!
//! Turns go there and back (default, plan, plan, default, …), so that what drifts steadily favours
//! neither. A plan that is certainly too slow is abandoned; one that may be is run more often. What
//! is not certain after three times the rounds is decided by what is most likely.

use serde::{Deserialize, Serialize};

use crate::interval::Interval;
use crate::window::Window;

/// What runs in a turn.
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
    /// It does not save energy with certainty.
    SavesNothing,
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
}

/// While intervals leave the verdict open, at most this many times the requested rounds are run.
const PATIENCE: usize = 3;

impl Compared {
    /// Whether the intervals say the same as a verdict, which is only likely otherwise.
    #[must_use]
    pub fn makes_certain(&self, verdict: Verdict, max_slowdown: f64) -> bool {
        let Self { saving, slowdown, .. } = self;
        match verdict {
            Verdict::Kept | Verdict::SavesLess => saving.low > 0.0 && slowdown.high <= max_slowdown,
            Verdict::TooSlow => slowdown.low > max_slowdown,
            Verdict::SavesNothing => saving.high < 0.0,
        }
    }
}

/// The turns so far.
pub(crate) struct Verification {
    max_slowdown: f64,
    rounds: usize,
    turns: Vec<Turn>,
}

/// Mean time and energy of a step in a turn.
#[derive(Clone, Copy)]
struct Turn {
    time_s: f64,
    energy_j: f64,
}

impl Verification {
    /// For a plan that may make a step longer by this share, in at least this many rounds. Only an
    /// even number of rounds goes there and back.
    pub(crate) fn new(max_slowdown: f64, rounds: u32) -> Self {
        Self { max_slowdown, rounds: (rounds as usize).next_multiple_of(2), turns: Vec::new() }
    }

    /// What to run next.
    pub(crate) fn next(&self) -> Side {
        match self.turns.len() % 4 {
            0 | 3 => Side::DefaultClocks,
            _ => Side::Contender,
        }
    }

    /// What that took.
    pub(crate) fn observe(&mut self, window: &Window) {
        self.turns.push(Turn { time_s: window.time_s(), energy_j: window.energy_j() });
    }

    /// The turns to run as far as is known now, and those that were run.
    pub(crate) fn progress(&self) -> (usize, usize) {
        let done = self.turns.len();
        (2 * self.rounds.max(done / 2 + 1).next_multiple_of(2), done)
    }

    /// How the plan compares; none before there are two rounds to compare.
    pub(crate) fn compared(&self) -> Option<Compared> {
        let rounds: Vec<[Turn; 2]> = (0..)
            .zip(self.turns.chunks_exact(2))
            .map(|(round, turns)| match round % 2 {
                0 => [turns[0], turns[1]],
                _ => [turns[1], turns[0]],
            })
            .collect();
        let change = |figure: fn(&Turn) -> f64| {
            let pairs: Vec<_> =
                rounds.iter().map(|[default, plan]| (figure(default), figure(plan))).collect();
            Interval::of_change(&pairs)
        };
        Some(Compared {
            rounds: rounds.len() as u32,
            saving: change(|turn| turn.energy_j)?.negated(),
            slowdown: change(|turn| turn.time_s)?,
        })
    }

    /// The same after as many rounds as were asked for; none before.
    pub(crate) fn after_all_rounds(&self) -> Option<Compared> {
        self.compared().filter(|_| self.turns.len() >= 2 * self.rounds)
    }

    /// What becomes of the plan; none while that takes more turns.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        // There and back; in between, a drift favours one side.
        if !self.turns.len().is_multiple_of(4) {
            return None;
        }
        let compared = self.compared()?;
        let is_certain = |verdict: &Verdict| compared.makes_certain(*verdict, self.max_slowdown);
        if let Some(bad) = [Verdict::TooSlow, Verdict::SavesNothing].into_iter().find(is_certain) {
            return Some(bad);
        }
        let rounds = self.turns.len() / 2;
        if rounds < self.rounds {
            return None;
        }
        if is_certain(&Verdict::Kept) {
            return Some(Verdict::Kept);
        }
        if rounds < PATIENCE * self.rounds {
            return None;
        }
        // More rounds would hardly tell. A saving has to be certain; who asked for a limit takes
        // what is most likely within it.
        let Compared { saving, slowdown, .. } = compared;
        Some(if slowdown.estimate > self.max_slowdown {
            Verdict::TooSlow
        } else if saving.low > 0.0 {
            Verdict::Kept
        } else {
            Verdict::SavesNothing
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
            let mut verification = Verification::new(max_slowdown, 4);
            let mut drifted = 1.0;
            loop {
                if let Some(verdict) = verification.verdict() {
                    return (verdict, verification.compared().unwrap());
                }
                drifted *= 1.0 + self.drift;
                let mut scattered = || drifted * (1.0 + self.scatter * (2.0 * random.f64() - 1.0));
                let (time_s, energy_j) = (2.0 * scattered(), 1000.0 * scattered());
                let (slowdown, saving) = match verification.next() {
                    Side::DefaultClocks => (0.0, 0.0),
                    Side::Contender => (self.slowdown, self.saving),
                };
                verification.observe(&Window {
                    times_s: vec![time_s * (1.0 + slowdown)],
                    energies_j: vec![energy_j * (1.0 - saving)],
                });
            }
        }
    }

    #[test]
    fn a_plan_that_saves_in_time_is_kept_after_as_many_rounds_as_were_asked_for() {
        let job = Job { slowdown: 0.001, saving: 0.15, scatter: 0.001, drift: 0.0 };
        let (verdict, compared) = job.verified(0.005, 1);
        assert_eq!((verdict, compared.rounds), (Verdict::Kept, 4));
        assert!((compared.saving.estimate - 0.15).abs() < 0.002, "{compared:?}");
    }

    #[test]
    fn a_plan_that_is_surely_too_slow_is_not_run_for_longer() {
        let job = Job { slowdown: 0.05, saving: 0.15, scatter: 0.0005, drift: 0.0 };
        let (verdict, compared) = job.verified(0.005, 1);
        assert_eq!(verdict, Verdict::TooSlow);
        assert!(compared.rounds < 4, "{compared:?}");
    }

    #[test]
    fn a_plan_that_saves_nothing_is_not_kept_however_fast_it_is() {
        for saving in [0.0, -0.1] {
            let job = Job { slowdown: -0.01, saving, scatter: 0.003, drift: 0.0 };
            assert_eq!(job.verified(0.005, 1).0, Verdict::SavesNothing);
        }
    }

    #[test]
    fn a_plan_at_the_limit_is_run_three_times_as_often_and_then_decided_by_what_is_most_likely() {
        let job = Job { slowdown: 0.005, saving: 0.1, scatter: 0.01, drift: 0.0 };
        let verified = || (0..100).map(|seed| job.verified(0.005, seed));
        let undecided = verified().filter(|(verdict, compared)| {
            compared.rounds == 12 && !compared.makes_certain(*verdict, 0.005)
        });
        let undecided: Vec<_> = undecided.collect();
        assert!(undecided.len() > 70);
        for (verdict, Compared { slowdown, .. }) in &undecided {
            let within = slowdown.estimate <= 0.005;
            assert_eq!(*verdict, if within { Verdict::Kept } else { Verdict::TooSlow });
        }
        let kept = undecided.iter().filter(|(verdict, _)| *verdict == Verdict::Kept).count();
        assert!((1..undecided.len()).contains(&kept), "{kept} of {}", undecided.len());
    }

    #[test]
    fn a_saving_that_is_never_certain_is_none() {
        let job = Job { slowdown: 0.0, saving: 0.001, scatter: 0.05, drift: 0.0 };
        for seed in 0..20 {
            let (verdict, compared) = job.verified(0.5, seed);
            let certain = compared.makes_certain(verdict, 0.5);
            assert!(verdict == Verdict::SavesNothing || certain, "{compared:?}");
        }
    }

    #[test]
    fn an_odd_number_of_rounds_is_made_even_so_that_they_go_there_and_back() {
        let steady = Window { times_s: vec![1.0], energies_j: vec![1.0] };
        let mut verification = Verification::new(0.5, 3);
        while verification.verdict().is_none() {
            verification.observe(&steady);
        }
        assert_eq!(verification.compared().unwrap().rounds, 12);
        assert_eq!(verification.verdict(), Some(Verdict::SavesNothing));
    }

    proptest! {
        #[test]
        fn a_steady_drift_favours_neither_side(
            drift in -0.02_f64..0.02, slowdown in -0.01_f64..0.03, saving in 0.02_f64..0.3
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

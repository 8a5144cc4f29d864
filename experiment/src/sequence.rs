//! A confidence sequence: an interval after each round of a comparison, all of which together contain the
//! true value in 95 of 100 comparisons. A comparison may therefore stop at any round, because of what it
//! has measured.
//!
//! A round is four turns: default clocks, the plan, the plan, default clocks. The difference of their
//! logarithms is the change, without a steady drift. The two turns at the same clocks show how much a turn
//! scatters, whatever the plan does. These three figures of each round are the observations of the t-test
//! of H. Wang and A. Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown
//! variance", Sequential Analysis 44 (2025), <https://arxiv.org/abs/2310.03722>: a test martingale, which
//! mixes the t-likelihood over normally distributed changes in units of the deviation. Ville's inequality
//! bounds it at all rounds at once. In their formula for a mean, the mean has one observation a round, and
//! the variance three.
//!
//! Rounds that are not independent make the interval wider, never narrower: rounds that scatter more than
//! their own turns do, and rounds that are like the rounds before them.

use crate::interval::Interval;

/// In how many cases of a hundred an interval of a sequence may miss the true value.
const MISSED: f64 = 0.05;

/// The observations that the prior of the change is worth. Intervals after 4 to 12 rounds are narrowest
/// with this.
const PRIOR: f64 = 0.2;

/// No GPU repeats a turn more exactly than this, as a share: equal figures do not prove more.
const FINEST: f64 = 1e-4;

/// A round whose turns at the same clocks differ by this many times the median of all rounds was disturbed.
const FAR: f64 = 6.0;

/// Fewer rounds do not show what is usual.
const USUAL: usize = 3;

/// One figure in the turns of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Round {
    pub(crate) default: [f64; 2],
    pub(crate) plan: [f64; 2],
}

impl Round {
    fn change(&self) -> f64 {
        let logarithms = |turns: [f64; 2]| 0.5 * (turns[0] * turns[1]).ln();
        logarithms(self.plan) - logarithms(self.default)
    }

    /// By how much the turns at the same clocks differ.
    fn apart(&self) -> [f64; 2] {
        [self.default, self.plan].map(|[one, other]| (one / other).ln())
    }

    fn far_apart(&self) -> f64 {
        let [default, plan] = self.apart();
        default.abs().max(plan.abs())
    }
}

/// For each round, whether nothing disturbed one of its turns only, such as a checkpoint, or a job that
/// became slower in its middle. The change has no part in that. More than half of the rounds always stay.
pub(crate) fn undisturbed(rounds: &[Round]) -> Vec<bool> {
    let far: Vec<f64> = rounds.iter().map(Round::far_apart).collect();
    let mut sorted = far.clone();
    sorted.sort_by(f64::total_cmp);
    let most = match sorted.get(rounds.len() / 2) {
        Some(&median) if rounds.len() >= USUAL => FAR * median.max(FINEST),
        _ => f64::INFINITY,
    };
    far.into_iter().map(|far| far <= most).collect()
}

/// What some rounds say of a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence {
    rounds: usize,
    /// The mean of the logarithms of the changes.
    change: f64,
    /// The deviation of one round, as far as it is known.
    deviation: f64,
}

impl Sequence {
    /// None of fewer than two rounds, or of figures without a logarithm.
    pub(crate) fn of(rounds: &[Round]) -> Option<Self> {
        let count = rounds.len();
        if count < 2 {
            return None;
        }
        let n = count as f64;
        let changes: Vec<f64> = rounds.iter().map(Round::change).collect();
        let change = changes.iter().sum::<f64>() / n;
        let off: Vec<f64> = changes.iter().map(|one| one - change).collect();
        let between: f64 = off.iter().map(|off| off * off).sum();
        let within: f64 =
            rounds.iter().flat_map(Round::apart).map(|apart| 0.5 * apart * apart).sum();
        let variance = ((between + within) / (3.0 * n - 1.0)).max(between / (n - 1.0));
        let like: f64 = off.windows(2).map(|pair| pair[0] * pair[1]).sum();
        // Of values like those before them, the mean scatters more by this.
        let like = if between > 0.0 { (like / between).clamp(0.0, 0.6) } else { 0.0 };
        let variance = variance.max(FINEST * FINEST) * (1.0 + like) / (1.0 - like);
        let is_figure = change.is_finite() && variance.is_finite();
        is_figure.then(|| Self { rounds: count, change, deviation: variance.sqrt() })
    }

    /// The half-width of the interval after this many rounds, if they scatter as these do.
    pub(crate) fn reach_after(&self, rounds: usize) -> f64 {
        self.deviation * reach(rounds)
    }

    /// As shares; none while the rounds say nothing.
    pub(crate) fn interval(&self) -> Option<Interval> {
        let reach = self.reach_after(self.rounds);
        let share = |logarithm: f64| logarithm.exp_m1();
        reach.is_finite().then(|| Interval {
            estimate: share(self.change),
            low: share(self.change - reach),
            high: share(self.change + reach),
        })
    }
}

/// The half-width of the interval after this many rounds, in deviations of one round.
pub(crate) fn reach(rounds: usize) -> f64 {
    let n = rounds as f64;
    let observations = 3.0 * n;
    let share = PRIOR / (n + PRIOR);
    let bound = 1.0 - (MISSED * share.sqrt()).powf(2.0 / observations);
    let left = n * n / (n + PRIOR) - bound * n;
    if left > 0.0 { (bound * (observations - 1.0) / left).sqrt() } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Noise {
        random: fastrand::Rng,
        /// How like the one before each is, and the last.
        like: f64,
        last: f64,
    }

    impl Noise {
        fn new(seed: u64, like: f64) -> Self {
            Self { random: fastrand::Rng::with_seed(seed), like, last: 0.0 }
        }

        fn next(&mut self) -> f64 {
            let normal = (0..12).map(|_| self.random.f64()).sum::<f64>() - 6.0;
            self.last = self.like * self.last + (1.0 - self.like * self.like).sqrt() * normal;
            self.last
        }

        fn round(&mut self, sd: f64, change: f64) -> Round {
            let [one, two, three, four] = [0; 4].map(|_| 1.0 + sd * self.next());
            let plan = [two, three].map(|turn| turn * (1.0 + change));
            Round { default: [one, four], plan }
        }
    }

    /// In how many of a thousand comparisons some interval of 2 to 24 rounds misses the change.
    fn missed(like: f64, outlier: f64) -> usize {
        let misses = |seed: &u64| {
            let mut noise = Noise::new(*seed, like);
            let mut rounds: Vec<Round> = Vec::new();
            (0..24).any(|place| {
                let mut round = noise.round(0.003, 0.01);
                if (place + seed).is_multiple_of(5) {
                    round.plan[(seed % 2) as usize] *= 1.0 + outlier;
                }
                rounds.push(round);
                let usual = undisturbed(&rounds);
                let kept: Vec<Round> = rounds
                    .iter()
                    .zip(&usual)
                    .filter(|(_, usual)| **usual)
                    .map(|(one, _)| *one)
                    .collect();
                let interval = Sequence::of(&kept).and_then(|sequence| sequence.interval());
                interval.is_some_and(|Interval { low, high, .. }| !(low..=high).contains(&0.01))
            })
        };
        (0..1000).filter(misses).count()
    }

    #[test]
    fn all_intervals_of_a_comparison_hold_the_change_in_95_of_100() {
        assert!(missed(0.0, 0.0) <= 50, "{}", missed(0.0, 0.0));
    }

    #[test]
    fn turns_that_are_like_the_turns_before_them_are_not_missed_more_often() {
        for like in [0.3, 0.6, 0.9, 0.99] {
            assert!(missed(like, 0.0) <= 50, "{like}: {}", missed(like, 0.0));
        }
    }

    #[test]
    fn a_turn_in_each_fifth_round_that_is_far_longer_moves_no_interval() {
        assert!(missed(0.0, 0.5) <= 50, "{}", missed(0.0, 0.5));
    }

    #[test]
    fn more_rounds_reach_less_far_and_one_says_nothing() {
        assert_eq!(reach(1), f64::INFINITY);
        let reaches: Vec<f64> = (2..100).map(reach).collect();
        assert!(reaches.is_sorted_by(|one, next| one > next), "{reaches:?}");
        // By the formula, in Python.
        assert!((reaches[0] - 4.91 / 2.0_f64.sqrt()).abs() < 0.01, "{}", reaches[0]);
        assert!((reaches[2] - 3.71 / 2.0).abs() < 0.01, "{}", reaches[2]);
    }

    #[test]
    fn equal_turns_prove_no_more_than_a_gpu_repeats() {
        let round = Round { default: [2.0; 2], plan: [2.02; 2] };
        let interval = Sequence::of(&[round; 4]).and_then(|one| one.interval()).unwrap();
        assert!((interval.estimate - 0.01).abs() < 1e-12);
        assert!(interval.high - interval.estimate > 1e-4, "{interval:?}");
    }

    #[test]
    fn figures_without_a_logarithm_say_nothing() {
        for figure in [f64::NAN, 0.0, -1.0, f64::INFINITY] {
            let round = Round { default: [1.0; 2], plan: [1.0, figure] };
            let says = Sequence::of(&[round; 3]).and_then(|one| one.interval());
            assert_eq!(says, None, "{figure}");
        }
    }

    #[test]
    fn a_steady_drift_changes_nothing() {
        let drifted = |change: f64, drift: f64| {
            let turn = |place: i32| (drift * f64::from(place)).exp();
            let plan = [1, 2].map(|place| turn(place) * (1.0 + change));
            Round { default: [turn(0), turn(3)], plan }
        };
        let interval = Sequence::of(&[drifted(0.02, 0.05); 3]).unwrap().interval().unwrap();
        assert!((interval.estimate - 0.02).abs() < 1e-9, "{interval:?}");
    }
}

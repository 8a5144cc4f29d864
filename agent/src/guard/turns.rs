//! When to compare a plan with default clocks. Pure.
//!
//! Steps at default clocks are what a comparison costs. They are a small share of all, and what is
//! saved of it allows some comparisons in a row when one leaves a doubt, or when steps have become
//! longer than they were.

use std::ops::RangeInclusive;

use pfo_protocol::TrialLength;

/// Steps that a turn at default clocks measures at least, and at most.
const DEFAULT_STEPS: RangeInclusive<u32> = 2..=32;

/// How long a turn at default clocks takes at least, in seconds, unless that is too many steps: a driver
/// counts energy ten times a second.
const LEAST_TURN_S: f64 = 2.0;

/// A turn at default clocks, and one of the plan, which runs before and after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    pub(super) default: TrialLength,
    pub(super) plan: TrialLength,
}

impl Lengths {
    /// Those of steps that take this long, in seconds, if that is known. `pfod` asks for clocks ahead of
    /// time from the fourth step under a plan.
    pub(super) fn of(step_s: Option<f64>) -> Self {
        let (least, most) = DEFAULT_STEPS.into_inner();
        let steps = step_s.map_or(least, |step_s| (LEAST_TURN_S / step_s).ceil() as u32);
        let steps = steps.clamp(least, most);
        Self {
            default: TrialLength { settling_steps: 1, steps },
            plan: TrialLength { settling_steps: 4, steps: steps.saturating_mul(2) },
        }
    }
}

/// Steps at default clocks that one comparison takes: the turn, and one in which ranks change.
const COST: f64 = 4.0;

/// Comparisons that may follow one another at once.
const BURST: f64 = 3.0;

/// Comparisons are later by up to this share of the time between two. Multiples of the golden ratio spread
/// evenly between whole numbers.
const LATER: f64 = 0.25;
const GOLDEN: f64 = 0.618_033_988_749_895;

/// Steps after which a mean of their times is compared.
const LEAST_STEPS: u64 = 20;

/// Which steps were spent on comparisons.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    began: u64,
    spent: f64,
    /// Steps at default clocks that the next comparison takes.
    cost: f64,
    /// The step, and the time in seconds, from which the step time is taken.
    since: (u64, f64),
    /// The step time of the plan at the last comparison, in seconds.
    usual_s: Option<f64>,
    /// Whether the next comparison is not to wait for its turn.
    soon: bool,
}

impl Turns {
    /// From a step on, at a time in seconds.
    pub(super) fn from(step: u64, now_s: f64) -> Self {
        let (spent, cost) = (0.0, COST);
        Self { began: step, spent, cost, since: (step, now_s), usual_s: None, soon: true }
    }

    /// From a step on, of which comparisons have taken some since; the next one takes this many, and is
    /// not to wait for its turn if it is to be soon. It is this step now, at a time in seconds.
    pub(super) fn going_on(
        (began, spent, cost): (u64, u64, u64),
        soon: bool,
        (step, now_s): (u64, f64),
    ) -> Self {
        let cost = COST.max(cost as f64);
        Self { began, spent: spent as f64, cost, since: (step, now_s), usual_s: None, soon }
    }

    /// A step of the plan takes this long, in seconds, if that is known.
    pub(super) fn expect(&mut self, usual_s: Option<f64>) {
        self.usual_s = usual_s;
    }

    /// Whether to compare now, if default clocks may have this share of the steps. The plan is
    /// allowed this slowdown.
    pub(super) fn is_due(&mut self, step: u64, now_s: f64, share: f64, limit: f64) -> bool {
        let earned = step.saturating_sub(self.began) as f64 * share;
        self.soon |= self.has_slowed_down(step, now_s, limit);
        let advance = if self.soon { self.cost * BURST } else { -self.cost * self.later() };
        self.spent + self.cost <= earned + advance
    }

    /// How much later this comparison is, as a share of the time between two. Without that, each would be
    /// at the same place between two checkpoints of a job that makes one after a round number of steps.
    fn later(&self) -> f64 {
        LATER * (self.spent * GOLDEN).fract()
    }

    /// Whether steps take longer than at the last comparison, by more than half of the limit.
    fn has_slowed_down(&mut self, step: u64, now_s: f64, limit: f64) -> bool {
        let (since, since_s) = self.since;
        let steps = step.saturating_sub(since);
        if steps < LEAST_STEPS {
            return false;
        }
        self.since = (step, now_s);
        let step_s = (now_s - since_s) / steps as f64;
        self.usual_s.is_some_and(|usual_s| step_s > usual_s * (1.0 + limit / 2.0))
    }

    /// A comparison that came to nothing is paid for, too.
    pub(super) fn failed(&mut self) {
        self.spent += self.cost;
        self.soon = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: f64 = 0.005;
    const LIMIT: f64 = 0.01;

    /// Runs steps of these times and compares whenever that is due; returns the steps at which.
    fn compared(times_s: impl Iterator<Item = f64>, soon: bool) -> Vec<u64> {
        let (mut now_s, mut steps) = (0.0, Vec::new());
        let mut turns = Turns::from(0, now_s);
        for (step, step_s) in (1..).zip(times_s) {
            now_s += step_s;
            if turns.is_due(step, now_s, SHARE, LIMIT) {
                steps.push(step);
                let spent = COST as u64 * steps.len() as u64;
                turns = Turns::going_on((0, spent, 0), soon, (step, now_s));
                turns.expect(Some(step_s));
            }
        }
        steps
    }

    #[test]
    fn turns_of_short_steps_have_more_of_them() {
        let steps = |step_s| {
            let Lengths { default, plan } = Lengths::of(step_s);
            (default.steps, plan.steps)
        };
        assert_eq!([None, Some(60.0), Some(1.0)].map(steps), [(2, 4); 3]);
        assert_eq!(steps(Some(0.22)), (10, 20));
        assert_eq!([0.01, 0.0, f64::NAN].map(Some).map(steps), [(32, 64), (32, 64), (2, 4)]);
    }

    #[test]
    fn three_comparisons_of_uneven_cost_follow_one_another_at_once() {
        for spent in [7, 13] {
            let mut turns = Turns::going_on((0, spent, 7), true, (60, 60.0));
            assert!(turns.is_due(60, 60.0, SHARE, LIMIT), "{spent}");
        }
    }

    #[test]
    fn the_first_comparison_is_at_once_and_then_its_share_of_steps_is_kept() {
        let steps = compared(std::iter::repeat_n(1.0, 100_000), false);
        assert_eq!(steps[0], 1);
        assert!(COST * steps.len() as f64 <= 100_000.0 * SHARE + COST * BURST, "{}", steps.len());
        assert!(steps.len() >= 105, "{}", steps.len());
    }

    #[test]
    fn comparisons_are_at_all_places_between_two_checkpoints() {
        for every in [10, 50, 100, 500, 1000] {
            let steps = compared(std::iter::repeat_n(1.0, 200_000), false);
            let mut tenths = [0; 10];
            steps.iter().for_each(|step| tenths[(step % every * 10 / every) as usize] += 1);
            let most = steps.len() / 6;
            assert!(tenths.iter().all(|count| (1..=most).contains(count)), "{every}: {tenths:?}");
        }
    }

    #[test]
    fn doubts_are_cleared_at_once_but_not_for_ever() {
        let steps = compared(std::iter::repeat_n(1.0, 10_000), true);
        assert_eq!(steps[..2], [1, 2]);
        assert!(COST * steps.len() as f64 <= 10_000.0 * SHARE + COST * BURST, "{}", steps.len());
    }

    #[test]
    fn steps_that_become_longer_are_compared_soon() {
        let slower = (0..2000).map(|step| if step < 1500 { 1.0 } else { 1.12 });
        let steps = compared(slower, false);
        let first = steps.iter().find(|step| **step >= 1500).unwrap();
        assert!(*first < 1500 + 3 * LEAST_STEPS, "{steps:?}");
    }

    #[test]
    fn what_comparisons_cost_is_what_they_took_and_who_goes_on_knows_it() {
        let due = |spent, soon, step| {
            Turns::going_on((1000, spent, 40), soon, (step, 0.0)).is_due(step, 0.0, SHARE, LIMIT)
        };
        assert!(due(0, true, 1001) && due(80, true, 1001) && !due(120, true, 1001));
        // Later by a quarter of 0.72, which is 40 times the golden ratio.
        assert!(!due(40, false, 1000 + 17_442) && due(40, false, 1000 + 17_443));
    }

    #[test]
    fn a_share_of_nothing_allows_only_the_burst() {
        let mut turns = Turns::from(0, 0.0);
        let mut count = 0_u32;
        for step in 1..10_000 {
            if turns.is_due(step, step as f64, 0.0, LIMIT) {
                count += 1;
                let spent = COST as u64 * u64::from(count);
                turns = Turns::going_on((0, spent, 0), true, (step, step as f64));
            }
        }
        assert!(count <= BURST as u32, "{count}");
    }
}

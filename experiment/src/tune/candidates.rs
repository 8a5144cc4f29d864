//! Which plans of a frontier are tried on a job, one after another: the one that saves most within
//! the slowdown that is allowed; as long as that proves too slow, faster ones, and while it leaves
//! time, slower ones; and between one that is too slow and one that is not, what measured times and
//! savings say is best.

use pfo_planner::{Deadline, Due, Frontier, Plan, PlanError, Point};

use crate::cost::Cost;
use crate::judge::Compared;

/// The slowdown that a plan should take by its prediction, if at most this much is allowed: inside the
/// limit by what a comparison can tell apart, and by what a prediction may be off by.
pub(crate) fn aim(max_slowdown: f64, apart: f64) -> f64 {
    const SHARE: f64 = 0.25;
    const MOST: f64 = 0.005;
    inside(max_slowdown, (SHARE * max_slowdown).min(MOST).max(apart))
}

/// The slowdown that a plan may take once another one has shown what the job takes: inside the limit by what
/// a comparison can tell apart.
fn nearest(max_slowdown: f64, apart: f64) -> f64 {
    const SHARE: f64 = 0.05;
    const MOST: f64 = 0.001;
    inside(max_slowdown, (SHARE * max_slowdown).min(MOST).max(apart))
}

/// However much turns scatter, half of the allowed slowdown is used: the verdict may then be only likely.
fn inside(max_slowdown: f64, margin: f64) -> f64 {
    max_slowdown - margin.min(0.5 * max_slowdown)
}

/// Plans whose times differ by a smaller share of a step are not told apart by measuring them.
const FINEST: f64 = 0.001;

/// A share of the step that is worth another plan, if it is left over.
const WORTH_USING: f64 = 0.003;

/// What a job is tuned for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    /// What a step takes at default clocks, in seconds.
    pub(crate) default_s: f64,
    /// By what share a step may take longer.
    pub(crate) max_slowdown: f64,
    /// The changes of clocks that a GPU may make in a second.
    pub(crate) changes_per_second: f64,
    /// Slowdowns that differ by less are not told apart in the requested rounds.
    pub(crate) apart: f64,
}

/// A plan to be tried.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) plan: Plan,
    /// The share of energy that it should save: what it promises, or as much of that as others kept, and
    /// what these saved beyond their promise.
    pub(crate) expected: f64,
}

/// A plan that was tried.
#[derive(Clone, Copy, Debug)]
struct Tried {
    /// What a step takes by its prediction, in seconds.
    predicted_s: f64,
    slowdown: f64,
    saving: f64,
}

/// The plans of a frontier that are still to be tried.
#[derive(Debug)]
pub(crate) struct Candidates {
    frontier: Frontier,
    /// What a step costs with every instruction at its highest clock.
    all_max: Cost,
    goal: Goal,
    /// The slowest plan that was fast enough.
    fast: Option<Tried>,
    /// The fastest plan that was too slow.
    slow: Option<Tried>,
    /// What the last plan saved, as a share of what was predicted of it, and 1 at most.
    share_kept: f64,
    /// By how much more the last plan saved than was predicted of it, as a share of the energy at default
    /// clocks: waits that draw less at its clocks do that, where planning has one power for all clocks.
    /// A slower plan keeps such a gain.
    beyond: f64,
    is_exhausted: bool,
}

impl Candidates {
    pub(crate) fn new(frontier: Frontier, all_max: Cost, goal: Goal) -> Self {
        Self {
            frontier,
            all_max,
            goal,
            fast: None,
            slow: None,
            share_kept: 1.0,
            beyond: 0.0,
            is_exhausted: false,
        }
    }

    /// The same job with another frontier, because more is known of what plans take; what came of
    /// those that were tried is to be observed again.
    pub(crate) fn replaced(&self, frontier: Frontier) -> Self {
        Self::new(frontier, self.all_max, self.goal)
    }

    /// What a step takes, in seconds, as far as it was profiled, if it is longer than at default clocks
    /// by this share: what a job does beside takes its time under any plan.
    pub(crate) fn measured_s(&self, slowdown: f64) -> f64 {
        self.all_max.iteration_time_s + slowdown * self.goal.default_s
    }

    pub(crate) fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    /// The next plan; none if there is nothing more to learn.
    pub(crate) fn next(&self) -> Result<Option<Candidate>, PlanError> {
        if self.is_exhausted {
            return Ok(None);
        }
        let [fastest_s, cheapest_s] =
            [Deadline::Fastest, Deadline::MinEnergy].map(|end| self.frontier.seconds(end));
        let Goal { default_s, max_slowdown, apart, .. } = self.goal;
        let (slowdown, nearest) = (aim(max_slowdown, apart), nearest(max_slowdown, apart));
        let step_s = (cheapest_s - fastest_s) / self.frontier.points().len() as f64;
        let finest_s = step_s.min(FINEST * default_s);
        let (limit_s, measured) = match (self.fast, self.slow) {
            // A hair more, so that a plan exactly as fast is within 0 %.
            (None, None) => (self.measured_s(slowdown) * (1.0 + 1e-12), None),
            // A job may be less slow than its plan said.
            (Some(fast), None) => {
                let left_s = (nearest - fast.slowdown) * default_s;
                let limit_s = (fast.predicted_s + left_s).min(cheapest_s);
                if limit_s - fast.predicted_s <= WORTH_USING * default_s {
                    return Ok(None);
                }
                (limit_s, None)
            }
            (None, Some(slow)) => {
                // One too slow by next to nothing: the next one on the frontier.
                let over_s = ((slow.slowdown - slowdown) * default_s).max(step_s);
                (slow.predicted_s.min(cheapest_s) - over_s, None)
            }
            (Some(fast), Some(slow)) => {
                let between_s = slow.predicted_s - fast.predicted_s;
                let share = (nearest - fast.slowdown) / (slow.slowdown - fast.slowdown);
                // One too slow by a hair leaves room for another one beside it.
                let apart_s = (share * between_s).min(between_s - finest_s);
                if apart_s.is_nan() || apart_s <= finest_s {
                    return Ok(None);
                }
                let along = |fast: f64, slow: f64| fast + apart_s / between_s * (slow - fast);
                (fast.predicted_s + apart_s, Some(along(fast.saving, slow.saving)))
            }
        };
        if self.slow.is_some_and(|slow| slow.predicted_s <= fastest_s) {
            return Ok(None);
        }
        let plan = self.frontier.plan_for(Due::AtMost(limit_s.max(fastest_s)))?;
        if !self.is_allowed(&plan) {
            let allowed = self.cheapest_allowed(limit_s)?.filter(|_| measured.is_none());
            return Ok(allowed.map(|plan| self.as_promised(plan)));
        }
        Ok(Some(match measured {
            Some(expected) => Candidate { plan, expected },
            None => self.as_promised(plan),
        }))
    }

    fn as_promised(&self, plan: Plan) -> Candidate {
        let expected = self.share_kept * self.promised(&plan) + self.beyond;
        Candidate { plan, expected }
    }

    /// Whether a plan changes clocks no more often than the policy allows.
    fn is_allowed(&self, plan: &Plan) -> bool {
        let Goal { default_s, changes_per_second, .. } = self.goal;
        plan.most_clock_changes() as f64 <= changes_per_second * default_s
    }

    /// The plan of this frontier that takes least energy of those that the policy allows and that take
    /// no longer, in seconds, than this.
    fn cheapest_allowed(&self, limit_s: f64) -> Result<Option<Plan>, PlanError> {
        let is_in_time = |point: &Point| point.iteration_time_s <= limit_s;
        let mut in_time: Vec<(usize, Point)> =
            self.frontier.plans().enumerate().filter(|(_, point)| is_in_time(point)).collect();
        in_time.sort_by(|(_, a), (_, b)| a.iteration_energy_j.total_cmp(&b.iteration_energy_j));
        for (place, _) in in_time {
            let plan = self.frontier.plan(place)?;
            if self.is_allowed(&plan) {
                return Ok(Some(plan));
            }
        }
        Ok(None)
    }

    /// What came of a plan.
    pub(crate) fn observe(&mut self, plan: &Plan, compared: &Compared) {
        let Some(predicted) = plan.predicted else { return };
        let (slowdown, saving) = (compared.slowdown.estimate, compared.saving.estimate);
        let tried = Tried { predicted_s: predicted.iteration_time_s, slowdown, saving };
        let promised = self.promised(plan);
        if promised > 0.0 {
            self.share_kept = (saving / promised).clamp(0.0, 1.0);
            self.beyond = (saving - promised).max(0.0);
        }
        if slowdown > nearest(self.goal.max_slowdown, self.goal.apart) {
            self.slow = Some(tried);
            return;
        }
        self.fast = Some(tried);
        // A slower plan that saved less is not of this frontier: it was made for shorter delays. What
        // saves more may lie beyond it.
        self.slow = self.slow.filter(|slow| slow.saving > saving);
    }

    /// Whether a plan that was too slow saved something: between it and a faster one may lie the best.
    pub(crate) fn slower_saves(&self) -> bool {
        self.slow.is_some_and(|slow| slow.saving > 0.0)
    }

    /// No other plan is to be tried.
    pub(crate) fn exhaust(&mut self) {
        self.is_exhausted = true;
    }

    fn promised(&self, plan: &Plan) -> f64 {
        plan.predicted.map_or(0.0, |cost| Cost::from(cost).saving_on(&self.all_max))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::sync::LazyLock;

    use pfo_planner::{Options, Pipeline, Profile, Schedule, Watts};
    use proptest::prelude::*;

    use super::*;
    use crate::interval::Interval;

    static FRONTIER: LazyLock<Frontier> = LazyLock::new(frontier);

    fn frontier() -> Frontier {
        let mut csv = String::from("stage,instruction,frequency,time,energy\n");
        for (stage, scale) in [(0, 1.0), (1, 1.2)] {
            for mhz in (1000..=1400).step_by(20) {
                let slower = 1400.0 / f64::from(mhz);
                for (instruction, time_s) in [("forward", 0.05), ("backward", 0.1)] {
                    let (time_s, energy_j) =
                        (scale * time_s * slower, scale * 400.0 * time_s / slower.powi(2));
                    writeln!(csv, "{stage},{instruction},{mhz},{time_s},{energy_j}").unwrap();
                }
            }
        }
        let profile = Profile::from_csv(csv.as_bytes()).unwrap();
        let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, 4).unwrap();
        Frontier::optimize(&pipeline, Watts(80.0), Options::default(), &|_| {}).unwrap()
    }

    fn costs() -> impl Iterator<Item = Cost> {
        FRONTIER.points().map(|point| Cost {
            iteration_time_s: point.iteration_time_s,
            iteration_energy_j: point.iteration_energy_j,
        })
    }

    fn all_max() -> Cost {
        costs().next().unwrap()
    }

    fn candidates(default_s: f64, max_slowdown: f64) -> Candidates {
        let goal = Goal { default_s, max_slowdown, changes_per_second: f64::INFINITY, apart: 0.0 };
        Candidates::new(FRONTIER.clone(), all_max(), goal)
    }

    fn time_s(plan: &Plan) -> f64 {
        plan.predicted.unwrap().iteration_time_s
    }

    fn compared(saving: f64, slowdown: f64) -> Compared {
        let exactly = |share| Interval { estimate: share, low: share, high: share };
        Compared {
            rounds: 4,
            saving: exactly(saving),
            slowdown: exactly(slowdown),
            disturbed: false,
        }
    }

    #[test]
    fn the_first_saves_most_of_those_within_the_slowdown() {
        let all_max_s = all_max().iteration_time_s;
        let first = candidates(all_max_s, 0.02).next().unwrap().unwrap();
        let aim_s = (1.0 + aim(0.02, 0.0)) * all_max_s;
        let within = FRONTIER.points().filter(|point| point.iteration_time_s <= aim_s);
        let predicted = first.plan.predicted.unwrap();
        assert!(predicted.iteration_time_s <= aim_s * (1.0 + 1e-12));
        assert!(predicted.iteration_energy_j <= within.last().unwrap().iteration_energy_j);
        assert_eq!(first.expected, Cost::from(predicted).saving_on(&all_max()));
    }

    #[test]
    fn a_step_that_has_more_in_it_than_was_profiled_may_take_more() {
        let all_max_s = all_max().iteration_time_s;
        let first = |default_s| time_s(&candidates(default_s, 0.02).next().unwrap().unwrap().plan);
        assert!(first(2.0 * all_max_s) > first(all_max_s));
    }

    #[test]
    fn one_that_keeps_what_it_promised_is_the_last() {
        let mut candidates = candidates(all_max().iteration_time_s, 0.02);
        let first = candidates.next().unwrap().unwrap();
        candidates.observe(&first.plan, &compared(first.expected, 0.019));
        assert!(candidates.next().unwrap().is_none());
    }

    #[test]
    fn what_one_saves_beyond_its_promise_is_expected_of_the_next_one_too() {
        let mut candidates = candidates(all_max().iteration_time_s, 0.02);
        let first = candidates.next().unwrap().unwrap();
        candidates.observe(&first.plan, &compared(first.expected + 0.02, 0.011));
        let second = candidates.next().unwrap().unwrap();
        let promised = Cost::from(second.plan.predicted.unwrap()).saving_on(&all_max());
        assert!(promised < first.expected + 0.02, "{promised}: not worth trying by its promise");
        assert!((second.expected - promised - 0.02).abs() < 1e-12, "{}", second.expected);
        candidates.observe(&second.plan, &compared(0.5 * promised, 0.011));
        let third = candidates.next().unwrap().unwrap();
        let promised = Cost::from(third.plan.predicted.unwrap()).saving_on(&all_max());
        assert!((third.expected - 0.5 * promised).abs() < 1e-12, "{}", third.expected);
    }

    #[test]
    fn one_that_leaves_time_is_followed_by_one_that_takes_it() {
        let default_s = all_max().iteration_time_s;
        let mut candidates = candidates(default_s, 0.02);
        let first = candidates.next().unwrap().unwrap();
        candidates.observe(&first.plan, &compared(0.6 * first.expected, 0.011));
        let second = candidates.next().unwrap().unwrap();
        let more = (time_s(&second.plan) - time_s(&first.plan)) / default_s;
        assert!(more > 0.006 && more <= 0.009 + 1e-9, "{more}");
        candidates.observe(&second.plan, &compared(0.7 * second.expected, 0.024));
        let third = candidates.next().unwrap().unwrap();
        assert!(time_s(&third.plan) > time_s(&first.plan));
        assert!(time_s(&third.plan) < time_s(&second.plan));
    }

    #[test]
    fn the_best_may_lie_between_one_too_slow_by_a_hair_and_one_that_saves_nothing() {
        let default_s = all_max().iteration_time_s;
        let mut candidates = candidates(default_s, 0.02);
        let first = candidates.next().unwrap().unwrap();
        candidates.observe(&first.plan, &compared(0.04, 0.0207));
        let second = candidates.next().unwrap().unwrap();
        assert!(candidates.slower_saves());
        candidates.observe(&second.plan, &compared(0.001, -0.001));
        let third = candidates.next().unwrap().unwrap();
        assert!(third.expected > 0.03, "{}", third.expected);
        assert!((time_s(&second.plan)..time_s(&first.plan)).contains(&time_s(&third.plan)));
    }

    #[test]
    fn one_made_without_knowing_the_delays_does_not_bound_those_made_with_them() {
        let default_s = all_max().iteration_time_s;
        let mut candidates = candidates(default_s, 0.02);
        let unknowing = candidates.next().unwrap().unwrap();
        candidates.observe(&unknowing.plan, &compared(0.5 * unknowing.expected, 0.06));
        let second = candidates.next().unwrap().unwrap();
        candidates.observe(&second.plan, &compared(0.8 * unknowing.expected, 0.006));
        let third = candidates.next().unwrap().unwrap();
        let more = (time_s(&third.plan) - time_s(&second.plan)) / default_s;
        assert!(more > 0.01 && more <= 0.014 + 1e-9, "{more}");
    }

    #[test]
    fn what_changes_clocks_more_often_than_the_policy_allows_is_not_tried() {
        let default_s = all_max().iteration_time_s;
        let next = |changes_in_a_step: f64| {
            let changes_per_second = changes_in_a_step / default_s;
            let goal = Goal { default_s, max_slowdown: 0.05, changes_per_second, apart: 0.0 };
            let candidate = Candidates::new(FRONTIER.clone(), all_max(), goal).next().unwrap();
            candidate.map(|candidate| (candidate.plan.most_clock_changes(), candidate.expected))
        };
        let (most, free) = next(f64::INFINITY).unwrap();
        assert!(most > 2);
        assert_eq!(next(most as f64), Some((most, free)));
        if let Some((changes, expected)) = next(most as f64 - 0.5) {
            assert!(changes < most && expected <= free, "{changes}: {expected} of {free}");
        }
    }

    proptest! {
        // Each plans dozens of times.
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn each_next_one_is_faster_while_all_are_too_slow(
            slowdown in 0.0_f64..0.3, over in 0.001_f64..0.05
        ) {
            let mut candidates = candidates(all_max().iteration_time_s, slowdown);
            let mut last_s = f64::INFINITY;
            let mut tried = 0;
            while let Some(Candidate { plan, .. }) = candidates.next().unwrap() {
                prop_assert!(time_s(&plan) < last_s);
                last_s = time_s(&plan);
                tried += 1;
                candidates.observe(&plan, &compared(0.0, slowdown + over));
            }
            prop_assert_eq!(last_s, all_max().iteration_time_s);
            prop_assert!(tried <= FRONTIER.plans().len() + 1);
        }

        /// Plans that change clocks cost a job more time than predicted, in proportion to what they
        /// save, and save less.
        #[test]
        fn a_few_end_near_the_most_that_is_within_the_slowdown(
            slowdown in 0.005_f64..0.1, cost in 0.0_f64..3.0, kept in 0.5_f64..1.0
        ) {
            let all_max = all_max();
            let outcome = |cost_of: Cost| {
                let promised = cost_of.saving_on(&all_max);
                let predicted = cost_of.iteration_time_s / all_max.iteration_time_s - 1.0;
                compared(kept * promised, predicted + cost * promised.powi(2))
            };
            let within = costs().map(outcome);
            let best = within
                .filter(|point| point.slowdown.estimate <= slowdown)
                .map(|point| point.saving.estimate)
                .fold(0.0, f64::max);
            let mut candidates = candidates(all_max.iteration_time_s, slowdown);
            let mut found: Option<f64> = None;
            for _ in 0..8 {
                let Some(Candidate { plan, expected }) = candidates.next().unwrap() else { break };
                if found.is_some_and(|found| expected <= found + 0.005) {
                    break;
                }
                let outcome = outcome(plan.predicted.unwrap().into());
                if outcome.slowdown.estimate <= slowdown {
                    let saving = outcome.saving.estimate;
                    found = Some(found.map_or(saving, |found| found.max(saving)));
                }
                candidates.observe(&plan, &outcome);
            }
            prop_assert!(found.unwrap_or(0.0) >= 0.75 * best - 0.005, "{found:?} of {best}");
        }
    }
}

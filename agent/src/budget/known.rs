//! What is known of one job from one look to the next: what it runs by itself, what a budget had it run
//! last, and what its counters say.

use std::collections::BTreeMap;

use pfo_budget::Paces;
use pfo_fleet::Run;
use pfo_protocol::{JobView, Mhz, RankWindow, SessionId};
use serde::{Deserialize, Serialize};

use crate::budget::witness::Witness;
use crate::straggler::Labelled;

/// The tag of what a job runs by itself.
pub(super) const OWN: u32 = u32::MAX;

/// Tags from here on are clocks for everything, in MHz above it; those below are places in a frontier.
pub(super) const UNIFORM: u32 = 1 << 30;

/// The newest measured power counts until this many seconds, and this many times the measured steps' duration, pass
/// without a new one: then the job stands still, or something has changed.
const OVERDUE_S: f64 = 10.0;
const OVERDUE_TIMES: f64 = 3.0;

/// What shorter steps drew is read when this many seconds of them are over: counters are refreshed ten times a
/// second, which is up to a quarter of a step of 0.4 s.
const LEAST_S: f64 = 4.0;

/// Steps after which a mean of their time and energy is taken for the job's own.
const LEAST_STEPS: u64 = 3;

/// Looks in a row at a job on several nodes in which it may run what it ran before a swap.
const LONGEST_CHANGE: u32 = 15;

/// Orders that are remembered.
const REMEMBERED: usize = 4;

/// What a job runs by itself, without a budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Own {
    /// What its plan is called; none at default clocks.
    pub(super) label: Option<String>,
    /// The plan, if it has a clock table.
    pub(super) plan: Option<Labelled>,
    /// A step, in seconds.
    pub(super) time_s: f64,
    /// What all its GPUs draw meanwhile, in watts.
    pub(super) power_w: f64,
}

/// A point that a budget had a job run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ordered {
    pub(super) label: String,
    pub(super) tag: u32,
    /// The number of the swap that brings it.
    #[serde(default)]
    pub(super) swap: Option<u64>,
}

impl Ordered {
    /// Whether `pfod` has ended it, and nobody has swapped: one clock for everything is a trial to `pfod`,
    /// which no restart of it survives.
    fn was_ended_by_pfod(&self, job: &JobView) -> bool {
        (UNIFORM..OWN).contains(&self.tag) && self.swap == Some(job.swap)
    }
}

/// What is known of a job.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) own: Option<Own>,
    /// What that is, of a job that has ranks on other nodes.
    pub(super) own_run: Option<Run>,
    /// A step of its own, in seconds, and what it drew, in watts, while no power limit held it.
    pub(super) unlimited: Option<(f64, f64)>,
    /// How long its steps took at one clock for everything, without a frontier.
    pub(super) paces: Paces,
    /// The clocks that all of its ranks may have, once that is known.
    pub(super) clocks: Option<Vec<Mhz>>,
    /// The number of the plan that this is, once it was seen.
    own_number: Option<Option<u32>>,
    /// What was ordered last, and before that: one of these may still run. Nothing if it runs its own.
    pub(super) ordered: Vec<Ordered>,
    /// The tag of the newest swap, which ranks may have yet to take up.
    newest: Option<u32>,
    running: Option<u32>,
    /// Looks since it was settled, of a job that has ranks on other nodes.
    changing: u32,
    meter: Meter,
    pub(super) witness: Witness,
    /// For how long it has had no rank, in seconds.
    pub(super) gone_s: f64,
    /// What it drew since the last look, if that was measured, in watts.
    pub(super) fresh_w: Option<f64>,
    /// What it drew when no power limit held it, in watts.
    pub(super) free_w: Option<f64>,
    /// Looks in a row in which that was far off what its frontier says.
    pub(super) off: u32,
    /// Whether its frontier is not believed any more.
    pub(super) is_off: bool,
    /// What it drew in the newest steps that all counters tell of, limited as it is now.
    last: Option<Drew>,
    is_limited: bool,
    /// The newest swap under which a power limit held it for a while.
    limited_swap: Option<u64>,
    /// What it gave up so far: joules, and seconds at its own pace.
    pub(super) given_j: f64,
    pub(super) lost_s: f64,
    /// Why it could not be changed, if so.
    pub(super) problem: Option<String>,
}

impl Known {
    /// A job that an earlier agent slowed down.
    pub(super) fn restored(own: Own, ordered: Vec<Ordered>, [given_j, lost_s]: [f64; 2]) -> Self {
        Self { own: Some(own), ordered, given_j, lost_s, ..Self::default() }
    }

    /// Looks at the plan of a job that nobody measures. What is none of the budget's is the job's own;
    /// if it is another one than before, it has to be found out again.
    pub(super) fn look(&mut self, job: &JobView) {
        let label = job.plan.as_ref().map(|plan| plan.label.as_str());
        let number = job.plan.as_ref().map(|plan| plan.number);
        let of_budget =
            self.ordered.iter_mut().rev().find(|ordered| Some(ordered.label.as_str()) == label);
        let is_suspended = job.plan.as_ref().is_some_and(|plan| plan.suspended.is_some());
        let is_settled =
            !job.ranks.is_empty() && job.ranks.iter().all(|rank| rank.swap == job.swap);
        if let Some(ordered) = of_budget {
            ordered.swap = Some(job.swap);
            self.newest = Some(ordered.tag);
            if is_suspended && ordered.tag < UNIFORM {
                // Its plans are none of this job.
                self.is_off = true;
            }
            if is_settled {
                self.running = self.newest.filter(|_| !is_suspended);
            }
            return;
        }
        if label.is_none() && self.ordered.last().is_some_and(|last| last.was_ended_by_pfod(job)) {
            (self.newest, self.running) = (None, None);
            return;
        }
        self.newest = Some(OWN);
        let is_of_others = self.meter.is_of_others(job);
        if !self.is_own(label, number) || is_of_others {
            // Until it is known what it runs by itself, it is the same at each look.
            let is_same = self.own.is_none() && self.own_number == Some(number) && !is_of_others;
            let unlimited = self.unlimited.filter(|_| is_same);
            self.forget_own();
            self.unlimited = unlimited;
            self.own_number = Some(number);
            self.ordered.clear();
        } else if is_settled && self.ordered.last().is_some_and(|last| last.tag == OWN) {
            self.ordered.clear();
        }
        if is_settled {
            self.running = Some(OWN).filter(|_| !is_suspended);
        }
    }

    /// Takes note of what a job was to run last that has ranks on other nodes, and whether all of its ranks
    /// here do. While they change they run what they ran before.
    pub(super) fn note_whole(&mut self, newest: u32, is_taken_up: bool) {
        self.ordered.clear();
        self.newest = Some(newest);
        self.changing = if is_taken_up { 0 } else { self.changing.saturating_add(1) };
        if is_taken_up {
            self.running = Some(newest);
        } else if self.changing > LONGEST_CHANGE {
            self.running = None;
        }
    }

    fn is_own(&self, label: Option<&str>, number: Option<u32>) -> bool {
        let same_label = self.own.as_ref().is_some_and(|own| own.label.as_deref() == label);
        same_label && self.own_number.is_none_or(|own| own == number)
    }

    /// It runs something else by itself.
    pub(super) fn forget_own(&mut self) {
        (self.own, self.unlimited, self.paces) = (None, None, Paces::default());
    }

    /// Takes note of what it draws, and of how long its steps take by itself and at one clock for everything, while
    /// no power limit holds it.
    pub(super) fn note_unlimited(&mut self, (power_w, is_held): (f64, bool), job: &JobView) {
        self.free_w = Some(power_w);
        // Its windows are those since the newest swap.
        if !is_held && self.limited_swap != Some(job.swap) {
            self.note_pace(job);
        }
    }

    fn note_pace(&mut self, job: &JobView) {
        if self.running == Some(OWN) {
            self.unlimited = measured(job).or(self.unlimited);
        }
        let uniform = self.running.filter(|tag| *tag < OWN);
        let mhz = uniform.and_then(|tag| tag.checked_sub(UNIFORM));
        let Some((mhz, (steps, time_s))) = mhz.zip(pace(job)) else { return };
        self.paces.take(mhz, steps, time_s);
    }

    /// Takes note that it is to change.
    pub(super) fn order(&mut self, ordered: Ordered) {
        if ordered.tag == OWN {
            // It gets another number.
            self.own_number = None;
        }
        // One that was in force may be ordered again, and be refused.
        let key = |ordered: &Ordered| (ordered.tag, ordered.swap);
        if self.ordered.last().map(key) != Some(key(&ordered)) {
            self.ordered.push(ordered);
        }
        let excess = self.ordered.len().saturating_sub(REMEMBERED);
        self.ordered.drain(..excess);
    }

    /// Takes note that it will not change to what was ordered last.
    pub(super) fn refused(&mut self, why: String) {
        self.ordered.pop();
        self.problem = Some(why);
    }

    /// Whether to request a change to this point.
    pub(super) fn is_due(&self, tag: u32) -> bool {
        self.newest != Some(tag)
    }

    /// The tag of what all ranks run.
    pub(super) fn running(&self) -> Option<u32> {
        self.running
    }

    /// Whether all ranks run its own, and no swap is under way from that.
    pub(super) fn is_given_back(&self) -> bool {
        (self.newest, self.running) == (Some(OWN), Some(OWN))
    }

    /// Whether a budget has it run something else than its own.
    pub(super) fn is_slowed(&self) -> bool {
        self.ordered.iter().any(|ordered| ordered.tag != OWN)
    }

    /// What it drew under its plan alone since the last look, if that was measured, and what is counted for it,
    /// in watts.
    pub(super) fn drawn(
        &mut self,
        job: &JobView,
        (energy_j, elapsed_s): (Option<f64>, f64),
        (is_held, is_limited): (bool, bool),
    ) -> (Option<f64>, Option<f64>) {
        let is_other = std::mem::replace(&mut self.is_limited, is_limited) != is_limited;
        if is_limited {
            self.limited_swap = Some(job.swap);
        }
        // A swap changes less than a look in the middle of a step is off.
        self.last = self.last.take().filter(|_| !is_other);
        let measured_w = self.measure(job, energy_j, elapsed_s);
        let counted_w = self.last.as_mut().and_then(|last| last.counted_w(elapsed_s));
        // What it draws under a power limit says nothing of its plan.
        (measured_w.filter(|_| !is_held && !is_limited), counted_w)
    }

    /// What its GPUs drew in the steps since the last look, in watts, if all of them have counted some: no
    /// less than their counters have come to since the last looks.
    pub(super) fn measure(
        &mut self,
        job: &JobView,
        energy_j: Option<f64>,
        elapsed_s: f64,
    ) -> Option<f64> {
        self.witness.take(job.swap, energy_j, elapsed_s);
        let least_w = self.witness.least_w().unwrap_or(0.0);
        let read =
            self.meter.read(job).map(|(measured_w, took_s)| (measured_w.max(least_w), took_s));
        if let Some((watts, took_s)) = read {
            // This look is its first.
            self.last = Some(Drew { watts, took_s, since_s: -elapsed_s });
        }
        self.fresh_w = read.map(|(measured_w, _)| measured_w);
        self.fresh_w
    }
}

/// What steps drew that all counters tell of.
#[derive(Clone, Copy, Debug)]
struct Drew {
    watts: f64,
    took_s: f64,
    /// For how long nothing newer was measured.
    since_s: f64,
}

impl Drew {
    /// What is drawn now after some more seconds, unless the next steps are overdue.
    fn counted_w(&mut self, elapsed_s: f64) -> Option<f64> {
        self.since_s += elapsed_s;
        let is_overdue = self.since_s > OVERDUE_S + OVERDUE_TIMES * self.took_s;
        (!is_overdue).then_some(self.watts)
    }
}

/// The steps since the newest swap and the mean time of one, if every rank has measured enough.
fn pace(job: &JobView) -> Option<(u64, f64)> {
    let mut slowest: Option<(u64, f64)> = None;
    for rank in &job.ranks {
        let window = rank.window.filter(|window| window.steps >= LEAST_STEPS)?;
        let time_s = window.time_s / window.steps as f64;
        if rank.swap != job.swap || !(time_s.is_finite() && time_s > 0.0) {
            return None;
        }
        let of_others = slowest.unwrap_or((window.steps, time_s));
        slowest = Some((of_others.0.min(window.steps), of_others.1.max(time_s)));
    }
    slowest
}

/// The time of a step and the power of all GPUs since the newest swap, if every rank has measured enough.
pub(super) fn measured(job: &JobView) -> Option<(f64, f64)> {
    let (_, time_s) = pace(job)?;
    let power_w = |rank: &pfo_protocol::RankView| {
        let window = rank.window?;
        window.energy_j.filter(|energy_j| *energy_j > 0.0).map(|energy_j| energy_j / window.time_s)
    };
    Some((time_s, job.ranks.iter().map(power_w).sum::<Option<f64>>()?))
}

/// What a uniform clock is called by `pfod`.
pub(super) fn uniform_label(mhz: Mhz) -> String {
    format!("all at {mhz}")
}

/// How far the windows of the ranks were read.
#[derive(Clone, Debug, Default)]
struct Meter(BTreeMap<SessionId, (u64, RankWindow)>);

impl Meter {
    /// Whether it was read, and of none of these ranks: a job of the same name has come in its place.
    fn is_of_others(&self, job: &JobView) -> bool {
        let is_known = |rank: &pfo_protocol::RankView| self.0.contains_key(&rank.session);
        !self.0.is_empty() && !job.ranks.is_empty() && !job.ranks.iter().any(is_known)
    }

    /// What the job drew in the steps since the last time, in watts, and how many seconds these took.
    fn read(&mut self, job: &JobView) -> Option<(f64, f64)> {
        let mut now = BTreeMap::new();
        let (mut power_w, mut took_s) = (0.0, 0.0_f64);
        for rank in &job.ranks {
            let window = rank.window?;
            let before = match self.0.get(&rank.session) {
                Some((swap, before)) if *swap == rank.swap => *before,
                _ => RankWindow { energy_j: Some(0.0), ..RankWindow::default() },
            };
            let (time_s, energy_j) =
                (window.time_s - before.time_s, window.energy_j? - before.energy_j?);
            // The first steps of all are better than none.
            let is_long = time_s >= LEAST_S || self.0.is_empty();
            let is_measured = time_s > 0.0 && energy_j >= 0.0;
            if window.steps <= before.steps || !is_long || !is_measured {
                return None;
            }
            power_w += energy_j / time_s;
            took_s = took_s.max(time_s);
            now.insert(rank.session, (rank.swap, window));
        }
        self.0 = now;
        (power_w > 0.0).then_some((power_w, took_s))
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::PlanStatus;

    use super::*;
    use crate::straggler::tests::job as example;

    fn job(plan: Option<(u32, &str)>) -> JobView {
        let status = |(number, label): (u32, &str)| PlanStatus {
            number,
            label: label.into(),
            predicted_time_s: None,
            predicted_energy_j: None,
            suspended: None,
            power_limits_w: Vec::new(),
        };
        JobView { plan: plan.map(status), ..example(2) }
    }

    fn own(label: Option<&str>) -> Own {
        Own { label: label.map(str::to_owned), plan: None, time_s: 1.0, power_w: 100.0 }
    }

    fn ordered(label: &str, tag: u32) -> Ordered {
        Ordered { label: label.into(), tag, swap: None }
    }

    #[test]
    fn what_was_counted_without_power_limits_says_nothing_of_what_is_drawn_under_them() {
        let job = |steps: u64, energy_j: f64| {
            let mut job = job(None);
            job.ranks.truncate(1);
            let energy_j = Some(energy_j);
            job.ranks[0].window = Some(RankWindow { steps, time_s: 6.0 * steps as f64, energy_j });
            job
        };
        let mut known = Known::default();
        let mut drawn = |steps, energy_j, is_limited| {
            known.drawn(&job(steps, energy_j), (Some(energy_j), 1.0), (false, is_limited))
        };
        assert_eq!(drawn(1, 5400.0, false), (Some(900.0), Some(900.0)));
        assert_eq!(drawn(1, 5400.0, true), (None, None), "no step is over under the limits");
        assert_eq!(drawn(2, 9000.0, true), (None, Some(600.0)), "it says nothing of the plan");
        assert_eq!(drawn(2, 9000.0, true), (None, Some(600.0)), "until the next step is over");
        assert_eq!(drawn(3, 14400.0, false), (Some(900.0), Some(900.0)));
    }

    #[test]
    fn what_a_job_runs_by_itself_is_what_it_ran_before_a_limit_held_it() {
        let mut known = Known::default();
        let mut look = |steps: u64, energy_j: f64, is_limited: bool| {
            let mut job = job(None);
            for rank in &mut job.ranks {
                let time_s = 2.0 * steps as f64;
                rank.window = Some(RankWindow { steps, time_s, energy_j: Some(energy_j) });
            }
            known.look(&job);
            if !is_limited {
                known.note_pace(&job);
            }
            known.unlimited
        };
        let ranks = job(None).ranks.len() as f64;
        let own = Some((2.0, ranks * 100.0));
        assert_eq!(look(5, 1000.0, false), own);
        assert_eq!(look(8, 1400.0, true), own);
        assert_eq!(look(9, 1500.0, true), own);
    }

    #[test]
    fn between_the_ends_of_two_steps_the_last_one_is_counted_until_the_next_is_overdue() {
        let mut known = Known::default();
        let mut counted = |steps: u64, swap: u64, elapsed_s: f64| {
            let mut job = job(None);
            job.ranks.truncate(1);
            (job.swap, job.ranks[0].swap) = (swap, swap);
            let energy_j = Some(3000.0 * steps as f64);
            let time_s = 6.0 * steps as f64;
            job.ranks[0].window = Some(RankWindow { steps, time_s, energy_j });
            known.drawn(&job, (energy_j, elapsed_s), (false, false)).1
        };
        assert_eq!(counted(1, 1, 2.0), Some(500.0));
        assert_eq!(counted(1, 1, 2.0), Some(500.0));
        assert_eq!(counted(1, 1, 26.0), Some(500.0));
        assert_eq!(counted(1, 1, 2.0), None, "28 s after a step of 6 s");
        assert_eq!(counted(2, 1, 2.0), Some(500.0));
        assert_eq!(counted(0, 2, 2.0), Some(500.0), "no step of the next plan is over");
    }

    #[test]
    fn what_the_budget_did_not_order_is_the_jobs_own() {
        let mut known = Known::default();
        known.look(&job(None));
        known.own = Some(own(None));
        known.look(&job(None));
        assert_eq!((known.running(), known.own.is_some()), (Some(OWN), true));
        known.order(ordered("f in budget 3", 3));
        known.look(&job(Some((1, "f in budget 3"))));
        assert_eq!(
            (known.running(), known.own.is_some(), known.is_slowed()),
            (Some(3), true, true)
        );
        known.look(&job(Some((2, "a user's"))));
        assert_eq!(
            (known.running(), known.own.is_some(), known.is_slowed()),
            (Some(OWN), false, false)
        );
    }

    #[test]
    fn a_job_that_is_given_back_runs_its_own_again_under_any_number() {
        let mut known = Known::default();
        known.look(&job(Some((1, "p"))));
        known.own = Some(own(Some("p")));
        known.order(ordered("f in budget 3", 3));
        known.look(&job(Some((2, "f in budget 3"))));
        known.order(ordered("p", OWN));
        known.look(&job(Some((3, "p"))));
        assert!(known.own.is_some());
        assert_eq!(known.running(), Some(OWN));
    }

    #[test]
    fn a_change_is_asked_for_once_and_again_when_pfod_has_lost_it() {
        let mut known = Known::default();
        known.look(&job(None));
        known.own = Some(own(None));
        assert!(known.is_due(3) && !known.is_due(OWN));
        known.order(ordered("f in budget 3", 3));
        known.look(&job(Some((1, "f in budget 3"))));
        assert!(!known.is_due(3) && known.is_due(4) && known.is_due(OWN));
        known.look(&job(None));
        assert!(known.is_due(3) && known.own.is_some());
    }

    #[test]
    fn a_clock_that_a_restart_of_pfod_ended_makes_default_clocks_nobodys_choice() {
        let at = |swap, plan| JobView { swap, ..job(plan) };
        let mut known = Known { own: Some(own(Some("p"))), ..Known::default() };
        known.order(ordered("all at 900 MHz", UNIFORM + 900));
        known.look(&at(5, Some((2, "all at 900 MHz"))));
        known.look(&at(5, None));
        assert!(known.own.is_some() && known.is_due(UNIFORM + 900) && known.is_due(OWN));
        known.look(&at(6, None));
        assert!(known.own.is_none() && !known.is_slowed(), "a user swapped to default clocks");
    }

    #[test]
    fn a_job_that_is_about_to_be_slowed_down_is_not_given_back() {
        let mut known = Known::default();
        known.look(&job(None));
        known.own = Some(own(None));
        assert!(known.is_given_back());
        known.order(ordered("f in budget 3", 3));
        let mut in_a_swap = job(Some((1, "f in budget 3")));
        in_a_swap.swap += 1;
        known.look(&in_a_swap);
        assert!(known.running() == Some(OWN) && !known.is_given_back());
        assert!(known.is_due(OWN));
    }

    #[test]
    fn a_frontier_whose_plan_is_suspended_is_not_believed() {
        let mut known = Known::default();
        known.look(&job(None));
        known.own = Some(own(None));
        known.order(ordered("f in budget 3", 3));
        let mut suspended = job(Some((1, "f in budget 3")));
        suspended.plan.as_mut().unwrap().suspended = Some("its instructions differ".into());
        known.look(&suspended);
        assert_eq!((known.running(), known.is_off, known.own.is_some()), (None, true, true));
    }

    #[test]
    fn a_refused_order_is_forgotten_and_what_ran_before_is_still_the_budgets() {
        let mut known = Known::default();
        known.look(&job(None));
        known.own = Some(own(None));
        known.order(ordered("f in budget 3", 3));
        known.look(&job(Some((1, "f in budget 3"))));
        for _ in 0..5 {
            known.order(ordered("", OWN));
            known.refused("it is in a swap".into());
            assert!(known.is_due(OWN));
            known.look(&job(Some((1, "f in budget 3"))));
            assert_eq!((known.running(), known.own.is_some()), (Some(3), true));
        }
        known.order(ordered("", OWN));
        known.look(&job(None));
        assert!(!known.is_slowed());
    }

    #[test]
    fn a_job_on_several_nodes_runs_what_it_ran_while_it_changes_but_not_for_ever() {
        let mut known = Known::default();
        known.note_whole(OWN, true);
        known.note_whole(3, false);
        assert_eq!((known.running(), known.is_due(3)), (Some(OWN), false));
        known.note_whole(3, true);
        assert_eq!((known.running(), known.is_slowed()), (Some(3), false));
        (0..=LONGEST_CHANGE).for_each(|_| known.note_whole(4, false));
        assert_eq!(known.running(), None, "nobody knows what it runs");
    }

    #[test]
    fn power_is_that_of_the_steps_since_the_last_look_of_all_ranks() {
        let window = |steps: u64, energy_j| RankWindow {
            steps,
            time_s: 4.0 * steps as f64,
            energy_j: Some(energy_j),
        };
        let with = |windows: [Option<RankWindow>; 2]| {
            let mut job = example(2);
            job.ranks.iter_mut().zip(windows).for_each(|(rank, window)| rank.window = window);
            job
        };
        let mut meter = Meter::default();
        assert_eq!(meter.read(&with([Some(window(1, 100.0)), None])), None);
        let first = with([Some(window(2, 400.0)), Some(window(1, 60.0))]);
        assert_eq!(meter.read(&first), Some((65.0, 8.0)));
        assert_eq!(meter.read(&first), None, "no rank has a step more");
        let ahead = with([Some(window(3, 500.0)), Some(window(1, 60.0))]);
        assert_eq!(meter.read(&ahead), None, "one has none");
        let both = with([Some(window(4, 600.0)), Some(window(2, 90.0))]);
        assert_eq!(meter.read(&both), Some((32.5, 8.0)));
        assert_eq!(
            measured(&with([Some(window(4, 600.0)), Some(window(3, 90.0))])),
            Some((4.0, 45.0))
        );
        assert_eq!(measured(&both), None, "too few steps");
    }
}

//! What a job can run, as a curve of time and power: its own plan or default clocks first, then what is
//! slower. Pure.

use std::collections::BTreeMap;

use pfo_budget::{BudgetError, Curve, Point, Steering};
use pfo_protocol::{JobView, Mhz};

use crate::budget::known::{OWN, Own, UNIFORM};
use crate::straggler::JobFrontier;

/// Plans of a frontier that are chosen from, at most: the decision is made again at each look.
const MOST_PLANS: usize = 4096;

/// Clocks that a job without a frontier is steered by, at most.
const MOST_CLOCKS: usize = 256;

/// The share of its power that a GPU is taken to draw at any clock. What it draws in truth is measured
/// once it runs there; this is no less than what GPUs were seen to draw.
const CLOCKLESS: f64 = 0.4;

/// The rest is taken to fall as the speed to this exponent. Measured GPUs (A100, A40) save more by it. More
/// than 1, so that the first watts cost a job less than the next ones and equal jobs give up alike.
const OF_SPEED: f64 = 1.25;

/// A new mean replaces the old one when it is of this many times as many steps.
const MORE: u64 = 4;

/// By this share the own clocks of a job are taken to be faster than plans that take as long, so that they
/// are its first choice.
const PREFERRED: f64 = 1e-4;

/// The curve of a job with a frontier and this number of pipelines, without points faster than its
/// own plan.
///
/// # Errors
/// If a number is none.
pub(super) fn of_frontier(
    frontier: &JobFrontier,
    own: &Own,
    pipelines: f64,
    slowest: Option<f64>,
) -> Result<Curve, BudgetError> {
    let fastest_s = frontier.points().next().map_or(own.time_s, |point| point.iteration_time_s);
    let own = if own.label.is_none() {
        Own { time_s: own.time_s.min(fastest_s * (1.0 - PREFERRED)), ..own.clone() }
    } else {
        own.clone()
    };
    let (last, every) = most(frontier.points().len());
    let plans = (0_u32..)
        .zip(frontier.points())
        .filter(|(tag, _)| tag.is_multiple_of(every) || *tag == last);
    let plans = plans.map(|(tag, point)| Point {
        time_s: point.iteration_time_s,
        power_w: pipelines * point.iteration_energy_j / point.iteration_time_s,
        tag,
    });
    let slower = plans.filter(|point| point.time_s > own.time_s * (1.0 + PREFERRED / 2.0));
    let own = Point { time_s: own.time_s, power_w: own.power_w, tag: OWN };
    Curve::new([own].into_iter().chain(slower), slowest)
}

/// The place of the last of these plans, and the share of them to choose from.
fn most(plans: usize) -> (u32, u32) {
    (plans.saturating_sub(1) as u32, plans.div_ceil(MOST_PLANS).max(1) as u32)
}

/// The curve of a job without a frontier, from what was measured of it at its own clocks: one clock for
/// everything takes as much longer as it is lower, and draws less by [`CLOCKLESS`] and [`OF_SPEED`]. Both
/// are pessimistic. How long steps take is corrected by those measured at some clocks, what they draw by the
/// counters.
///
/// # Errors
/// If a number is none.
pub(super) fn of_uniform_clocks(
    clocks: Vec<Mhz>,
    own: &Own,
    paces: &Paces,
    slowest: Option<f64>,
) -> Result<Curve, BudgetError> {
    let highest = match &own.plan {
        Some(plan) => plan.table.stages().iter().flatten().map(|unit| unit.mhz).max(),
        None => clocks.last().copied(),
    };
    let highest_mhz = highest.map_or(0.0, |mhz| f64::from(mhz.0));
    let lower = clocks.into_iter().filter(|mhz| f64::from(mhz.0) < highest_mhz);
    let point = |mhz: Mhz| {
        let share = f64::from(mhz.0) / highest_mhz;
        let power_w = own.power_w * (CLOCKLESS + (1.0 - CLOCKLESS) * share.powf(OF_SPEED));
        let time_s = paces.at(share, highest_mhz, own.time_s) * own.time_s / share;
        Point { time_s, power_w, tag: UNIFORM.saturating_add(mhz.0) }
    };
    let own = Point { time_s: own.time_s, power_w: own.power_w, tag: OWN };
    let mut lower: Vec<Point> = lower.map(point).collect();
    let mut before_s = own.time_s;
    for point in lower.iter_mut().rev() {
        point.time_s = point.time_s.max(before_s * (1.0 + PREFERRED));
        before_s = point.time_s;
    }
    let every = lower.len().div_ceil(MOST_CLOCKS).max(1);
    let some = lower.into_iter().step_by(every);
    Curve::steered(Steering::UniformClocks, [own].into_iter().chain(some), slowest)
}

/// How long steps took that a job without a frontier ran at one clock for everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Paces(BTreeMap<Mhz, Pace>);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Pace {
    steps: u64,
    time_s: f64,
}

impl Paces {
    /// Takes the mean of some steps at a clock, unless that of nearly as many is known: each changes the curve.
    pub(super) fn take(&mut self, mhz: Mhz, steps: u64, time_s: f64) {
        let is_more = |pace: &Pace| steps >= pace.steps.saturating_mul(MORE);
        if self.0.get(&mhz).is_none_or(is_more) {
            self.0.insert(mhz, Pace { steps, time_s });
        }
    }

    /// What steps at this share of the highest clock take, over what they would if all of their time were the
    /// clock's: as interpolated between measured clocks, and as at the lowest of these below it.
    fn at(&self, share: f64, highest_mhz: f64, own_s: f64) -> f64 {
        let mut above = (1.0, 1.0);
        for (mhz, pace) in self.0.iter().rev() {
            let measured = f64::from(mhz.0) / highest_mhz;
            let here = (measured, (pace.time_s * measured / own_s).min(1.0));
            if measured <= share {
                let way = (above.0 - share) / (above.0 - measured);
                return if measured < above.0 {
                    above.1 + way * (here.1 - above.1)
                } else {
                    here.1
                };
            }
            above = here;
        }
        above.1
    }
}

/// The clocks that every rank may have, rising.
pub(super) fn common_clocks(job: &JobView) -> Vec<Mhz> {
    let Some((first, others)) = job.ranks.split_first() else { return Vec::new() };
    let is_common = |mhz: &&Mhz| others.iter().all(|rank| rank.sm_clocks.contains(mhz));
    first.sm_clocks.iter().filter(is_common).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::straggler::tests::{frontier_of, job};

    fn own(label: Option<&str>, time_s: f64, power_w: f64) -> Own {
        Own { label: label.map(str::to_owned), plan: None, time_s, power_w }
    }

    #[test]
    fn default_clocks_are_the_first_point_of_a_frontier_and_never_dominated() {
        let frontier = JobFrontier::read("f".into(), &frontier_of(2, 4), 1 << 20).unwrap();
        let at_default = frontier.point_of(None).unwrap();
        let power_w = 2.0 * at_default.iteration_energy_j / at_default.iteration_time_s;
        let own = own(None, at_default.iteration_time_s, power_w);
        let curve = of_frontier(&frontier, &own, 2.0, None).unwrap();
        assert_eq!(curve.points()[0].tag, OWN);
        assert!(curve.points().len() > 3);
        let last = curve.points()[curve.last()];
        let plan = frontier.points().nth(last.tag as usize).unwrap();
        assert!(
            (last.power_w - 2.0 * plan.iteration_energy_j / plan.iteration_time_s).abs() < 1e-9
        );
        let floor = of_frontier(&frontier, &own, 2.0, Some(1.1)).unwrap();
        assert!(floor.is_cut() && floor.points()[floor.last()].time_s <= 1.1 * own.time_s);
    }

    #[test]
    fn a_frontier_of_very_many_plans_is_chosen_from_with_both_of_its_ends() {
        assert_eq!(
            [1, 4096, 4097, 400_000].map(most),
            [(0, 1), (4095, 1), (4096, 2), (399_999, 98)]
        );
    }

    #[test]
    fn nothing_is_faster_than_the_plan_that_a_user_chose() {
        let frontier = JobFrontier::read("f".into(), &frontier_of(2, 4), 1 << 20).unwrap();
        let middle = frontier.points().len() / 2;
        let point = frontier.points().nth(middle).unwrap();
        let power_w = point.iteration_energy_j / point.iteration_time_s;
        let own = own(Some("p"), point.iteration_time_s, power_w);
        let curve = of_frontier(&frontier, &own, 1.0, None).unwrap();
        assert_eq!(curve.points()[0].tag, OWN);
        assert!(curve.points()[1..].iter().all(|slower| slower.time_s > point.iteration_time_s));
    }

    #[test]
    fn a_lower_clock_for_all_takes_longer_and_draws_less() {
        let curve = of_uniform_clocks(
            common_clocks(&job(2)),
            &own(None, 1.0, 500.0),
            &Paces::default(),
            None,
        )
        .unwrap();
        let tags: Vec<u32> = curve.points().iter().map(|point| point.tag).collect();
        assert_eq!(tags, [OWN, UNIFORM + 1200, UNIFORM + 900]);
        assert_eq!(curve.steering(), Steering::UniformClocks);
    }
    #[test]
    fn what_was_measured_at_some_clocks_is_believed_of_those_between() {
        let clocks = || (300..=1500).step_by(300).map(Mhz).collect();
        let mut paces = Paces::default();
        // Half of a step is the clock's at 900 MHz.
        paces.take(Mhz(900), 3, 1.0 + 0.5 * (1500.0 / 900.0 - 1.0));
        let times = |paces: &Paces| -> Vec<f64> {
            let curve = of_uniform_clocks(clocks(), &own(None, 1.0, 500.0), paces, None).unwrap();
            curve.points().iter().map(|point| (1000.0 * point.time_s).round() / 1000.0).collect()
        };
        assert_eq!(times(&paces), [1.0, 1.125, 1.333, 2.0, 4.0]);
        paces.take(Mhz(900), 5, 2.0);
        assert_eq!(times(&paces)[2], 1.333, "five steps do not replace three");
        paces.take(Mhz(900), 12, 1.4);
        assert_eq!(times(&paces)[2], 1.4);
        // A clock that was measured to be no slower is a little slower all the same: places stay.
        paces.take(Mhz(900), 100, 0.9);
        assert_eq!(times(&paces).len(), 5);
    }
}

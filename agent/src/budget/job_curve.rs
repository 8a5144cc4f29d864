//! What a job can run, as a curve of time and power: its own plan or default clocks first, then what is
//! slower. Pure.

use pfo_budget::{BudgetError, Clock, Curve, Paces, Point, Prior, Steering, uniform_points};
use pfo_protocol::{JobView, Mhz};

use crate::budget::known::{OWN, Own, UNIFORM};
use crate::straggler::JobFrontier;

/// Plans of a frontier that are chosen from, at most: the decision is made again at each look.
const MOST_PLANS: usize = 4096;

/// By this share the own clocks of a job are taken to be faster than plans that take as long, so that they
/// are its first choice.
const PREFERRED: f64 = 1e-4;

/// Whether a point is one clock for everything: of a job with a frontier, those below its slowest plan.
pub(super) fn is_uniform(tag: u32) -> bool {
    (UNIFORM..OWN).contains(&tag)
}

/// A curve that was made anew of the points of another one.
pub(super) fn assumed_below_plans(curve: Curve) -> Curve {
    match curve.steering() {
        Steering::Plans => curve.assumed_where(is_uniform),
        _ => curve,
    }
}

/// The curve of a job with a frontier and this number of pipelines, without points faster than its
/// own plan. Below its slowest plan there is one clock for everything: as profiled, and below the lowest profiled
/// one by a law.
///
/// # Errors
/// If a number is none.
pub(super) fn of_frontier(
    frontier: &JobFrontier,
    (own, pipelines): (&Own, f64),
    (clocks, measured): (&[Mhz], (&Paces, Prior)),
    slowest: Option<f64>,
) -> Result<Curve, BudgetError> {
    let fastest_s = frontier.points().next().map_or(own.time_s, |point| point.iteration_time_s);
    let own = if own.label.is_none() {
        Own { time_s: own.time_s.min(fastest_s * (1.0 - PREFERRED)), ..own.clone() }
    } else {
        own.clone()
    };
    let of_step = |point: pfo_planner::Point, tag| Point {
        time_s: point.iteration_time_s,
        power_w: pipelines * point.iteration_energy_j / point.iteration_time_s,
        tag,
    };
    let (last, every) = most(frontier.points().len());
    let plans = (0_u32..)
        .zip(frontier.points())
        .filter(|(tag, _)| tag.is_multiple_of(every) || *tag == last);
    let plans = plans.map(|(tag, point)| of_step(point, tag));
    let uniform = |(mhz, point)| (mhz, of_step(point, tag_of(mhz)));
    let mut lower: Vec<(Mhz, Point)> = frontier.uniform().iter().copied().map(uniform).collect();
    lower.retain(|(mhz, _)| clocks.contains(mhz));
    let assumed = match lower.first() {
        Some((lowest, point)) => uniform_points(*point, lowest.0, below(clocks, *lowest), measured),
        None => Vec::new(),
    };
    let slowest_plan_s = frontier.points().last().map_or(0.0, |point| point.iteration_time_s);
    let lower = lower.into_iter().map(|(_, point)| point).chain(assumed);
    let lower = lower.filter(|point| point.time_s > slowest_plan_s);
    let slower =
        plans.chain(lower).filter(|point| point.time_s > own.time_s * (1.0 + PREFERRED / 2.0));
    let own = Point { time_s: own.time_s, power_w: own.power_w, tag: OWN };
    Curve::new([own].into_iter().chain(slower), slowest).map(assumed_below_plans)
}

fn tag_of(mhz: Mhz) -> u32 {
    UNIFORM.saturating_add(mhz.0)
}

/// The clocks below one, with their tags.
fn below(clocks: &[Mhz], highest: Mhz) -> impl Iterator<Item = Clock> {
    let lower = clocks.iter().filter(move |&&mhz| mhz < highest);
    lower.map(|&mhz| Clock { mhz: mhz.0, tag: tag_of(mhz) })
}

/// The place of the last of these plans, and the share of them to choose from.
fn most(plans: usize) -> (u32, u32) {
    (plans.saturating_sub(1) as u32, plans.div_ceil(MOST_PLANS).max(1) as u32)
}

/// The curve of a job without a frontier, from what was measured of it at its own clocks.
///
/// # Errors
/// If a number is none.
pub(super) fn of_uniform_clocks(
    clocks: &[Mhz],
    own: &Own,
    measured: (&Paces, Prior),
    slowest: Option<f64>,
) -> Result<Curve, BudgetError> {
    let highest = match &own.plan {
        Some(plan) => plan.table.stages().iter().flatten().map(|unit| unit.mhz).max(),
        None => clocks.last().copied(),
    };
    let highest = highest.unwrap_or(Mhz(0));
    let own = Point { time_s: own.time_s, power_w: own.power_w, tag: OWN };
    Curve::of_uniform_clocks(own, highest.0, below(clocks, highest), measured, slowest)
}

/// The clocks that every rank may have, rising.
pub(super) fn common_clocks(job: &JobView) -> Vec<Mhz> {
    let Some((first, others)) = job.ranks.split_first() else { return Vec::new() };
    let is_common = |mhz: &&Mhz| others.iter().all(|rank| rank.sm_clocks.contains(mhz));
    first.sm_clocks.iter().filter(is_common).copied().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::straggler::tests::frontier_of;

    /// These clocks, and nothing measured.
    fn measured(clocks: &[Mhz]) -> (&[Mhz], (&'static Paces, Prior)) {
        static NOTHING: LazyLock<Paces> = LazyLock::new(Paces::default);
        (clocks, (&NOTHING, Prior::Slowest))
    }

    fn own(label: Option<&str>, time_s: f64, power_w: f64) -> Own {
        Own { label: label.map(str::to_owned), plan: None, time_s, power_w }
    }

    #[test]
    fn default_clocks_are_the_first_point_of_a_frontier_and_never_dominated() {
        let frontier = JobFrontier::read("f".into(), &frontier_of(2, 4), 1 << 20).unwrap();
        let at_default = frontier.point_of(None).unwrap();
        let power_w = 2.0 * at_default.iteration_energy_j / at_default.iteration_time_s;
        let own = own(None, at_default.iteration_time_s, power_w);
        let curve = of_frontier(&frontier, (&own, 2.0), measured(&[]), None).unwrap();
        assert_eq!(curve.points()[0].tag, OWN);
        assert!(curve.points().len() > 3);
        let last = curve.points()[curve.last()];
        let plan = frontier.points().nth(last.tag as usize).unwrap();
        assert!(
            (last.power_w - 2.0 * plan.iteration_energy_j / plan.iteration_time_s).abs() < 1e-9
        );
        let floor = of_frontier(&frontier, (&own, 2.0), measured(&[]), Some(1.1)).unwrap();
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
        let curve = of_frontier(&frontier, (&own, 1.0), measured(&[]), None).unwrap();
        assert_eq!(curve.points()[0].tag, OWN);
        assert!(curve.points()[1..].iter().all(|slower| slower.time_s > point.iteration_time_s));
    }

    #[test]
    fn below_its_slowest_plan_a_job_runs_one_clock_for_everything() {
        let frontier = JobFrontier::read("f".into(), &frontier_of(2, 4), 1 << 20).unwrap();
        let fastest = frontier.points().next().unwrap();
        let own = own(None, fastest.iteration_time_s, 1000.0);
        let clocks = [300, 600, 900, 1200, 1500].map(Mhz);
        let curve = of_frontier(&frontier, (&own, 1.0), measured(&clocks), None).unwrap();
        let plans = curve.points().iter().take_while(|point| !is_uniform(point.tag)).count();
        let lower = &curve.points()[plans..];
        let tags: Vec<u32> = lower.iter().map(|point| point.tag - UNIFORM).collect();
        assert!(plans > 3, "{curve:?}");
        assert_eq!(tags, [600, 300], "what was profiled are plans already");
        assert!(lower[0].time_s > curve.points()[plans - 1].time_s);
    }
}

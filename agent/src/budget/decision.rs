//! From what was gathered to which job runs which point. Pure.

use std::collections::BTreeMap;
use std::fmt::Display;

use pfo_budget::{BudgetError, Controller, Curve, Now, Orders, Seen, Share};

use crate::job::JobKey;

/// A job that can be slowed down, as it is now. What its key shows is no other job's.
#[derive(Clone, Debug)]
pub(crate) struct Gathered<K = JobKey> {
    pub(crate) key: K,
    /// What it can run. The tags are of the caller.
    pub(crate) curve: Curve,
    pub(crate) weight: f64,
    /// The tag of what all its ranks run, if that is a point of its curve.
    pub(crate) running: Option<u32>,
    /// What its counters say that it drew since the last time, in watts.
    pub(crate) measured_w: Option<f64>,
    /// Whether somebody measures it.
    pub(crate) is_held: bool,
    /// Whether terms say how slow it may become, outside of emergencies.
    pub(crate) has_floor: bool,
    /// Whether power limits hold it.
    pub(crate) is_limited: bool,
}

/// Everything that a decision follows from.
#[derive(Clone, Debug)]
pub(crate) struct Draw<K = JobKey> {
    pub(crate) jobs: Vec<Gathered<K>>,
    /// What is drawn without these jobs, in watts.
    pub(crate) base_w: f64,
    pub(crate) budget_w: f64,
    pub(crate) elapsed_s: f64,
    pub(crate) is_emergency: bool,
}

/// Which job runs which point, and what that costs it.
#[derive(Clone, Debug)]
pub(crate) struct Decided<K = JobKey> {
    /// The tags of the points that jobs have to change to.
    pub(crate) changes: BTreeMap<K, u32>,
    /// The power limits of jobs, in watts for all their GPUs.
    pub(crate) limits: BTreeMap<K, f64>,
    /// What each job that can be changed was given.
    pub(crate) shares: BTreeMap<K, Share>,
    pub(crate) reserve_w: f64,
    pub(crate) price: f64,
    /// The watts that are missing with every job at its floor.
    pub(crate) missing_w: Option<f64>,
}

impl<K> Gathered<K> {
    /// The place in its curve of what it runs.
    pub(crate) fn place(&self) -> Option<usize> {
        let points = self.curve.points();
        points.iter().position(|point| Some(point.tag) == self.running)
    }
}

/// Decides for the jobs of one budget.
///
/// # Errors
/// If a number is none.
pub(crate) fn decide<K: Clone + Display + Ord>(
    controller: &mut Controller,
    draw: &Draw<K>,
) -> Result<Decided<K>, BudgetError> {
    let names: Vec<String> = draw.jobs.iter().map(|job| job.key.to_string()).collect();
    let jobs: Vec<Seen<'_>> =
        draw.jobs.iter().zip(&names).map(|(job, name)| seen(job, name)).collect();
    let now = Now {
        budget_w: draw.budget_w,
        base_w: draw.base_w,
        meter_w: None,
        elapsed_s: draw.elapsed_s,
        is_emergency: draw.is_emergency,
    };
    let Orders { decision, changes, limits, reserve_w } = controller.next(&jobs, now)?;
    let by_name: BTreeMap<&str, &Gathered<K>> =
        names.iter().map(String::as_str).zip(&draw.jobs).collect();
    let of = |name: &str| by_name.get(name).copied();
    let change = |(name, place): (String, usize)| {
        let job = of(&name)?;
        Some((job.key.clone(), job.curve.points().get(place)?.tag))
    };
    let share = |(name, share): (String, Share)| Some((of(&name)?.key.clone(), share));
    let limit = |(name, limit_w): (String, f64)| Some((of(&name)?.key.clone(), limit_w));
    Ok(Decided {
        limits: limits.into_iter().filter_map(limit).collect(),
        changes: changes.into_iter().filter_map(change).collect(),
        shares: decision.shares.into_iter().filter_map(share).collect(),
        reserve_w,
        price: decision.price,
        missing_w: decision.shortfall.map(|shortfall| shortfall.over_w),
    })
}

fn seen<'a, K>(job: &'a Gathered<K>, name: &'a str) -> Seen<'a> {
    Seen {
        name,
        curve: &job.curve,
        weight: job.weight,
        running: job.place(),
        measured_w: job.measured_w,
        is_held: job.is_held,
        has_floor: job.has_floor,
        is_limited: job.is_limited,
    }
}

#[cfg(test)]
mod tests {
    use pfo_budget::{Paces, Point, Prior};
    use pfo_protocol::{Mhz, Uid};

    use super::*;
    use crate::budget::job_curve::of_uniform_clocks;
    use crate::budget::known::{OWN, Own};

    fn job(uid: u32, weight: f64, running: Option<u32>) -> Gathered {
        let point = |time_s, power_w, tag| Point { time_s, power_w, tag };
        let points = [point(1.0, 1000.0, OWN), point(1.1, 800.0, 7), point(1.3, 700.0, 8)];
        Gathered {
            key: JobKey { uid: Uid(uid), name: "j".parse().unwrap() },
            curve: Curve::new(points, None).unwrap(),
            weight,
            running,
            measured_w: None,
            is_held: false,
            has_floor: false,
            is_limited: false,
        }
    }

    fn draw(jobs: Vec<Gathered>, budget_w: f64) -> Draw {
        Draw { jobs, base_w: 100.0, budget_w, elapsed_s: 1.0, is_emergency: false }
    }

    #[test]
    fn jobs_of_one_name_are_told_apart_and_only_those_that_change_are_named() {
        let jobs = || vec![job(1, 4.0, Some(OWN)), job(2, 400.0, Some(OWN))];
        let decided = decide(&mut Controller::new(), &draw(jobs(), 1950.0)).unwrap();
        let changes: Vec<_> = decided.changes.iter().map(|(key, tag)| (key.uid.0, *tag)).collect();
        assert_eq!(changes, [(1, 7)]);
        assert!(decided.price > 0.0 && decided.missing_w.is_none());
        let ample = decide(&mut Controller::new(), &draw(jobs(), 9e3)).unwrap();
        assert!(ample.changes.is_empty() && ample.price == 0.0, "{ample:?}");
    }

    #[test]
    fn equal_jobs_without_a_frontier_give_up_alike() {
        let clocks: Vec<Mhz> = (210..=1410).step_by(15).map(Mhz).collect();
        let own = Own { label: None, plan: None, time_s: 2.0, power_w: 1000.0 };
        let curve =
            of_uniform_clocks(&clocks, &own, (&Paces::default(), Prior::Slowest), None).unwrap();
        let jobs = [1, 2].map(|uid| Gathered { curve: curve.clone(), ..job(uid, 4.0, Some(OWN)) });
        for budget_w in [1950.0, 1900.0, 1830.0, 1777.0, 1700.0, 1600.0, 1500.0, 1300.0] {
            let decided =
                decide(&mut Controller::new(), &draw(jobs.to_vec(), budget_w + 100.0)).unwrap();
            let given: Vec<f64> = decided.shares.values().map(|share| share.power_w).collect();
            assert_eq!(decided.missing_w, None);
            // The last watts are closed with whatever clocks fit best.
            assert!((given[0] - given[1]).abs() < 200.0, "{budget_w} W: {given:?} W");
        }
    }

    #[test]
    fn a_budget_below_all_floors_says_what_is_missing() {
        let jobs = vec![job(1, 4.0, Some(OWN)), job(2, 4.0, None)];
        let decided = decide(&mut Controller::new(), &draw(jobs, 1000.0)).unwrap();
        assert_eq!(decided.changes.values().collect::<Vec<_>>(), [&8, &8]);
        assert!(decided.missing_w.unwrap() >= 500.0);
    }

    #[test]
    fn a_job_that_is_measured_is_not_changed() {
        let held = Gathered { is_held: true, ..job(1, 4.0, None) };
        let jobs = vec![held, job(2, 4.0, Some(OWN))];
        let decided = decide(&mut Controller::new(), &draw(jobs, 1900.0)).unwrap();
        assert!(decided.changes.keys().all(|key| key.uid == Uid(2)));
        assert!(!decided.changes.is_empty());
    }
}

//! From what was gathered to which job runs which point. Pure.

use std::collections::BTreeMap;

use pfo_budget::{BudgetError, Controller, Curve, Now, Orders, Seen, Share};

use crate::job::JobKey;

/// A job that can be slowed down, as it is now.
#[derive(Clone, Debug)]
pub(crate) struct Gathered {
    pub(crate) key: JobKey,
    /// What it can run. The tags are of the caller.
    pub(crate) curve: Curve,
    pub(crate) weight: f64,
    /// The tag of what all its ranks run, if that is a point of its curve.
    pub(crate) running: Option<u32>,
    /// What its counters say that it drew since the last time, in watts.
    pub(crate) measured_w: Option<f64>,
    /// Whether somebody measures it.
    pub(crate) is_held: bool,
}

/// Everything that a decision follows from.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    pub(crate) jobs: Vec<Gathered>,
    /// What is drawn without these jobs, in watts.
    pub(crate) base_w: f64,
    pub(crate) budget_w: f64,
    pub(crate) elapsed_s: f64,
    pub(crate) is_emergency: bool,
}

/// Which job runs which point, and what that costs it.
#[derive(Clone, Debug)]
pub(crate) struct Blueprint {
    /// The tags of the points that jobs have to change to.
    pub(crate) changes: BTreeMap<JobKey, u32>,
    /// What each job that can be changed was given.
    pub(crate) shares: BTreeMap<JobKey, Share>,
    pub(crate) reserve_w: f64,
    pub(crate) price: f64,
    /// The watts that are missing with every job at its floor.
    pub(crate) missing_w: Option<f64>,
}

impl Gathered {
    /// The place in its curve of what it runs.
    pub(crate) fn place(&self) -> Option<usize> {
        let points = self.curve.points();
        points.iter().position(|point| Some(point.tag) == self.running)
    }

    fn name(&self) -> String {
        format!("{}/{}", self.key.uid, self.key.name)
    }
}

/// Decides for the jobs of one budget.
///
/// # Errors
/// If a number is none.
pub(crate) fn decide(controller: &mut Controller, draw: &Draw) -> Result<Blueprint, BudgetError> {
    let names: Vec<String> = draw.jobs.iter().map(Gathered::name).collect();
    let jobs: Vec<Seen<'_>> =
        draw.jobs.iter().zip(&names).map(|(job, name)| seen(job, name)).collect();
    let now = Now {
        budget_w: draw.budget_w,
        base_w: draw.base_w,
        meter_w: None,
        elapsed_s: draw.elapsed_s,
        is_emergency: draw.is_emergency,
    };
    let Orders { decision, changes, reserve_w, .. } = controller.next(&jobs, now)?;
    let of = |name: &str| draw.jobs.iter().zip(&names).find(|(_, own)| *own == name);
    let change = |(name, place): (String, usize)| {
        let (job, _) = of(&name)?;
        Some((job.key.clone(), job.curve.points().get(place)?.tag))
    };
    let share = |(name, share): (String, Share)| Some((of(&name)?.0.key.clone(), share));
    Ok(Blueprint {
        changes: changes.into_iter().filter_map(change).collect(),
        shares: decision.shares.into_iter().filter_map(share).collect(),
        reserve_w,
        price: decision.price,
        missing_w: decision.shortfall.map(|shortfall| shortfall.over_w),
    })
}

fn seen<'a>(job: &'a Gathered, name: &'a str) -> Seen<'a> {
    Seen {
        name,
        curve: &job.curve,
        weight: job.weight,
        running: job.place(),
        measured_w: job.measured_w,
        is_held: job.is_held,
    }
}

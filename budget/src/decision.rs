//! Which job runs which point.

use std::collections::BTreeMap;

use crate::error::{BudgetError, from_0};
use crate::exchange::{draw_w, exchange};
use crate::job::Job;
use crate::price::price;

/// What the jobs may draw together, with everything else that counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// The budget, in watts.
    pub budget_w: f64,
    /// What is drawn without the jobs, in watts: GPUs without a job, and each GPU's share of the site.
    pub base_w: f64,
}

/// Why a job is where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It runs as fast as it can: to slow it down would cost more than to slow down others.
    Fastest,
    /// It is slowed down as much as it may be.
    Floor,
    /// It is slowed down until a further watt would cost more than a watt of others.
    Price,
}

/// What one job runs, and what that costs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// The place of its point in its curve.
    pub place: usize,
    /// The caller's name of that point.
    pub tag: u32,
    /// What it draws, as its counters correct it, in watts.
    pub power_w: f64,
    /// The share of its speed that it gave up.
    pub lost: f64,
    /// The watts that it gave up.
    pub given_w: f64,
    /// Why it is there.
    pub reason: Reason,
    /// The weighted progress that the next watt would cost it; none at its slowest point.
    pub next_price: Option<f64>,
}

/// What all floors together draw above the budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Shortfall {
    /// Watts above the budget with every job at its slowest point.
    pub over_w: f64,
    /// The job whose slowest point draws most, if there is a job at all.
    pub largest: Option<String>,
}

/// What every job runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// By job.
    pub shares: BTreeMap<String, Share>,
    /// What is drawn with it, in watts, with the base.
    pub power_w: f64,
    /// The weighted progress that the jobs lose together.
    pub loss: f64,
    /// The least loss that is possible if a job could mix plans: [`Decision::loss`] is never below it.
    pub bound: f64,
    /// The weighted progress that the last watt costs; 0 if the budget costs nothing.
    pub price: f64,
    /// If every job is at its floor and that is not enough.
    pub shortfall: Option<Shortfall>,
}

impl Decision {
    /// The same bound and price with other points.
    pub(crate) fn with_places(
        &self,
        jobs: &[Job<'_>],
        room: Room,
        places: &BTreeMap<&str, usize>,
    ) -> Self {
        let places: Vec<usize> = jobs.iter().map(|job| places[job.name]).collect();
        Self { bound: self.bound, ..of(jobs, &places, self.price, room) }
    }
}

/// Decides what every job runs: the least weighted loss of progress that the room allows, to within one
/// plan of one job. The same jobs in any order give the same decision.
///
/// Where the floors draw more than there is, every job is at its floor and [`Decision::shortfall`] says by
/// how much.
///
/// # Errors
/// If a number is not one, or two jobs have the same name.
pub fn decide(jobs: &[Job<'_>], room: Room) -> Result<Decision, BudgetError> {
    from_0("the budget", || "the cluster".into(), room.budget_w)?;
    from_0("the base", || "the cluster".into(), room.base_w)?;
    let mut jobs = jobs.to_vec();
    jobs.sort_unstable_by_key(|job| job.name);
    for job in &jobs {
        job.check()?;
    }
    if let Some(pair) = jobs.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(BudgetError::SameName(pair[0].name.into()));
    }
    let limit_w = room.budget_w - room.base_w;
    let Some(priced) = price(&jobs, limit_w) else { return Ok(at_floors(&jobs, room)) };
    let mut places: Vec<usize> =
        jobs.iter().zip(&priced.corners).map(|(job, &corner)| job.curve.corner(corner)).collect();
    if priced.last.is_some() {
        exchange(&jobs, &mut places, limit_w, priced.price);
    }
    Ok(Decision { bound: priced.bound, ..of(&jobs, &places, priced.price, room) })
}

fn at_floors(jobs: &[Job<'_>], room: Room) -> Decision {
    let places: Vec<usize> = jobs.iter().map(|job| job.curve.last()).collect();
    let floor_w = |job: &Job<'_>| job.power_w(job.curve.last());
    let largest = jobs.iter().max_by(|a, b| floor_w(a).total_cmp(&floor_w(b)));
    let decision = of(jobs, &places, f64::INFINITY, room);
    let shortfall = Shortfall {
        over_w: decision.power_w - room.budget_w,
        largest: largest.map(|job| job.name.into()),
    };
    Decision { shortfall: Some(shortfall), bound: decision.loss, ..decision }
}

fn of(jobs: &[Job<'_>], places: &[usize], price: f64, room: Room) -> Decision {
    let pairs = || jobs.iter().zip(places);
    Decision {
        shares: pairs().map(|(job, &place)| (job.name.into(), share(job, place))).collect(),
        power_w: room.base_w + draw_w(jobs, places),
        loss: pairs().map(|(job, &place)| job.loss(place)).sum(),
        bound: 0.0,
        price,
        shortfall: None,
    }
}

fn share(job: &Job<'_>, place: usize) -> Share {
    let reason = match place {
        0 => Reason::Fastest,
        _ if place == job.curve.last() => Reason::Floor,
        _ => Reason::Price,
    };
    let edges = 0..job.curve.prices().len();
    let next = edges.into_iter().find(|&edge| job.curve.corner(edge + 1) > place);
    Share {
        place,
        tag: job.curve.points()[place].tag,
        power_w: job.power_w(place),
        lost: job.curve.lost(place),
        given_w: job.power_w(0) - job.power_w(place),
        reason,
        next_price: next.map(|edge| job.price(edge)),
    }
}

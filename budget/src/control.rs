//! Keeps jobs below a budget: from what is measured to which job changes to what, every few seconds.

use std::collections::{BTreeMap, BTreeSet};

use crate::curve::Curve;
use crate::decision::{Decision, Room, decide};
use crate::error::{BudgetError, above_0, from_0};
use crate::factor::Factors;
use crate::job::Job;
use crate::reserve::Reserve;

/// A job keeps its point if the one decided draws no more than this share less or more.
const NEAR: f64 = 0.01;
/// What was decided stays decided if a new decision gains less than this share of all weights, beside
/// what it gains by a reserve that has become smaller.
const WORTH: f64 = 0.0005;
/// The shares of the reserve that may be used up, or be free beside it, before that.
const USED: f64 = 0.25;
const FREE: f64 = 0.5;
/// A job that has not changed after these numbers of steps and seconds does not follow.
const PATIENCE_STEPS: f64 = 3.0;
const PATIENCE_S: f64 = 10.0;

/// A job as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Its name, which no other job has.
    pub name: &'a str,
    /// What it can run.
    pub curve: &'a Curve,
    /// How much its progress counts.
    pub weight: f64,
    /// The place of what all its ranks run; none if that is no point of its curve, such as default
    /// clocks, which counts as its fastest.
    pub running: Option<usize>,
    /// What its counters say that it drew since the last time, in watts.
    pub measured_w: Option<f64>,
    /// Whether somebody holds it: it cannot be changed now.
    pub is_held: bool,
    /// Whether a slowest point is agreed, below which only an emergency takes it.
    pub has_floor: bool,
    /// Whether a power limit holds it now.
    pub is_limited: bool,
}

/// The cluster as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The budget, in watts.
    pub budget_w: f64,
    /// What is drawn without the jobs, in watts.
    pub base_w: f64,
    /// What a meter above all reads, in watts, if there is one.
    pub meter_w: Option<f64>,
    /// Seconds since the last time.
    pub elapsed_s: f64,
    /// Whether the budget has to hold at once, by power limits.
    pub is_emergency: bool,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub struct Orders {
    /// What was decided. Jobs that cannot be changed are not part of it.
    pub decision: Decision,
    /// The jobs that have to change, and the places of their new points.
    pub changes: BTreeMap<String, usize>,
    /// The power limits of jobs, in watts for all their GPUs. Other jobs have none.
    pub limits: BTreeMap<String, f64>,
    /// The watts that are kept free.
    pub reserve_w: f64,
}

/// What is remembered of a job.
#[derive(Clone, Debug, Default)]
struct Known {
    factors: Factors,
    ran: Option<usize>,
    ordered: Option<usize>,
    /// How long it has not run what was ordered, in seconds.
    waited_s: f64,
}

/// The closed loop of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Controller {
    known: BTreeMap<String, Known>,
    decided: BTreeMap<String, usize>,
    reserve: Reserve,
}

impl Controller {
    /// Nothing known yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Goes on from what another controller has ordered last: a job may still change to the point at this
    /// place.
    pub fn resume(&mut self, job: &str, place: usize) {
        self.known.entry(job.into()).or_default().ordered = Some(place);
        self.decided.insert(job.into(), place);
    }

    /// Takes what was seen and says what is to be done. Slower points are ordered at once. Faster ones
    /// are ordered as far as the budget holds even if every change that is under way comes last.
    ///
    /// # Errors
    /// Those of [`decide`], and if the time is not a number above 0.
    pub fn next(&mut self, jobs: &[Seen<'_>], now: Now) -> Result<Orders, BudgetError> {
        above_0("the time", || "the cluster".into(), now.elapsed_s)?;
        from_0("the budget", || "the cluster".into(), now.budget_w)?;
        from_0("the base", || "the cluster".into(), now.base_w)?;
        self.observe(jobs, now);
        let curves: Vec<Curve> = jobs.iter().map(|seen| self.corrected(seen)).collect();
        let as_measured = jobs.iter().zip(&curves).map(|(seen, curve)| Seen { curve, ..*seen });
        let jobs: Vec<Seen<'_>> = as_measured.collect();
        let reserve_w = self.reserve.watts(now.budget_w);
        let (free, fixed): (Vec<Seen<'_>>, Vec<Seen<'_>>) =
            jobs.iter().copied().partition(|seen| !seen.is_held && self.follows(seen));
        let fixed_w: f64 = fixed.iter().map(|seen| power_w(seen, running(seen))).sum();
        let base_w = now.base_w + fixed_w;
        self.remember(&free);
        let listed = listed(&free);
        let room = Room { budget_w: (now.budget_w - reserve_w).max(0.0), base_w };
        let decision = self.settled(&listed, room, now.budget_w, decide(&listed, room)?)?;
        let places = |(job, share): (&String, &crate::Share)| (job.clone(), share.place);
        self.decided = decision.shares.iter().map(places).collect();
        self.order(&free, room);
        let changes = self.changes(&jobs);
        let limits = self.limits(&jobs, &decision, now, room);
        Ok(Orders { decision, changes, limits, reserve_w })
    }

    fn observe(&mut self, jobs: &[Seen<'_>], now: Now) {
        let present: BTreeSet<&str> = jobs.iter().map(|seen| seen.name).collect();
        self.known.retain(|name, _| present.contains(name.as_str()));
        let (mut counted_w, mut summed_w) = (now.base_w, now.base_w);
        let mut uncertain_w = 0.0;
        for seen in jobs {
            let place = running(seen);
            let known = self.known.entry(seen.name.into()).or_default();
            // Half a window under each, if it changed meanwhile: nobody knows when.
            let before = known.ran.unwrap_or(place).min(seen.curve.last());
            let points = seen.curve.points();
            let watts =
                |known: &Known, place| known.factors.at(seen.curve, place) * points[place].power_w;
            let is_power = |watts: &f64| watts.is_finite() && *watts >= 0.0;
            let measured_w = seen.measured_w.filter(is_power);
            let is_news = known.ran == Some(place)
                && measured_w.is_some_and(|watts| known.factors.take(seen.curve, place, watts));
            let now_w = watts(known, place);
            let job_w = (watts(known, before) + now_w) / 2.0;
            counted_w += job_w;
            uncertain_w += (now_w - job_w).abs();
            // What a point draws that was not known is no noise.
            summed_w += measured_w.filter(|_| !is_news).unwrap_or(job_w);
            // While a ramp falls, a job is ordered something slower before it has changed to what it was ordered
            // before.
            let goes_there = |ordered: usize| (before + 1..=ordered).contains(&place);
            let follows = known.ordered.is_none_or(|it| it == place || goes_there(it));
            known.waited_s = if follows { 0.0 } else { known.waited_s + now.elapsed_s };
            known.ran = Some(place);
        }
        self.reserve.take(now.meter_w.unwrap_or(summed_w), counted_w, uncertain_w);
    }

    fn corrected(&self, seen: &Seen<'_>) -> Curve {
        let known = self.known.get(seen.name);
        known.map_or_else(|| seen.curve.clone(), |known| known.factors.corrected(seen.curve))
    }

    fn follows(&self, seen: &Seen<'_>) -> bool {
        let step_s = seen.curve.points()[running(seen)].time_s;
        let patience_s = PATIENCE_S + PATIENCE_STEPS * step_s;
        self.known.get(seen.name).is_none_or(|known| known.waited_s <= patience_s)
    }

    /// Jobs of which nothing was decided yet stay what they are, if they can.
    fn remember(&mut self, free: &[Seen<'_>]) {
        let names: BTreeSet<&str> = free.iter().map(|seen| seen.name).collect();
        self.decided.retain(|name, _| names.contains(name.as_str()));
        for seen in free {
            if let Some(place) = seen.running.filter(|_| !self.decided.contains_key(seen.name)) {
                self.decided.insert(seen.name.into(), place);
            }
        }
    }

    /// What was decided before as long as that is good enough; else the new decision, with the old points
    /// of jobs for which it makes next to no difference.
    fn settled(
        &self,
        jobs: &[Job<'_>],
        room: Room,
        budget_w: f64,
        new: Decision,
    ) -> Result<Decision, BudgetError> {
        let before = |job: &Job<'_>| {
            self.decided.get(job.name).copied().filter(|&place| place <= job.curve.last())
        };
        let of = |places: &BTreeMap<&str, usize>| -> (f64, f64) {
            let pairs = || jobs.iter().map(|job| (job, places[job.name]));
            (
                room.base_w + pairs().map(|(job, place)| job.power_w(place)).sum::<f64>(),
                pairs().map(|(job, place)| job.loss(place)).sum(),
            )
        };
        if new.shortfall.is_some() {
            return Ok(new);
        }
        let weights: f64 = jobs.iter().map(|job| job.weight).sum();
        let old: Option<BTreeMap<&str, usize>> =
            jobs.iter().map(|job| Some((job.name, before(job)?))).collect();
        if let Some(old) = old {
            let reserve_w = budget_w - room.budget_w;
            let (power_w, loss) = of(&old);
            let is_fine = loss - new.loss <= WORTH * weights + new.price * FREE * reserve_w;
            if power_w <= room.budget_w + USED * reserve_w && is_fine {
                return Ok(new.with_places(jobs, room, &old));
            }
        }
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        let mut kept: Vec<(f64, &str, usize)> = Vec::new();
        for job in jobs {
            let place = new.shares[job.name].place;
            let near = before(job).filter(|&old| {
                (job.power_w(old) / job.power_w(place) - 1.0).abs() <= NEAR && old != place
            });
            if let Some(old) = near {
                kept.push((job.power_w(old) - job.power_w(place), job.name, place));
            }
            places.insert(job.name, near.unwrap_or(place));
        }
        kept.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        for (_, name, place) in kept {
            if of(&places).0 <= room.budget_w {
                break;
            }
            places.insert(name, place);
        }
        let (_, loss) = of(&places);
        let is_worth_it = loss - new.loss <= WORTH * weights;
        Ok(if is_worth_it { new.with_places(jobs, room, &places) } else { new })
    }

    /// Orders what was decided, as far as everything under way leaves room for it.
    fn order(&mut self, free: &[Seen<'_>], room: Room) {
        let mut committed_w = room.base_w;
        let mut raises = Vec::new();
        for &seen in free {
            let (place, target) = (running(&seen), self.decided[seen.name]);
            let known = self.known.entry(seen.name.into()).or_default();
            let ordered = known.ordered.unwrap_or(place).min(seen.curve.last());
            let most = place.min(ordered);
            let watts = |place| power_w(&seen, place);
            if target >= most {
                // Until it has changed it draws what it runs, or what it was ordered before.
                committed_w += watts(most);
                known.ordered = Some(target);
            } else {
                committed_w += watts(most);
                let more_w = watts(target) - watts(most);
                let gain = seen.weight * (seen.curve.lost(most) - seen.curve.lost(target));
                raises.push((gain / more_w, seen, most, target));
            }
        }
        raises.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.name.cmp(b.1.name)));
        for (_, seen, most, target) in raises {
            let known = self.known.entry(seen.name.into()).or_default();
            let watts = |place| power_w(&seen, place);
            let spare_w = room.budget_w - committed_w;
            let fits = seen.curve.fastest_within(watts(most) + spare_w.max(0.0));
            let place = fits.unwrap_or(most).clamp(target, most);
            committed_w += watts(place) - watts(most);
            known.ordered = Some(place);
        }
    }

    fn changes(&self, jobs: &[Seen<'_>]) -> BTreeMap<String, usize> {
        let change = |seen: &Seen<'_>| {
            let ordered = self.known.get(seen.name).and_then(|known| known.ordered)?;
            (!seen.is_held && seen.running != Some(ordered)).then(|| (seen.name.into(), ordered))
        };
        jobs.iter().filter_map(change).collect()
    }

    /// The backstop: jobs that do not follow are held to what they were ordered, and in an emergency every
    /// job that has not changed yet. Where not even the slowest points fit, jobs without a floor are limited
    /// below these, all alike; in an emergency the others, too.
    fn limits(
        &self,
        jobs: &[Seen<'_>],
        decision: &Decision,
        now: Now,
        room: Room,
    ) -> BTreeMap<String, f64> {
        let ordered_w = |seen: &Seen<'_>| {
            let ordered = self.known.get(seen.name).and_then(|known| known.ordered);
            let place = ordered.unwrap_or(running(seen)).min(seen.curve.last());
            (power_w(seen, place), place > running(seen))
        };
        let is_short =
            |seen: &Seen<'_>| decision.shortfall.is_some() && (now.is_emergency || !seen.has_floor);
        let all_w = |short: bool| -> f64 {
            jobs.iter().filter(|seen| is_short(seen) == short).map(|seen| ordered_w(seen).0).sum()
        };
        let left_w = room.budget_w - now.base_w - all_w(false);
        let scale = (left_w / all_w(true)).clamp(0.0, 1.0);
        let limit = |seen: &Seen<'_>| {
            let (watts, is_above) = ordered_w(seen);
            let is_due = is_above && (now.is_emergency || seen.is_limited || !self.follows(seen));
            let share = if is_short(seen) { scale } else { 1.0 };
            (is_due || is_short(seen)).then(|| (seen.name.into(), share * watts))
        };
        jobs.iter().filter_map(limit).collect()
    }
}

/// The place that a job is counted at.
fn running(seen: &Seen<'_>) -> usize {
    seen.running.unwrap_or(0).min(seen.curve.last())
}

/// What a job draws at a place of its corrected curve, in watts.
fn power_w(seen: &Seen<'_>, place: usize) -> f64 {
    seen.curve.points()[place].power_w
}

fn listed<'a>(free: &[Seen<'a>]) -> Vec<Job<'a>> {
    let job = |&Seen { name, curve, weight, .. }: &Seen<'a>| Job { name, curve, weight };
    let mut jobs: Vec<Job<'a>> = free.iter().map(job).collect();
    jobs.sort_unstable_by_key(|job| job.name);
    jobs
}

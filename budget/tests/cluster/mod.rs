//! A simulated cluster: jobs that come, stall and end, some of them without a frontier, stragglers, noise and a
//! node that lies.

pub(crate) mod kind;
mod law;
pub(crate) mod policy;
mod slot;

use fastrand::Rng;
use pfo_budget::{BudgetError, Controller, Curve, Job, Now, Room, Seen, decide};

use kind::Kind;
use policy::Policy;
use slot::{Running, Slot};

/// How many of each four jobs have no frontier, and the shares of their power that budgets leave to jobs, in a
/// table.
#[allow(dead_code, reason = "tables are made elsewhere")]
pub(crate) const WITHOUT: [usize; 3] = [0, 2, 4];
#[allow(dead_code, reason = "tables are made elsewhere")]
pub(crate) const SHARES: [f64; 6] = [0.95, 0.9, 0.8, 0.7, 0.6, 0.5];

/// How often it is decided, in seconds.
pub(crate) const TICK_S: f64 = 5.0;
/// What a GPU without a job draws, and the share of the site that each GPU has, in watts.
const IDLE_W: f64 = 60.0;
const SITE_W: f64 = 50.0;
/// The standard deviation of a meter above all, as a share.
const METER: f64 = 0.001;

/// What became of a cluster.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Weighted progress, and the most that was possible with perfect knowledge.
    pub(crate) progress: f64,
    pub(crate) optimum: f64,
    pub(crate) energy_kwh: f64,
    /// Seconds above the budget, the longest time of these in a row, and the slowest step.
    pub(crate) above_s: f64,
    pub(crate) longest_s: f64,
    pub(crate) slowest_step_s: f64,
    /// The largest excess once the first steps have ended, as a share of the budget.
    pub(crate) excess: f64,
    pub(crate) mean_w: f64,
    /// Of these, what is drawn beside jobs.
    pub(crate) base_w: f64,
    /// Of the watts that the jobs could have used and had, in watt-seconds: all, and those that they drew.
    pub(crate) usable_j: f64,
    pub(crate) used_j: f64,
    /// Changes of a job to another point.
    pub(crate) changes: usize,
}

/// A cluster under one policy. The same seed gives the same jobs at the same times.
pub(crate) struct Cluster<'a> {
    slots: Vec<Slot<'a>>,
    gpus: f64,
    controller: Controller,
    random: Rng,
    is_above_s: f64,
}

impl<'a> Cluster<'a> {
    /// Of each four jobs, these many have no frontier.
    pub(crate) fn new(kinds: &'a [Kind], jobs: usize, without: usize, seed: u64) -> Self {
        let slot = |number: usize| {
            let (kind, seed) = (&kinds[number % kinds.len()], seed + number as u64);
            Slot::new(kind, number, number % 4 >= without, seed)
        };
        let slots: Vec<Slot<'a>> = (0..jobs).map(slot).collect();
        let gpus = slots.iter().map(Slot::gpus).sum();
        let controller = Controller::new();
        Self { slots, gpus, controller, random: Rng::with_seed(seed), is_above_s: 0.0 }
    }

    /// Runs for some seconds under a budget at each moment. The last function sees each moment's time, budget
    /// and power.
    pub(crate) fn run(
        &mut self,
        policy: Policy,
        seconds: f64,
        budget_w: impl Fn(f64) -> f64,
        mut each: impl FnMut(f64, f64, f64),
    ) -> Result<Outcome, BudgetError> {
        let mut outcome = Outcome::default();
        let ticks = (seconds / TICK_S) as u32;
        for tick in 0..ticks {
            let at_s = f64::from(tick) * TICK_S;
            for slot in &mut self.slots {
                slot.pass(TICK_S, at_s, policy);
            }
            let (limit_w, base_w) = (budget_w(at_s), self.base_w());
            match policy {
                Policy::Frontiers => outcome.changes += self.control(limit_w, base_w)?,
                _ => policy.set(&mut self.slots, limit_w - base_w),
            }
            let power_w = self.power_w();
            each(at_s, limit_w, power_w);
            self.account(&mut outcome, limit_w, power_w)?;
            outcome.mean_w += power_w / f64::from(ticks);
            outcome.base_w += self.base_w() / f64::from(ticks);
        }
        Ok(outcome)
    }

    /// The budget that leaves jobs this share of what they drew without one.
    pub(crate) fn budget_w(without: &Outcome, share: f64) -> f64 {
        without.base_w + share * (without.mean_w - without.base_w)
    }

    fn account(
        &mut self,
        outcome: &mut Outcome,
        limit_w: f64,
        power_w: f64,
    ) -> Result<(), BudgetError> {
        let running = || self.slots.iter().filter_map(|slot| slot.job.as_ref());
        outcome.energy_kwh += power_w * TICK_S / 3.6e6;
        outcome.progress += TICK_S * running().map(Running::speed).sum::<f64>();
        let slowest_s = running().map(Running::step_s).fold(0.0, f64::max);
        outcome.slowest_step_s = outcome.slowest_step_s.max(slowest_s);
        // What stalls progresses under no plan, and draws what it draws.
        let (stalled, working): (Vec<&Running>, Vec<&Running>) =
            running().partition(|job| job.is_stalled());
        let base_w = self.base_w() + stalled.iter().map(|job| job.power_w()).sum::<f64>();
        let curves: Vec<Curve> = working.iter().map(|job| job.true_points()).collect();
        let known: Vec<Job<'_>> =
            working.iter().zip(&curves).map(|(job, curve)| job.as_it_is(curve)).collect();
        let room = Room { budget_w: limit_w, base_w };
        let full_w: f64 = working.iter().map(|job| job.full_w()).sum();
        outcome.usable_j += TICK_S * full_w.min(limit_w - base_w);
        outcome.used_j += TICK_S * (power_w - base_w).min(limit_w - base_w);
        let weights: f64 = known.iter().map(|job| job.weight).sum();
        outcome.optimum += TICK_S * (weights - decide(&known, room)?.bound);
        if power_w > limit_w {
            self.is_above_s += TICK_S;
            outcome.above_s += TICK_S;
            outcome.longest_s = outcome.longest_s.max(self.is_above_s);
            outcome.excess = outcome.excess.max(power_w / limit_w - 1.0);
        } else {
            self.is_above_s = 0.0;
        }
        Ok(())
    }

    fn base_w(&self) -> f64 {
        let busy: f64 = self.slots.iter().filter(|slot| slot.job.is_some()).map(Slot::gpus).sum();
        SITE_W * self.gpus + IDLE_W * (self.gpus - busy)
    }

    fn power_w(&self) -> f64 {
        let jobs = self.slots.iter().filter_map(|slot| slot.job.as_ref());
        self.base_w() + jobs.map(Running::power_w).sum::<f64>()
    }

    /// One decision of the controller, which knows counters and a meter only.
    fn control(&mut self, budget_w: f64, base_w: f64) -> Result<usize, BudgetError> {
        let meter_w = self.power_w() * (1.0 + METER * slot::normal(&mut self.random));
        let now = Now {
            budget_w,
            base_w,
            meter_w: Some(meter_w),
            elapsed_s: TICK_S,
            is_emergency: false,
        };
        let running = || self.slots.iter().filter_map(|slot| slot.job.as_ref());
        let curves: Vec<Curve> = running().map(Running::known).collect();
        let seen: Vec<Seen<'_>> =
            running().zip(&curves).map(|(job, curve)| job.seen(curve)).collect();
        let orders = self.controller.next(&seen, now)?;
        let jobs = self.slots.iter_mut().filter_map(|slot| slot.job.as_mut());
        for (job, curve) in jobs.zip(&curves) {
            if let Some(&place) = orders.changes.get(&job.name) {
                job.ordered = Some(curve.points()[place].tag);
            }
        }
        Ok(self.slots.iter_mut().map(Slot::changes).sum())
    }
}

//! A simulated cluster: jobs that come and end, stragglers, noise and a node that lies.

pub(crate) mod kind;
pub(crate) mod policy;
mod slot;

use fastrand::Rng;
use pfo_budget::{BudgetError, Controller, Curve, Job, Now, Room, Seen, decide};

use kind::Kind;
use policy::Policy;
use slot::{Running, Slot};

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
    pub(crate) fn new(kinds: &'a [Kind], jobs: usize, seed: u64) -> Self {
        let slots: Vec<Slot<'a>> = (0..jobs)
            .map(|slot| Slot::new(&kinds[slot % kinds.len()], slot, seed + slot as u64))
            .collect();
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
        }
        Ok(outcome)
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
        let curves: Vec<Curve> = running().map(Running::true_plans).collect();
        let known: Vec<Job<'_>> =
            running().zip(&curves).map(|(job, curve)| job.as_it_is(curve)).collect();
        let room = Room { budget_w: limit_w, base_w: self.base_w() };
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
        let seen: Vec<Seen<'_>> = self.slots.iter().filter_map(Slot::seen).collect();
        let orders = self.controller.next(&seen, now)?;
        for job in self.slots.iter_mut().filter_map(|slot| slot.job.as_mut()) {
            if let Some(&place) = orders.changes.get(&job.name) {
                job.ordered = Some(place);
            }
        }
        Ok(self.slots.iter_mut().map(Slot::changes).sum())
    }
}

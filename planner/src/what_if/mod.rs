//! What-ifs: the least energy at a deadline if something were not as a frontier was planned for.
//!
//! Plans of a frontier remain nearly the best of their kind when the site or the rest of a step
//! changes, or the power a little. So those about the deadline are spliced and improved as
//! [`Frontier::plan_for`] improves its plans, in a small part of the time. When a stage becomes slower,
//! other stages wait, and plans for the former ones may take a percent more than they have to, as where
//! the power becomes another: the relaxed problem is solved again down to the deadline. In a very long
//! step that would take seconds; there, plans are taken over clock by clock.

mod change;
mod steps;

use std::collections::BTreeMap;
use std::sync::Arc;

use pfo_vocabulary::{Mhz, Watts};

use crate::choices::pareto::{falling, lower_hull};
use crate::choices::tradeoff::{Kind, Tradeoffs};
use crate::choices::{Assignment, Choices, Realised};
use crate::error::PlanError;
use crate::frontier::Frontier;
use crate::frontier::clock_per::ClockPer;
use crate::frontier::due::Due;
use crate::frontier::optimize::Making;
use crate::limits::{SHORT_STEP, VERY_LONG_STEP};
use crate::plan::{Plan, Prediction};
use crate::profile::Profile;
use crate::progress::Progress;
use crate::realise::Realiser;
use crate::realise::exchange::Exchange;
use crate::realise::splice::{Regimes, Splicer};
use crate::relaxation::bound::LowerBound;
use crate::waits::per_stage::PerStage;
pub use change::Change;
use steps::Step;

/// Visits of arcs in exchanges, some tenths of a millisecond.
const AFFORDABLE: usize = 14_000;

/// How far the P2P-blocking power may be off, as a share. Beyond, other clocks pay than those of the
/// plans at hand: with a fifteenth of it, plans that were made from these took 1.8 % more.
const FAR: f64 = 0.25;

/// Numbers of microbatches that are prepared for at a time.
const MOST_OTHERS: usize = 64;

/// What the times of a step may add up to more in another order, as a share.
const ROUNDING: f64 = 1e-11;

/// A frontier that is ready for questions.
#[derive(Clone)]
pub struct WhatIfs<'a> {
    frontier: &'a Frontier,
    own: Arc<Step>,
    /// By number of microbatches.
    others: BTreeMap<u32, Arc<Step>>,
}

/// The plan of least energy that was found, and what a step takes with it.
#[derive(Clone)]
pub struct Answer {
    /// Seconds of a step, its rest included.
    pub iteration_time_s: f64,
    /// Joules of all stages over that time, and over the wait until the step is due if there is one.
    pub iteration_energy_j: f64,
    step: Arc<Step>,
    p2p_power: PerStage<Watts>,
    clocks: Vec<Mhz>,
}

impl Frontier {
    /// Prepares for questions.
    ///
    /// # Errors
    /// [`PlanError::BadArgument`] if clocks are late, waits have clocks of their own, or plans were not
    /// made by this planner with a clock for each instruction.
    pub fn what_ifs(&self) -> Result<WhatIfs<'_>, PlanError> {
        let is_late = self.pipeline().network().delays.make_changes_late();
        if is_late || self.wait_power().is_some() || self.clock_per != Some(ClockPer::Instruction) {
            return Err(PlanError::BadArgument {
                name: "the frontier",
                value: "one with late clocks, clocks of waits, or few clocks".to_owned(),
                expected: "made for prompt clocks, one for each instruction; plan anew instead",
            });
        }
        Ok(WhatIfs { frontier: self, own: Arc::new(Step::of(self)), others: BTreeMap::new() })
    }
}

impl WhatIfs<'_> {
    /// The plan of least energy that is done when it is due, with a change. A deadline beyond the plan of
    /// least energy gets that one.
    ///
    /// # Errors
    /// [`PlanError::DeadlineTooEarly`] if no plan is as fast; if the change is for other stages, names a
    /// clock that was not measured, or has figures that no GPU has.
    pub fn answer(&mut self, change: &Change, due: Due) -> Result<Answer, PlanError> {
        let step = self.step(change.microbatches)?;
        let profile = change.profile(&step.pipeline)?;
        let power = change.p2p_power.as_ref().unwrap_or(self.frontier.p2p_power());
        change.check(&profile, power)?;
        let list =
            step.kinds.iter().map(|&kind| change.tradeoff(&step.pipeline, (&profile, power), kind));
        let list = list.collect::<Result<_, _>>()?;
        let tradeoffs = Tradeoffs { list, of: step.of.clone() };
        let choices = Choices::new(&tradeoffs);
        let site_w = change.site_power.unwrap_or(self.frontier.site_power()).0
            * f64::from(profile.num_stages());
        let waiting_w = power.total_w(profile.num_stages());
        let question = Question {
            frontier: self.frontier,
            step: &step,
            profile: &profile,
            power,
            taken: taken(&step, self.frontier.pipeline().profile(), &profile, &choices),
            tradeoffs: &tradeoffs,
            choices: &choices,
            is_far: change.has_other_tables() || self.is_far(power),
            second_w: waiting_w + site_w,
        };
        let plan = question.plan(due.at(due.seconds() - change.rest_s), change.rest_s)?;
        let iteration_time_s = plan.time_s + change.rest_s;
        let clock =
            |operation| choices.get(choices.unpacked(&plan.assignment, operation)).frequency;
        Ok(Answer {
            iteration_time_s,
            iteration_energy_j: plan.effective_j + waiting_w * due.lasts_s(iteration_time_s),
            clocks: (0..step.pipeline.network().len()).map(clock).collect(),
            p2p_power: power.clone(),
            step: Arc::clone(&step),
        })
    }

    /// Whether waiting draws so much more or less that other clocks pay.
    fn is_far(&self, power: &PerStage<Watts>) -> bool {
        let num_stages = self.own.pipeline.profile().num_stages();
        let pairs = power.each(num_stages).zip(self.frontier.p2p_power().each(num_stages));
        pairs.into_iter().any(|(now, own)| (now.0 - own.0).abs() > FAR * own.0)
    }

    fn step(&mut self, microbatches: Option<u32>) -> Result<Arc<Step>, PlanError> {
        let own = self.own.pipeline.num_microbatches();
        let Some(count) = microbatches.filter(|&count| count != own) else {
            return Ok(Arc::clone(&self.own));
        };
        if let Some(step) = self.others.get(&count) {
            return Ok(Arc::clone(step));
        }
        let step = Arc::new(Step::with_microbatches(self.frontier, count)?);
        if self.others.len() >= MOST_OTHERS {
            self.others.clear();
        }
        self.others.insert(count, Arc::clone(&step));
        Ok(step)
    }
}

impl Answer {
    /// The plan. Its prediction is a step with its rest.
    pub fn plan(&self) -> Plan {
        let mut plan = self.step.pipeline.plan(|operation| self.clocks[operation]);
        plan.p2p_blocking_power_w = Some(self.p2p_power.clone());
        plan.predicted = Some(Prediction {
            iteration_time_s: self.iteration_time_s,
            iteration_energy_j: self.iteration_energy_j,
        });
        plan
    }
}

/// For each kind of operation and each row of its table in the frontier, the choice that is taken
/// instead.
fn taken(step: &Step, own: &Profile, now: &Profile, choices: &Choices) -> Vec<Vec<u32>> {
    let of_kind = |(kind, &(fastest, end)): (&Kind, &(u32, u32))| {
        let &Kind::Measured(stage, instruction, part) = kind else { return vec![fastest] };
        let rows = own.part_table(stage, instruction, part).iter().map(|row| {
            let Some(now) = now.part_at(stage, instruction, part, row.frequency) else {
                let distance =
                    |&index: &u32| choices.get(index).frequency.0.abs_diff(row.frequency.0);
                return (fastest..end).min_by_key(distance).unwrap_or(fastest);
            };
            let fits = |&index: &u32| choices.get(index).time_s <= now.time_s;
            (fastest..end).rev().find(fits).unwrap_or(fastest)
        });
        rows.collect()
    };
    step.kinds.iter().zip(choices.ranges()).map(of_kind).collect()
}

/// One question.
struct Question<'a> {
    frontier: &'a Frontier,
    step: &'a Step,
    profile: &'a Profile,
    power: &'a PerStage<Watts>,
    tradeoffs: &'a Tradeoffs,
    choices: &'a Choices,
    taken: Vec<Vec<u32>>,
    /// Whether instructions have other times or energies than those that were planned with, or waiting
    /// draws far more or less.
    is_far: bool,
    /// The power of all stages while they wait, and of the site.
    second_w: f64,
}

impl Question<'_> {
    /// The plan for instructions that are due then; `rest_s` is for messages.
    fn plan(&self, due: Due, rest_s: f64) -> Result<Realised, PlanError> {
        let network = self.step.pipeline.network();
        let fastest: Assignment = (0..network.len()).map(|op| self.choices.fastest(op)).collect();
        let fastest_s = self.makespan_s(&fastest);
        if due.seconds().is_nan() || due.seconds() < fastest_s * (1.0 - ROUNDING) {
            let (deadline_s, fastest_s) = (due.seconds() + rest_s, fastest_s + rest_s);
            return Err(PlanError::DeadlineTooEarly { deadline_s, fastest_s });
        }
        if self.is_far && network.len() <= VERY_LONG_STEP {
            return Ok(self.anew(self.useful_s(due)));
        }
        let mut late = self.first_late(due.seconds());
        if late == 0 {
            return Ok(self.anew(self.useful_s(due)));
        }
        let mut deadline_s = due.seconds();
        if let Due::AtMost(_) = due {
            let cheapest = self.cheapest(late);
            if cheapest + 1 < late {
                late = cheapest + 1;
                deadline_s = self.realised(cheapest).time_s;
            }
        }
        let (near, _) = self.effort();
        let about = late.saturating_sub(near)..self.frontier.plans.len().min(late + near);
        let plans: Vec<Realised> = about.map(|place| self.realised(place)).collect();
        let plans = falling(plans, Realised::cost);
        if plans.first().is_none_or(|plan| plan.time_s > deadline_s) {
            return Ok(self.anew(deadline_s));
        }
        Ok(self.improved(&plans, deadline_s * (1.0 - ROUNDING), fastest_s))
    }

    /// A plan for a deadline, in seconds, from plans about it.
    fn improved(&self, plans: &[Realised], deadline_s: f64, fastest_s: f64) -> Realised {
        let network = self.step.pipeline.network();
        let progress = Progress::new(&|_| {});
        let regimes = Regimes(lower_hull(plans.iter().cloned(), Realised::cost));
        let mut splicer = Splicer::new(Realiser::new(network, self.choices), &regimes, plans);
        let plan = splicer.at(deadline_s);
        let (_, kinds) = self.effort();
        let every = self.choices.ranges().len().div_ceil(kinds);
        let mut realiser = Realiser::new(network, self.choices);
        let plan = realiser.redistribute(&plan, deadline_s, (0, every), &progress);
        let Some(priced) = &self.step.priced else { return plan };
        let slowest: Assignment = (0..network.len()).map(|op| self.choices.of(op).1 - 1).collect();
        let slowest_s = self.makespan_s(&slowest);
        let share = (deadline_s - fastest_s) / (slowest_s - fastest_s).max(f64::MIN_POSITIVE);
        let price_w = priced.at(share.clamp(0.0, 1.0));
        let exchange = Exchange::new(self.choices, &priced.events, price_w, deadline_s, AFFORDABLE);
        exchange.improved(network, plan, &progress).0
    }

    /// How many plans before and after the deadline are looked at, and about how many kinds of operations
    /// give slack to others.
    fn effort(&self) -> (usize, usize) {
        match self.step.pipeline.network().len() {
            len if len <= SHORT_STEP => (8, usize::MAX),
            len if len <= VERY_LONG_STEP => (8, 16),
            _ => (3, 4),
        }
    }

    /// The time that instructions may take, in seconds, as far as more of it is of use.
    fn useful_s(&self, due: Due) -> f64 {
        let cheapest_s =
            || LowerBound::cheapest_at_s(&self.step.pipeline, self.tradeoffs, self.second_w);
        match due {
            Due::AtMost(seconds) => seconds.min(cheapest_s()),
            Due::Waiting(seconds) => seconds,
        }
    }

    /// A plan for a deadline, in seconds, made as if there were no frontier.
    fn anew(&self, deadline_s: f64) -> Realised {
        let pipeline = self.step.pipeline.over(self.profile.clone());
        let making = Making {
            pipeline: &pipeline,
            p2p_power: self.power,
            tradeoffs: self.tradeoffs,
            choices: self.choices,
        };
        let mut made = making.at(deadline_s, &Progress::new(&|_| {}));
        // One plan where clocks are prompt.
        made.swap_remove(0)
    }

    /// The place of the first plan that is late, if times rise as they did.
    fn first_late(&self, deadline_s: f64) -> usize {
        let (mut first, mut end) = (0, self.frontier.plans.len());
        while first < end {
            let middle = first.midpoint(end);
            match self.makespan_s(&self.assignment(middle)) <= deadline_s {
                true => first = middle + 1,
                false => end = middle,
            }
        }
        first
    }

    /// The place of the plan of least energy among the first ones, if energies fall and then rise.
    fn cheapest(&self, end: usize) -> usize {
        let energy_j = |place| {
            let assignment = self.assignment(place);
            self.choices.effective_j(&assignment) + self.second_w * self.makespan_s(&assignment)
        };
        let (mut first, mut last) = (0, end - 1);
        while first < last {
            let middle = first.midpoint(last);
            match energy_j(middle) <= energy_j(middle + 1) {
                true => last = middle,
                false => first = middle + 1,
            }
        }
        first
    }

    fn makespan_s(&self, assignment: &[u32]) -> f64 {
        let time_s = |operation: usize| self.choices.get(assignment[operation]).time_s;
        self.step.pipeline.network().makespan(time_s)
    }

    /// A plan of the frontier, with the clocks that are taken instead of its own.
    fn assignment(&self, place: usize) -> Assignment {
        let rows = &self.frontier.plans[place].rows;
        let choice = |(operation, &kind): (usize, &u16)| {
            let taken = &self.taken[usize::from(kind)];
            let row = self.step.row(rows, operation).unwrap_or(0);
            taken.get(row).or(taken.last()).copied().unwrap_or(self.choices.fastest(operation))
        };
        self.step.of.iter().enumerate().map(choice).collect()
    }

    fn realised(&self, place: usize) -> Realised {
        let assignment = self.assignment(place);
        Realised {
            time_s: self.makespan_s(&assignment),
            effective_j: self.choices.effective_j(&assignment),
            assignment: self.choices.packed(&assignment),
        }
    }
}

//! The frontier: plans of measured clocks, from the fastest to the one of least energy and beyond.
//!
//! [`optimize`] makes it from a profile, [`assembled`] from plans of others, [`mod@file`] from
//! bytes. [`deadline`], [`written`], [`straggler`] and [`due`] say which plan is wanted; [`planned`] makes it,
//! [`polish`] improves it, and [`replan`] makes one for what is measured now.

mod about;
mod assembled;
pub(crate) mod clock_per;
pub(crate) mod confident;
pub(crate) mod deadline;
pub(crate) mod due;
pub(crate) mod file;
pub(crate) mod optimize;
mod planned;
mod polish;
pub(crate) mod replan;
pub(crate) mod straggler;
mod waiting;
pub(crate) mod written;

use pfo_vocabulary::Watts;

use crate::error::PlanError;
use crate::frontier::clock_per::ClockPer;
use crate::frontier::deadline::Deadline;
use crate::frontier::due::Due;
use crate::limits;
use crate::pipeline::Pipeline;
use crate::plan::{Plan, Prediction};
use crate::replay::interval::{Interval, interval};
use crate::waits::per_stage::PerStage;
use crate::waits::power::PowerByClock;

/// Time and energy of a plan by its replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Seconds of a step.
    pub iteration_time_s: f64,
    /// Joules of all stages, including those drawn while waiting.
    pub iteration_energy_j: f64,
}

/// Plans for one pipeline, fastest first; each takes less effective energy than the ones before.
#[derive(Clone, Debug)]
pub struct Frontier {
    /// The GPU model that was profiled, if it is known.
    pub gpu: Option<String>,
    pub(crate) pipeline: Pipeline,
    pub(crate) p2p_power: PerStage<Watts>,
    /// What waiting draws by clock, if waits have clocks of their own.
    pub(crate) wait_power: Option<PerStage<PowerByClock>>,
    /// What has a clock of its own; none if it is not known, or the plans are another planner's.
    pub(crate) clock_per: Option<ClockPer>,
    pub(crate) plans: Vec<Kept>,
    /// What a GPU's share of the site draws as long as a step takes.
    pub(crate) site_power: Watts,
    /// The indices of those that take less energy than every faster one, that of the site included.
    points: Vec<usize>,
}

/// A plan in compact form.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kept {
    pub(crate) point: Point,
    /// For each instruction, stage by stage in the order of the stage, the row of its table.
    pub(crate) rows: Box<[u8]>,
}

impl Frontier {
    /// The largest number of rows of one instruction's table.
    pub const MAX_TABLE_ROWS: usize = limits::TABLE_ROWS;
    /// The largest number of plans.
    pub const MAX_PLANS: usize = limits::PLANS;

    pub(crate) fn new(
        pipeline: Pipeline,
        p2p_power: PerStage<Watts>,
        gpu: Option<String>,
        plans: Vec<Kept>,
    ) -> Result<Self, PlanError> {
        if plans.is_empty() {
            return Err(PlanError::EmptyFrontier);
        }
        let frontier = Self {
            gpu,
            pipeline,
            p2p_power,
            wait_power: None,
            clock_per: None,
            plans,
            site_power: Watts(0.0),
            points: Vec::new(),
        };
        Ok(Self { points: frontier.falling(), ..frontier })
    }

    /// The frontier for a site whose host, fans and cooling draw this much for each GPU while it
    /// trains. Time costs more then: the plan of least energy is faster. The energy of plans remains
    /// that of their GPUs.
    ///
    /// # Errors
    /// [`PlanError::BadArgument`] if the power is not a number of at least 0.
    pub fn with_site_power(self, site_power: Watts) -> Result<Self, PlanError> {
        if !(site_power.0.is_finite() && site_power.0 >= 0.0) {
            return Err(PlanError::BadArgument {
                name: "the site power",
                value: site_power.to_string(),
                expected: "watts of at least 0 for each GPU",
            });
        }
        let frontier = Self { site_power, ..self };
        Ok(Self { points: frontier.falling(), ..frontier })
    }

    /// The places of the plans that take less energy, that of the site included, than every faster
    /// one.
    fn falling(&self) -> Vec<usize> {
        let mut least_j = f64::INFINITY;
        let is_less = |&place: &usize| {
            let Point { iteration_time_s, iteration_energy_j } = self.plans[place].point;
            let energy_j = iteration_energy_j + self.site_w() * iteration_time_s;
            let is_less = energy_j < least_j;
            least_j = least_j.min(energy_j);
            is_less
        };
        (0..self.plans.len()).filter(is_less).collect()
    }

    /// The watts of all GPUs' shares of the site.
    pub(crate) fn site_w(&self) -> f64 {
        self.site_power.0 * f64::from(self.pipeline.profile().num_stages())
    }

    /// What host, fans and cooling draw for each GPU; 0 if it was not given.
    pub fn site_power(&self) -> Watts {
        self.site_power
    }

    /// The pipeline that the plans are for.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// The P2P-blocking power that the plans were made for, or that of each stage.
    pub fn p2p_power(&self) -> &PerStage<Watts> {
        &self.p2p_power
    }

    /// How many powers of waiting by clock it has, of all stages together.
    pub fn num_wait_powers(&self) -> usize {
        let of_stages = self.wait_power.iter().flat_map(PerStage::values);
        of_stages.map(|power| power.points().len()).sum()
    }

    /// The plans from the fastest to the one of least energy: times rise and energies fall.
    pub fn points(&self) -> impl ExactSizeIterator<Item = Point> {
        self.points.iter().map(|&place| self.plans[place].point)
    }

    /// All plans by rising time. Those that are not among [`Frontier::points`] take more energy
    /// than a faster one, but less than that one takes if a straggler stretches it to their time.
    pub fn plans(&self) -> impl ExactSizeIterator<Item = Point> {
        self.plans.iter().map(|plan| plan.point)
    }

    /// The index in [`Frontier::plans`] of the plan of least energy that keeps a deadline.
    ///
    /// # Errors
    /// [`PlanError::DeadlineTooEarly`] if even the fastest plan takes longer.
    pub fn pick(&self, deadline: Deadline) -> Result<usize, PlanError> {
        self.place(Due::AtMost(self.seconds(deadline)))
    }

    /// The place of the plan of least energy that is done when it is due.
    fn place(&self, due: Due) -> Result<usize, PlanError> {
        let deadline_s = due.seconds();
        let is_in_time = |plan: &Kept| plan.point.iteration_time_s <= deadline_s;
        let last = match due {
            Due::AtMost(_) => {
                let in_time = self.points.partition_point(|&place| is_in_time(&self.plans[place]));
                in_time.checked_sub(1).map(|last| self.points[last])
            }
            // Each takes less energy than the ones before if these wait for its time.
            Due::Waiting(_) => self.plans.partition_point(is_in_time).checked_sub(1),
        };
        let fastest_s = self.seconds(Deadline::Fastest);
        last.ok_or(PlanError::DeadlineTooEarly { deadline_s, fastest_s })
    }

    /// A deadline in seconds.
    pub fn seconds(&self, deadline: Deadline) -> f64 {
        let fastest_s = self.plans[self.points[0]].point.iteration_time_s;
        match deadline {
            Deadline::Seconds(seconds) => seconds,
            Deadline::Factor(factor) => factor * fastest_s,
            Deadline::Fastest => fastest_s,
            Deadline::MinEnergy => self.cheapest_s(),
        }
    }

    /// The time of the plan of least energy, in seconds.
    pub(crate) fn cheapest_s(&self) -> f64 {
        self.plans[self.points[self.points.len() - 1]].point.iteration_time_s
    }

    /// The plan at an index in [`Frontier::plans`].
    ///
    /// # Errors
    /// [`PlanError::NoSuchPlan`] if the index is too large.
    pub fn plan(&self, place: usize) -> Result<Plan, PlanError> {
        let kept = self
            .plans
            .get(place)
            .ok_or(PlanError::NoSuchPlan { place, plans: self.plans.len() })?;
        let network = self.pipeline.network();
        let mut row_of = vec![0; network.len()];
        for (&operation, &row) in network.stages.iter().flatten().zip(&kept.rows) {
            row_of[operation as usize] = usize::from(row);
        }
        let mut plan = self.pipeline.plan(|index| {
            let operation = &network.operations[index];
            let table = self.pipeline.profile().part_table(
                operation.stage,
                operation.instruction,
                operation.part(),
            );
            table[row_of[index]].frequency
        });
        plan.gpu.clone_from(&self.gpu);
        plan.p2p_blocking_power_w = Some(self.p2p_power.clone());
        plan.predicted = Some(Prediction {
            iteration_time_s: kept.point.iteration_time_s,
            iteration_energy_j: kept.point.iteration_energy_j,
        });
        self.with_own_waits(plan)
    }

    /// Where time and energy of a plan's instructions are expected.
    ///
    /// # Errors
    /// If the plan is for another pipeline.
    pub fn interval(&self, plan: &Plan) -> Result<Interval, PlanError> {
        interval(self.pipeline.profile(), plan, self.waiting_power(plan))
    }

    /// What GPUs draw while a plan waits: the plan's own figures, or else those of the frontier.
    #[must_use]
    pub fn waiting_power(&self, plan: &Plan) -> PerStage<PowerByClock> {
        plan.waiting_power().unwrap_or_else(|| self.p2p_power().into())
    }

    /// A plan with clocks for its waits, if the frontier's plans have them.
    pub(crate) fn with_own_waits(&self, plan: Plan) -> Result<Plan, PlanError> {
        match &self.wait_power {
            Some(power) => plan.with_waits(self.pipeline.profile(), power),
            None => Ok(plan),
        }
    }
}

//! The frontier: plans of measured clocks, from the fastest to the one of least energy and beyond.
//!
//! [`optimize`] makes it from a profile, [`assembled`] from plans of others, [`mod@file`] from
//! bytes. [`deadline`] and [`straggler`] say which plan to pick; [`polish`] improves a single one.

mod assembled;
pub(crate) mod clock_per;
pub(crate) mod deadline;
pub(crate) mod file;
pub(crate) mod optimize;
mod polish;
pub(crate) mod straggler;

use pfo_vocabulary::Watts;

use crate::error::PlanError;
use crate::frontier::deadline::Deadline;
use crate::limits;
use crate::pipeline::Pipeline;
use crate::plan::{Plan, Prediction};

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
    pub(crate) p2p_power: Watts,
    pub(crate) plans: Vec<Kept>,
    /// The indices of those that take less energy than every faster one.
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
        p2p_power: Watts,
        gpu: Option<String>,
        plans: Vec<Kept>,
    ) -> Result<Self, PlanError> {
        let mut least_j = f64::INFINITY;
        let mut points = Vec::new();
        for (place, plan) in plans.iter().enumerate() {
            if plan.point.iteration_energy_j < least_j {
                least_j = plan.point.iteration_energy_j;
                points.push(place);
            }
        }
        if points.is_empty() {
            return Err(PlanError::EmptyFrontier);
        }
        Ok(Self { gpu, pipeline, p2p_power, plans, points })
    }

    /// The pipeline that the plans are for.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// The P2P-blocking power that the plans were made for.
    pub fn p2p_power(&self) -> Watts {
        self.p2p_power
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
        let deadline_s = self.seconds(deadline);
        let in_time =
            self.points.partition_point(|&p| self.plans[p].point.iteration_time_s <= deadline_s);
        match in_time {
            0 => {
                let fastest_s = self.seconds(Deadline::Fastest);
                Err(PlanError::DeadlineTooEarly { deadline_s, fastest_s })
            }
            _ => Ok(self.points[in_time - 1]),
        }
    }

    /// A deadline in seconds, at most the time of the plan of least energy.
    pub(crate) fn seconds(&self, deadline: Deadline) -> f64 {
        let time_s = |place: usize| self.plans[place].point.iteration_time_s;
        let (fastest_s, cheapest_s) =
            (time_s(self.points[0]), time_s(self.points[self.points.len() - 1]));
        let deadline_s = match deadline {
            Deadline::Seconds(seconds) => seconds,
            Deadline::Factor(factor) => factor * fastest_s,
            Deadline::Fastest => fastest_s,
            Deadline::MinEnergy => cheapest_s,
        };
        deadline_s.min(cheapest_s)
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
            let table = self.pipeline.profile().table(operation.stage, operation.instruction);
            table[row_of[index]].frequency
        });
        plan.gpu.clone_from(&self.gpu);
        plan.p2p_blocking_power_w = Some(self.p2p_power);
        plan.predicted = Some(Prediction {
            iteration_time_s: kept.point.iteration_time_s,
            iteration_energy_j: kept.point.iteration_energy_j,
        });
        Ok(plan)
    }
}

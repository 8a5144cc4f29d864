//! Whether a plan fits a job, and the plan in the form in which ranks follow it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use arc_swap::ArcSwapOption;
use pfo_planner::{Mhz, Plan, StagePlan};
use pfo_protocol::{Instruction, PlanStatus, Unit};

use crate::driver::Gpu;

/// One instruction of a stage and its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The instruction.
    pub unit: Unit,
    /// The clock that it is to run at.
    pub mhz: Mhz,
}

/// The instructions of one stage in order. Never empty.
pub type StageSequence = Arc<[Planned]>;

/// A plan that a job runs or may run.
#[derive(Debug)]
pub struct JobPlan {
    /// Counts the plans of the job from 1.
    pub number: u32,
    /// Where it came from, as the client called it.
    pub label: String,
    predicted: Option<(f64, f64)>,
    stages: Vec<StageSequence>,
    num_microbatches: u32,
    suspended: AtomicBool,
    suspended_why: ArcSwapOption<String>,
}

/// The first difference between a plan and what it shall be used for.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// Another number of stages.
    #[error("the plan has {plan} stages, the job {job}")]
    Stages {
        /// The plan's.
        plan: usize,
        /// The job's.
        job: u32,
    },
    /// Another number of microbatches.
    #[error("the plan has {plan} microbatches, rank {rank} said {job}")]
    Microbatches {
        /// The plan's.
        plan: u32,
        /// The rank that said otherwise.
        rank: u32,
        /// The rank's.
        job: u32,
    },
    /// A stage without instructions.
    #[error("stage {0} has no instruction in the plan")]
    Empty(usize),
    /// Another instruction than the rank ran in its last whole step.
    #[error(
        "instruction {position} of stage {stage} is {planned} in the plan, but rank {rank} ran {ran}"
    )]
    Order {
        /// The stage.
        stage: u32,
        /// Which instruction, from 0.
        position: usize,
        /// The plan's.
        planned: String,
        /// The rank.
        rank: u32,
        /// The rank's.
        ran: String,
    },
    /// A frequency that the GPU does not have.
    #[error(
        "stage {stage} asks for {mhz} in instruction {position}, which {model} of rank {rank} does \
         not support; the nearest are {nearest}"
    )]
    Frequency {
        /// The stage.
        stage: u32,
        /// Which instruction, from 0.
        position: usize,
        /// The frequency.
        mhz: Mhz,
        /// The rank.
        rank: u32,
        /// Its GPU's model.
        model: String,
        /// What the GPU has instead.
        nearest: String,
    },
    /// A frequency outside the administrator's bounds.
    #[error(
        "stage {stage} asks for {mhz} in instruction {position}, but the administrator allows \
         {min} to {max} (clocks.min_mhz, clocks.max_mhz)"
    )]
    Bounds {
        /// The stage.
        stage: usize,
        /// Which instruction, from 0.
        position: usize,
        /// The frequency.
        mhz: Mhz,
        /// The lowest allowed.
        min: Mhz,
        /// The highest allowed.
        max: Mhz,
    },
}

/// What a rank tells about the plans that fit it.
#[derive(Clone, Debug)]
pub struct RankShape {
    /// The rank.
    pub rank: u32,
    /// Its stage.
    pub stage: u32,
    /// The microbatches of a step, if it said so.
    pub num_microbatches: Option<u32>,
    /// What it ran in its last whole step, if it has run one.
    pub ran: Option<Arc<Vec<Unit>>>,
    /// Its GPU.
    pub gpu: Arc<Gpu>,
}

impl JobPlan {
    /// A plan in the form for ranks, checked against the administrator's bounds.
    ///
    /// # Errors
    /// If a stage is empty or a frequency is out of bounds.
    pub fn new(
        number: u32,
        label: String,
        plan: &Plan,
        (min, max): (Mhz, Mhz),
    ) -> Result<Self, Misfit> {
        for (stage, planned) in plan.stages.iter().enumerate() {
            if planned.instructions.is_empty() {
                return Err(Misfit::Empty(stage));
            }
            for (position, instruction) in planned.instructions.iter().enumerate() {
                let mhz = instruction.frequency_mhz;
                if mhz < min || mhz > max {
                    return Err(Misfit::Bounds { stage, position, mhz, min, max });
                }
            }
        }
        Ok(Self {
            number,
            label,
            predicted: plan.predicted.map(|p| (p.iteration_time_s, p.iteration_energy_j)),
            stages: plan.stages.iter().map(sequence).collect(),
            num_microbatches: plan.num_microbatches,
            suspended: AtomicBool::new(false),
            suspended_why: ArcSwapOption::empty(),
        })
    }

    /// Checks the plan against a job's stages.
    ///
    /// # Errors
    /// The difference.
    pub fn check_stages(&self, job: u32) -> Result<(), Misfit> {
        match self.stages.len() {
            plan if plan == job as usize => Ok(()),
            plan => Err(Misfit::Stages { plan, job }),
        }
    }

    /// Checks the plan against one rank.
    ///
    /// # Errors
    /// The first difference.
    pub fn check_rank(&self, shape: &RankShape) -> Result<(), Misfit> {
        let &RankShape { rank, stage, .. } = shape;
        if let Some(job) = shape.num_microbatches
            && job != self.num_microbatches
        {
            return Err(Misfit::Microbatches { plan: self.num_microbatches, rank, job });
        }
        let planned = self.stage(stage);
        if let Some(ran) = &shape.ran {
            let in_words = |unit: Option<Unit>| unit.map_or("nothing".into(), |u| u.to_string());
            for position in 0..planned.len().max(ran.len()) {
                let unit = planned.get(position).map(|planned| planned.unit);
                let other = ran.get(position).copied();
                if unit != other {
                    let (planned, ran) = (in_words(unit), in_words(other));
                    return Err(Misfit::Order { stage, position, planned, rank, ran });
                }
            }
        }
        let clocks = &shape.gpu.sm_clocks;
        let missing = planned.iter().position(|p| clocks.binary_search(&p.mhz).is_err());
        missing.map_or(Ok(()), |position| {
            let mhz = planned[position].mhz;
            let above = clocks.partition_point(|clock| *clock < mhz);
            let around = clocks[above.saturating_sub(1)..(above + 1).min(clocks.len())].iter();
            Err(Misfit::Frequency {
                stage,
                position,
                mhz,
                rank,
                model: shape.gpu.model.clone(),
                nearest: around.map(ToString::to_string).collect::<Vec<_>>().join(" and "),
            })
        })
    }

    /// What a stage runs. Stages that the plan does not have are refused by
    /// [`check_stages`](Self::check_stages).
    #[must_use]
    pub fn stage(&self, stage: u32) -> StageSequence {
        Arc::clone(&self.stages[stage as usize])
    }

    /// Stops the use of the plan on all ranks from their next step on. The first reason stays.
    pub fn suspend(&self, why: impl FnOnce() -> String) {
        if !self.suspended.swap(true, Relaxed) {
            self.suspended_why.store(Some(Arc::new(why())));
        }
    }

    /// Whether the plan is suspended.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.suspended.load(Relaxed)
    }

    /// The plan for people.
    #[must_use]
    pub fn status(&self) -> PlanStatus {
        PlanStatus {
            number: self.number,
            label: self.label.clone(),
            predicted_time_s: self.predicted.map(|(time_s, _)| time_s),
            predicted_energy_j: self.predicted.map(|(_, energy_j)| energy_j),
            suspended: self.suspended_why.load().as_deref().cloned(),
        }
    }
}

fn sequence(stage: &StagePlan) -> StageSequence {
    let planned = |p: &pfo_planner::PlannedInstruction| Planned {
        unit: Unit {
            instruction: Instruction::from_name(p.instruction.name()).unwrap_or(Instruction::Other),
            chunk: 0,
            microbatch: p.microbatch.0,
        },
        mhz: p.frequency_mhz,
    };
    stage.instructions.iter().map(planned).collect()
}

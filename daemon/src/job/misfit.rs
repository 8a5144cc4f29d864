//! The first difference between a plan and the job that is to run it, in words.

use pfo_keeper::LimitRange;
use pfo_policy::Place;
use pfo_protocol::{Mhz, Milliwatts, Rank, Stage};

/// The first difference between a plan and the job that is to run it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misfit {
    /// Another number of stages.
    #[error("the plan has {plan} stages, the job {job}")]
    Stages { plan: usize, job: u32 },
    /// Another number of microbatches.
    #[error("the plan has {plan} microbatches, rank {rank} said {job}")]
    Microbatches {
        plan: u32,
        /// The rank that reported another number.
        rank: Rank,
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
        stage: Stage,
        /// Which instruction, from 0.
        position: usize,
        /// The plan's.
        planned: String,
        rank: Rank,
        /// The rank's.
        ran: String,
    },
    /// A frequency that the GPU does not have.
    #[error(
        "stage {stage} asks for {mhz} in instruction {position}, which {model} of rank {rank} does \
         not support; the nearest are {nearest}"
    )]
    Frequency {
        stage: Stage,
        /// Which instruction, from 0.
        position: usize,
        /// The frequency.
        mhz: Mhz,
        rank: Rank,
        /// Its GPU's model.
        model: String,
        /// What the GPU has instead.
        nearest: String,
    },
    /// A frequency outside the administrator's bounds.
    #[error(
        "stage {stage} asks for {mhz} in instruction {position}, but the administrator allows \
         rank {rank} {min} to {max} ({place})"
    )]
    Bounds {
        stage: Stage,
        /// Which instruction, from 0.
        position: usize,
        /// The frequency.
        mhz: Mhz,
        rank: Rank,
        /// The lowest allowed.
        min: Mhz,
        /// The highest allowed.
        max: Mhz,
        /// What says so.
        place: Place,
    },
    /// Power limits of a GPU that takes none.
    #[error("{model} of rank {rank} takes no power limit")]
    NoPowerLimit {
        rank: Rank,
        /// Its GPU's model.
        model: String,
    },
    /// A power limit that the GPU does not take.
    #[error(
        "stage {stage} is to have a power limit of {limit}, but {model} of rank {rank} takes {} to \
         {}",
        .board.lowest, .board.highest
    )]
    PowerLimit {
        stage: Stage,
        limit: Milliwatts,
        rank: Rank,
        /// Its GPU's model.
        model: String,
        /// What the GPU takes.
        board: LimitRange,
    },
    /// A power limit below the administrator's bound.
    #[error(
        "stage {stage} is to have a power limit of {limit}, but the administrator allows rank {rank} \
         no limit below {min} ({place})"
    )]
    PowerBound {
        stage: Stage,
        limit: Milliwatts,
        rank: Rank,
        /// The lowest allowed.
        min: Milliwatts,
        /// What says so.
        place: Place,
    },
}

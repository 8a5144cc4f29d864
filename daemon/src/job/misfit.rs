//! The first difference between a plan and the job that is to run it, in words.

use pfo_keeper::LimitRange;
use pfo_policy::Place;
use pfo_protocol::{Mhz, Milliwatts, Rank, Stage};

/// The first difference between a plan and the job that is to run it. Instructions count from 0.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misfit {
    /// Another number of stages.
    #[error("the plan has {plan} stages, the job {job}")]
    Stages { plan: usize, job: u32 },
    /// Another number of microbatches.
    #[error("the plan has {plan} microbatches, rank {rank} said {job}")]
    Microbatches { plan: u32, rank: Rank, job: u32 },
    /// A stage without instructions, of which a rank is on this node.
    #[error("stage {0} has no instruction in the plan")]
    Empty(Stage),
    /// Another instruction than the rank ran in its last whole step.
    #[error(
        "instruction {position} of stage {stage} is {planned} in the plan, but rank {rank} ran {ran}"
    )]
    Order { stage: Stage, position: usize, planned: String, rank: Rank, ran: String },
    /// A frequency that the GPU does not have.
    #[error(
        "stage {stage} asks for {mhz} in instruction {position}, which {model} of rank {rank} does \
         not support; the nearest are {nearest}"
    )]
    Frequency {
        stage: Stage,
        position: usize,
        mhz: Mhz,
        rank: Rank,
        model: String,
        nearest: String,
    },
    /// A frequency outside the administrator's bounds.
    #[error(
        "stage {stage} asks for {mhz} in instruction {position}, but the administrator allows \
         rank {rank} {min} to {max} ({place})"
    )]
    Bounds { stage: Stage, position: usize, mhz: Mhz, rank: Rank, min: Mhz, max: Mhz, place: Place },
    /// Power limits of a GPU that takes none.
    #[error("{model} of rank {rank} takes no power limit")]
    NoPowerLimit { rank: Rank, model: String },
    /// A power limit that the GPU does not take.
    #[error(
        "stage {stage} is to have a power limit of {limit}, but {model} of rank {rank} takes {} to \
         {}",
        .board.lowest, .board.highest
    )]
    PowerLimit { stage: Stage, limit: Milliwatts, rank: Rank, model: String, board: LimitRange },
    /// A power limit below the administrator's bound.
    #[error(
        "stage {stage} is to have a power limit of {limit}, but the administrator allows rank {rank} \
         no limit below {min} ({place})"
    )]
    PowerBound { stage: Stage, limit: Milliwatts, rank: Rank, min: Milliwatts, place: Place },
}

//! The order in which the ranks of a job run instructions, as they reported it.

use serde::{Deserialize, Serialize};

use pfo_vocabulary::{Rank, Stage, Unit};

/// What one rank ran in a step. The step is the same for every rank of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankOrder {
    /// The rank.
    pub rank: Rank,
    /// Its stage.
    pub stage: Stage,
    /// The instructions, first to last.
    pub ran: Vec<RanUnit>,
}

/// An instruction that a rank ran. The rank gives the times, `CLOCK_MONOTONIC` in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RanUnit {
    /// The instruction, its chunk and its microbatch.
    pub unit: Unit,
    /// When it began.
    pub began_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
}

//! One piece of a stage's work: which instruction, on which model chunk, for which microbatch.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::instruction::Instruction;
use crate::units::Microbatch;

/// A model chunk of a stage, counted from 0; always 0 where stages are not interleaved.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Chunk(pub u16);

impl Chunk {
    /// The most chunks that a stage may have.
    pub const MAX_CHUNKS: u16 = 64;

    /// Whether this is the only chunk of a stage that is not interleaved; plans leave it out.
    pub fn is_first(&self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One instruction of a stage's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unit {
    /// What to run.
    pub instruction: Instruction,
    /// For which microbatch.
    pub microbatch: Microbatch,
    /// On which chunk of the stage.
    #[serde(default, skip_serializing_if = "Chunk::is_first")]
    pub chunk: Chunk,
}

impl Unit {
    /// An instruction of a stage that is not interleaved.
    pub(crate) fn new(instruction: Instruction, microbatch: u32) -> Self {
        Self { instruction, microbatch: Microbatch(microbatch), chunk: Chunk(0) }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of microbatch {}", self.instruction, self.microbatch)?;
        if !self.chunk.is_first() {
            write!(f, " of chunk {}", self.chunk)?;
        }
        Ok(())
    }
}

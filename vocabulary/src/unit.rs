//! One piece of a stage's work: which instruction, on which model chunk, for which microbatch.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::instruction::Instruction;

/// A microbatch of a step, counted from 0.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Microbatch(pub u32);

impl fmt::Display for Microbatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A model chunk of a stage, counted from 0; always 0 without interleaving.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Chunk(pub u16);

impl Chunk {
    /// The most chunks that a stage may have.
    pub const MAX_CHUNKS: u16 = 64;

    /// Whether this is the first chunk, the only one without interleaving; plans leave it out.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One unit of work of a stage within a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Unit {
    /// The kind of work.
    pub instruction: Instruction,
    /// The model chunk of the stage.
    pub chunk: Chunk,
    /// The microbatch.
    pub microbatch: Microbatch,
}

impl Unit {
    /// A unit of a stage without interleaving.
    #[must_use]
    pub fn new(instruction: Instruction, microbatch: u32) -> Self {
        Self { instruction, chunk: Chunk(0), microbatch: Microbatch(microbatch) }
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

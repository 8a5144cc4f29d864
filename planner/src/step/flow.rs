//! What each instruction hands on, and what it waits for.

use pfo_vocabulary::{Chunk, Instruction, Stage};

/// What an instruction hands on, and another one of the same microbatch needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Product {
    /// Of a forward: needed by the next stage's, and by the last stage's backward.
    Activation,
    /// Of a backward: needed by the previous stage's.
    Gradient,
}

/// The data that flows between instructions of one microbatch.
pub(crate) trait Flow: Sized {
    /// What other instructions may wait for from this one.
    fn product(self) -> Option<Product>;

    /// What this instruction waits for beside its own stage's earlier work, and from which stage
    /// and model chunk, for the same microbatch. A chunk's input comes from the stage before; the
    /// first stage's from the last stage's chunk before.
    fn input(
        self,
        place: (Stage, Chunk),
        num_stages: u16,
        num_chunks: u16,
    ) -> Option<(Stage, Chunk, Product)>;
}

impl Flow for Instruction {
    fn product(self) -> Option<Product> {
        match self {
            Self::Forward => Some(Product::Activation),
            _ if self.is_backward() => Some(Product::Gradient),
            _ => None,
        }
    }

    fn input(
        self,
        (stage, chunk): (Stage, Chunk),
        num_stages: u16,
        num_chunks: u16,
    ) -> Option<(Stage, Chunk, Product)> {
        let last = Stage(num_stages - 1);
        match self {
            Self::Forward if stage.0 > 0 => Some((Stage(stage.0 - 1), chunk, Product::Activation)),
            Self::Forward if chunk.0 > 0 => Some((last, Chunk(chunk.0 - 1), Product::Activation)),
            Self::Recomputation => Some((stage, chunk, Product::Activation)),
            Self::BackwardWeight => Some((stage, chunk, Product::Gradient)),
            _ if !self.is_backward() => None,
            _ if stage < last => Some((Stage(stage.0 + 1), chunk, Product::Gradient)),
            _ if chunk.0 + 1 < num_chunks => {
                Some((Stage(0), Chunk(chunk.0 + 1), Product::Gradient))
            }
            _ => Some((stage, chunk, Product::Activation)),
        }
    }
}

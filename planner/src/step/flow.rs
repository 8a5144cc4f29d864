//! The data that flows between instructions: what each produces, and what it waits for by the rule.

use pfo_vocabulary::{Chunk, Instruction, Stage};

/// The data that an instruction produces for others of the same microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Product {
    /// Of a forward, for the forward of the next stage and the backward of the last stage.
    Activation,
    /// Of a backward, for the backward of the previous stage.
    Gradient,
}

/// The data that flows between instructions of one microbatch.
pub(crate) trait Flow: Sized {
    /// The data that this instruction produces.
    fn product(self) -> Option<Product>;

    /// What this instruction waits for besides the earlier work of its stage, and the stage and
    /// model chunk that produce it for the same microbatch. The input of a chunk comes from the
    /// stage before; that of the first stage from the previous chunk of the last stage.
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
            // Labels are loaded on the last stage, when the activation is there.
            Self::Load if stage < last => None,
            Self::Forward | Self::Load if stage.0 > 0 => {
                Some((Stage(stage.0 - 1), chunk, Product::Activation))
            }
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

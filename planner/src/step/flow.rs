//! The data that flows between instructions: what each produces, and what it waits for by the rule.

use pfo_vocabulary::{Chunk, Instruction, Stage};

use crate::step::placement::Placement;

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
    /// model chunk that produce it for the same microbatch. Activations come from the virtual stage
    /// before, gradients from the one after.
    fn input(
        self,
        place: (Stage, Chunk),
        placement: Placement,
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
        place: (Stage, Chunk),
        placement: Placement,
        num_stages: u16,
        num_chunks: u16,
    ) -> Option<(Stage, Chunk, Product)> {
        let (stage, chunk) = place;
        let of = |product| move |(stage, chunk)| (stage, chunk, product);
        match self {
            Self::Forward => placement.before(place, num_stages).map(of(Product::Activation)),
            // Labels are loaded on the last stage, when the activation is there. A V ends on the
            // first, which needs none for its load.
            Self::Load if placement == Placement::Loop && stage.0 + 1 == num_stages => {
                placement.before(place, num_stages).map(of(Product::Activation))
            }
            Self::Recomputation => Some((stage, chunk, Product::Activation)),
            Self::BackwardWeight => Some((stage, chunk, Product::Gradient)),
            _ if !self.is_backward() => None,
            _ => placement
                .after(place, num_stages, num_chunks)
                .map(of(Product::Gradient))
                .or(Some((stage, chunk, Product::Activation))),
        }
    }
}

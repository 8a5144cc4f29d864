//! The kinds of work that a stage does in a step, and what each of them waits for.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserializer, Error as _, Visitor};
use serde::{Deserialize, Serialize};

use crate::error::{PlanError, excerpt};
use crate::unit::Chunk;
use crate::units::Stage;

/// One kind of pipeline work. The names are those of profiles, plans and the shim's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Instruction {
    /// Forward pass of a microbatch.
    Forward,
    /// Backward pass; recomputes nothing.
    Backward,
    /// Backward pass that recomputes its forward inside.
    ForwardBackward,
    /// Forward repeated ahead of its backward, while the gradient is still travelling.
    Recomputation,
    /// The half of a backward that the previous stage waits for.
    BackwardInput,
    /// The half of a backward that nobody waits for.
    BackwardWeight,
    /// Loading a microbatch.
    Load,
    /// Point-to-point transfer between neighbouring stages.
    P2p,
    /// Collective communication.
    Collective,
    /// The optimizer's step.
    OptimizerStep,
    /// Anything else.
    Other,
}

impl Instruction {
    /// Every instruction, in the order of their discriminants.
    pub const ALL: [Self; 11] = [
        Self::Forward,
        Self::Backward,
        Self::ForwardBackward,
        Self::Recomputation,
        Self::BackwardInput,
        Self::BackwardWeight,
        Self::Load,
        Self::P2p,
        Self::Collective,
        Self::OptimizerStep,
        Self::Other,
    ];

    /// The name used in profiles and plans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::ForwardBackward => "forward_backward",
            Self::Recomputation => "recomputation",
            Self::BackwardInput => "backward_input",
            Self::BackwardWeight => "backward_weight",
            Self::Load => "load",
            Self::P2p => "p2p",
            Self::Collective => "collective",
            Self::OptimizerStep => "optimizer_step",
            Self::Other => "other",
        }
    }

    /// What other instructions may wait for from this one.
    pub(crate) fn product(self) -> Option<Product> {
        match self {
            Self::Forward => Some(Product::Activation),
            _ if self.is_backward() => Some(Product::Gradient),
            _ => None,
        }
    }

    /// What this instruction waits for beside its own stage's earlier work, and from which stage
    /// and model chunk, for the same microbatch. A chunk's input comes from the stage before; the
    /// first stage's from the last stage's chunk before.
    pub(crate) fn input(
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

    /// Whether this instruction's time does not depend on the clock.
    pub fn is_fixed(self) -> bool {
        matches!(self, Self::Load | Self::P2p | Self::Collective | Self::OptimizerStep)
    }

    /// Whether this instruction produces the gradient that the previous stage waits for.
    pub fn is_backward(self) -> bool {
        matches!(self, Self::Backward | Self::ForwardBackward | Self::BackwardInput)
    }
}

/// What an instruction hands on, and another one of the same microbatch needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Product {
    /// Of a forward: needed by the next stage's, and by the last stage's backward.
    Activation,
    /// Of a backward: needed by the previous stage's.
    Gradient,
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Instruction {
    type Err = PlanError;

    fn from_str(name: &str) -> Result<Self, PlanError> {
        Self::ALL
            .into_iter()
            .find(|instruction| instruction.name() == name)
            .ok_or_else(|| PlanError::UnknownInstruction(excerpt(name)))
    }
}

// By hand, because the derived one repeats an unknown name in full, however long a peer made it.
impl<'de> Deserialize<'de> for Instruction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Instruction;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of an instruction")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Instruction, E> {
                name.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Name).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back_as_the_same_instruction() {
        for instruction in Instruction::ALL {
            assert_eq!(instruction.name().parse::<Instruction>().unwrap(), instruction);
            let json = serde_json::to_string(&instruction).unwrap();
            assert_eq!(json, format!("\"{instruction}\""));
            assert_eq!(serde_json::from_str::<Instruction>(&json).unwrap(), instruction);
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_names_that_exist() {
        let message = "sideways".parse::<Instruction>().unwrap_err().to_string();
        assert!(message.contains("sideways") && message.contains("forward_backward"), "{message}");
    }

    #[test]
    fn a_very_long_name_is_not_repeated_in_full() {
        let name = "x".repeat(100_000);
        assert!(name.parse::<Instruction>().unwrap_err().to_string().len() < 400);
    }
}

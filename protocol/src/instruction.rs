//! The kinds of pipeline work, numbered for the wire and named as in profiles and plans.

use serde::{Deserialize, Serialize};

/// The kind of one unit of pipeline work. The order is the number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u32)]
#[non_exhaustive]
pub enum Instruction {
    /// Forward pass of a microbatch.
    Forward,
    /// Backward pass of a microbatch (input and weight gradients).
    Backward,
    /// Backward pass that first recomputes its forward.
    ForwardBackward,
    /// Forward pass run again, ahead of its backward.
    Recomputation,
    /// Input gradients only (zero-bubble schedules).
    BackwardInput,
    /// Weight gradients only (zero-bubble schedules).
    BackwardWeight,
    /// Loading of a microbatch.
    Load,
    /// A transfer to or from a neighbour stage.
    P2p,
    /// A collective, such as the gradients' reduction.
    Collective,
    /// The optimizer's step.
    OptimizerStep,
    /// Anything else worth a clock of its own.
    Other,
}

impl Instruction {
    /// Every kind, in the order of the wire.
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

    /// The name that profiles and plans use.
    #[must_use]
    pub const fn name(self) -> &'static str {
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

    /// The kind with this name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|instruction| instruction.name() == name)
    }

    /// The kind with this number on the wire, if there is one.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }
}

impl std::fmt::Display for Instruction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_lead_back_to_their_instruction() {
        for (number, instruction) in Instruction::ALL.into_iter().enumerate() {
            assert_eq!(instruction as usize, number);
            assert_eq!(Instruction::from_number(number as u32), Some(instruction));
            assert_eq!(Instruction::from_name(instruction.name()), Some(instruction));
        }
        assert_eq!(Instruction::from_number(11), None);
        assert_eq!(Instruction::from_name("Forward"), None);
    }
}

//! The kinds of pipeline work: numbered on the wire, named in profiles and plans.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserializer, Error as _, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// One kind of pipeline work. The order is the number on the wire and in the C API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
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
    /// The half of a backward that no other stage waits for.
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

/// A name that no instruction has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown instruction \"{0}\" (known: {names})",
    names = Instruction::ALL.map(Instruction::name).join(", ")
)]
pub struct UnknownInstruction(String);

impl Instruction {
    /// Every instruction, in the order of their numbers.
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

    /// The name used in profiles, plans and the shim's API.
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

    /// The instruction with this number on the wire, if there is one.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Whether this instruction's time does not depend on the clock.
    #[must_use]
    pub const fn is_fixed(self) -> bool {
        matches!(self, Self::Load | Self::P2p | Self::Collective | Self::OptimizerStep)
    }

    /// Whether this instruction produces the gradient that the previous stage waits for.
    #[must_use]
    pub const fn is_backward(self) -> bool {
        matches!(self, Self::Backward | Self::ForwardBackward | Self::BackwardInput)
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Instruction {
    type Err = UnknownInstruction;

    fn from_str(name: &str) -> Result<Self, UnknownInstruction> {
        let known = Self::ALL.into_iter().find(|instruction| instruction.name() == name);
        known.ok_or_else(|| UnknownInstruction(excerpt(name)))
    }
}

/// The beginning of a text that may be long and may hold anything, fit for one line.
fn excerpt(text: &str) -> String {
    const LONGEST: usize = 48;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", text[..end].escape_debug()),
        None => text.escape_debug().to_string(),
    }
}

// Files have names, frames have numbers.
impl Serialize for Instruction {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(self.name())
        } else {
            serializer.serialize_u32(*self as u32)
        }
    }
}

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
        if deserializer.is_human_readable() {
            return deserializer.deserialize_str(Name);
        }
        let number = u32::deserialize(deserializer)?;
        Self::from_number(number)
            .ok_or_else(|| D::Error::custom(format!("no instruction has number {number}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_and_number_leads_back_to_its_instruction() {
        for (number, instruction) in (0..).zip(Instruction::ALL) {
            assert_eq!(instruction as u32, number);
            assert_eq!(Instruction::from_number(number), Some(instruction));
            assert_eq!(instruction.name().parse(), Ok(instruction));
            let json = serde_json::to_string(&instruction).unwrap();
            assert_eq!(json, format!("\"{instruction}\""));
            assert_eq!(serde_json::from_str::<Instruction>(&json).unwrap(), instruction);
        }
        assert_eq!(Instruction::from_number(11), None);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_names_that_exist() {
        let message = "Forward".parse::<Instruction>().unwrap_err().to_string();
        assert!(message.contains("Forward") && message.contains("forward_backward"), "{message}");
    }

    #[test]
    fn a_very_long_name_is_not_repeated_in_full() {
        let name = "x".repeat(100_000);
        assert!(name.parse::<Instruction>().unwrap_err().to_string().len() < 400);
    }
}

//! A call of the training loop, as a value.

use pfo_protocol::Instruction;

/// A call of the training loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`Session::step_begin`](crate::Session::step_begin)
    StepBegin,
    /// [`Session::step_end`](crate::Session::step_end)
    StepEnd,
    /// [`Session::instruction_begin_in_chunk`](crate::Session::instruction_begin_in_chunk)
    InstructionBegin {
        /// The kind of work.
        instruction: Instruction,
        /// The model chunk of the stage, 0 without interleaving.
        chunk: u16,
        /// The microbatch; else the one after the last of this instruction and chunk in this step.
        microbatch: Option<u32>,
    },
    /// [`Session::instruction_end`](crate::Session::instruction_end)
    InstructionEnd,
}

//! Everything that can be wrong with what the planner is given.
//!
//! A message names the value, the place and, where it is not obvious, what to do about it.

use crate::instruction::Instruction;
use crate::schedule::Schedule;

/// Why a profile, a plan, a frontier file or a deadline was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// An instruction name that does not exist.
    #[error("unknown instruction \"{0}\" (known: {names})", names = Instruction::ALL.map(Instruction::name).join(", "))]
    UnknownInstruction(String),

    /// A schedule name that does not exist.
    #[error("unknown schedule \"{0}\" (known: {names})", names = Schedule::ALL.map(Schedule::name).join(", "))]
    UnknownSchedule(String),

    /// A plan of more bytes than any real one has.
    #[error("the plan is {size} bytes long; at most {limit} are read")]
    PlanTooLarge {
        /// Bytes given.
        size: usize,
        /// Bytes read at most.
        limit: usize,
    },

    /// A plan that is not JSON, or whose fields are missing, unknown or of another type.
    #[error("not a plan: {0}")]
    PlanSyntax(String),

    /// A plan of another format or version.
    #[error("plan format \"{found}\" is not supported; this version reads \"{expected}\"")]
    PlanFormat {
        /// What the file says.
        found: String,
        /// What is read.
        expected: &'static str,
    },

    /// A plan whose parts contradict each other.
    #[error("plan, {place}: {problem}")]
    PlanContent {
        /// Where, such as `stage 3, instruction 17`.
        place: String,
        /// What is wrong there.
        problem: String,
    },
}

/// The start of a text that may come from anybody, short enough for a message.
pub(crate) fn excerpt(text: &str) -> String {
    const LONGEST: usize = 48;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", text[..end].escape_debug()),
        None => text.escape_debug().to_string(),
    }
}

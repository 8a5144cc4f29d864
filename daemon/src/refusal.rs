//! The refusal that no rule decides.

use std::fmt::Display;

use pfo_protocol::{Refusal, RefusalCode};

/// A refusal for a failure of the operating system.
pub(crate) fn internal(error: &impl Display) -> Refusal {
    Refusal::new(RefusalCode::Internal, error.to_string(), "")
}

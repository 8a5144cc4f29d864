//! Refusals that any part of the agent may have to give.

use std::fmt::Display;

use pfo_protocol::{Refusal, RefusalCode};

/// Something failed that should have worked.
pub(crate) fn internal(error: &impl Display) -> Refusal {
    Refusal::new(
        RefusalCode::Internal,
        format!("the agent failed: {error}"),
        "`journalctl -u pfo-agent` may say more",
    )
}

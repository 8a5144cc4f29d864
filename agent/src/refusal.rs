//! Refusals that any part of the agent may have to give.

use std::fmt::Display;
use std::io;

use pfo_protocol::{Refusal, RefusalCode};
use pfo_store::StoreError;

/// Something failed that should have worked.
pub(crate) fn internal(error: &impl Display) -> Refusal {
    Refusal::new(
        RefusalCode::Internal,
        format!("the agent failed: {error}"),
        "`journalctl -u pfo-agent` may say more",
    )
}

/// The store of the fleet has not done what somebody asked for: `what` says what is not done.
pub(crate) fn of_store(what: &str, error: &StoreError) -> Refusal {
    let code = match error {
        StoreError::Away(_) => RefusalCode::ShuttingDown,
        _ => RefusalCode::LimitReached,
    };
    let remedy = "`pfoctl fleet check` says what is wrong with the store";
    Refusal::new(code, format!("{what}: {error}"), remedy)
}

/// Whether the same may be granted later, unchanged.
pub(crate) fn is_temporary(code: RefusalCode) -> bool {
    use RefusalCode::{DriverUnavailable, LimitReached, ShuttingDown, UnknownJob};
    matches!(code, LimitReached | UnknownJob | ShuttingDown | DriverUnavailable)
}

/// The node has no store of a fleet.
pub(crate) fn in_no_fleet() -> Refusal {
    Refusal::new(
        RefusalCode::LimitReached,
        "this node is in no fleet",
        "give the endpoints of etcd in [fleet] of agent.toml, and restart pfo-agent",
    )
}

/// A file below the state directory could not be written; `what` names its content.
pub(crate) fn not_written(what: &str, error: &io::Error) -> Refusal {
    Refusal::new(
        RefusalCode::Internal,
        format!("cannot write {what}: {error}"),
        "see [paths] in agent.toml",
    )
}

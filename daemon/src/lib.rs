//! The root daemon of pfo: it leases GPUs to the ranks of unprivileged jobs, and sets the clock of
//! each of their instructions through the keeper. Analysis belongs to the agent.
//!
//! An event on its way from the socket to the driver passes through `rank::reading`,
//! `rank::following`, `rank::cursor`, `rank::setting` and the keeper's clocks.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod cli;
mod daemon;
mod front;
#[cfg(feature = "fuzzing")]
#[path = "../../fuzz/inside/pfod.rs"]
pub mod fuzzing;
mod gpu;
mod host;
mod job;
mod lease;
mod measure;
mod node;
mod rank;
mod refusal;
mod requests;
mod revocation;
mod session;

pub use cli::{Arguments, ConfigSource};
pub use daemon::{DaemonError, restore_only, run};
pub use host::journal::MESSAGE_IDS;
pub use pfo_policy::Config;
pub use requests::resolved;

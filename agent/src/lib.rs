//! The agent of pfo: an ordinary system user that measures jobs through `pfod`, keeps their
//! profiles, watches them, and answers stragglers.
//!
//! It holds no GPU and no privilege. What it changes it asks of `pfod`, in the name of the user who
//! asked it.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod authority;
mod bounded_file;
mod budget;
mod calibration;
mod cli;
mod config;
mod experiments;
mod first_plan;
mod fleet;
mod front;
#[cfg(feature = "fuzzing")]
#[path = "../../fuzz/inside/pfo_agent.rs"]
pub mod fuzzing;
mod guard;
mod job;
mod journal;
mod ledger;
mod life;
mod metrics;
mod p2p;
mod pfod;
mod profile;
mod record;
mod refusal;
mod settings;
mod steer;
mod straggler;
mod sweep;
mod tune;
mod watch;

pub use cli::{Arguments, ConfigSource};
pub use config::Config;
pub use journal::MESSAGE_IDS;
pub use life::{AgentError, run};
pub use settings::check_names;

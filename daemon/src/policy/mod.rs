//! The administrator's policy: who may do what, and who may lease which GPU on which terms.

mod action;
mod authority;
mod config;
mod permit;
mod rule;
mod rules;
mod settings;
mod terms;

pub(crate) use action::{Action, needs};
pub(crate) use authority::{Authority, Caller, Claim};
pub use config::{Clocks, Config};
pub(crate) use permit::Permit;
pub use rules::Place;
pub(crate) use settings::Settings;
pub use terms::Terms;

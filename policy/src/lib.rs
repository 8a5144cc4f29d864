//! The administrator's policy: the configuration of `pfod`, who may do what, and who may lease which
//! GPU on which terms. It decides; it opens no socket and calls no driver.
//!
//! What a request requires is a total function of the request, [`needs`]. [`Authority::permit`]
//! decides whether its caller may, and nothing else makes a [`Permit`], without which no handler of
//! a request runs.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod action;
mod authority;
mod config;
#[cfg(test)]
mod example_requests;
mod permit;
mod rule;
mod rules;
mod settings;
mod terms;

pub use action::{Action, needs};
pub use authority::{Authority, Caller, Claim, SocketGroups};
pub use config::{Clocks, Config, ForeignClock, Mode};
pub use permit::Permit;
pub use rules::Place;
pub use settings::Settings;
pub use terms::Terms;

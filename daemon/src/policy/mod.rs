//! The administrator's policy: who may do what, and who may lease which GPU on which terms.

mod action;
mod authority;
mod config;
mod permit;
mod rule;
mod rules;
mod settings;
mod terms;

#[cfg(test)]
pub(crate) use action::tests::every_request;
pub(crate) use action::{Action, needs};
pub(crate) use authority::{Authority, Caller, Claim};
pub(crate) use config::Clocks;
pub use config::Config;
pub(crate) use permit::Permit;
#[cfg(test)]
pub(crate) use permit::example_permit;
pub(crate) use rules::Place;
pub(crate) use settings::Settings;
pub(crate) use terms::Terms;

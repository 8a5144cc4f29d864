//! This node's part in jobs that have ranks on other nodes: the agents of all of them agree, over a
//! store that they share, on what a job runs and at which step it changes.
//!
//! Nothing is decided here: `pfo-fleet` says what is to be done, and `pfod` whether it may be.

mod check;
mod config;
mod local;
mod measured;
mod part;
mod parts;
mod slices;
mod status;
mod swap;
mod trial;

pub(crate) use self::check::check;
pub(crate) use self::config::FleetConfig;
pub(crate) use self::parts::{Fleet, fleet_of};
pub(crate) use self::trial::{Members, WholeHold};

//! This node's part in jobs that have ranks on other nodes: the agents of all of them agree, over a
//! store that they share, on what a job runs and at which step it changes.
//!
//! Nothing is decided here: `pfo-fleet` says what is to be done, and `pfod` whether it may be.

mod carried;
mod check;
mod comparison;
mod config;
mod local;
mod locks;
mod measured;
mod noted;
mod own_profile;
mod part;
mod parts;
mod saved;
mod slices;
mod slow;
mod stands;
mod status;
mod swap;
mod trial;
mod unchanged;

pub(crate) use self::check::check;
pub(crate) use self::comparison::{ForLedger, WholeComparison, WholeTurn};
pub(crate) use self::config::FleetConfig;
pub(crate) use self::local::member_of;
pub(crate) use self::noted::Noted;
pub(crate) use self::parts::{Fleet, fleet_of, spans_nodes};
pub(crate) use self::slices::run_of;
pub(crate) use self::slow::AllSlow;
pub(crate) use self::stands::{Change, Stands};
pub(crate) use self::status::label_of;
pub(crate) use self::trial::{Members, WholeHold};
pub(crate) use self::unchanged::Unchanged;

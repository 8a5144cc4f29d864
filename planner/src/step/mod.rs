//! The operations of a step, and which wait for which.
//!
//! [`order`] says what each stage runs. What an instruction waits for comes from [`dependencies`],
//! or by the rule from [`flow`] and [`placement`]. [`precedence`] makes a graph of both, and [`network`] the flat
//! arrays that planning walks.

pub(crate) mod delays;
pub(crate) mod dependencies;
mod flow;
pub(crate) mod network;
pub(crate) mod operation;
pub(crate) mod order;
mod order_file;
pub(crate) mod overlap;
mod peer_orders;
pub(crate) mod placement;
pub(crate) mod precedence;
pub(crate) mod recorded;

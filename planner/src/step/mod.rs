//! What a step is made of, and what in it waits for what.
//!
//! [`order`]: what each stage runs. [`dependencies`]: what was said about who waits for whom, and
//! [`flow`]: what follows from the instructions where nothing was said. [`precedence`] makes a
//! graph of both, and [`network`] the flat arrays that planning walks.

pub(crate) mod delays;
pub(crate) mod dependencies;
mod flow;
pub(crate) mod network;
pub(crate) mod operation;
pub(crate) mod order;
mod order_file;
mod precedence;

//! Measuring: the records of ranks, the readings of their GPUs' counters, and trials.
//!
//! The thread of a rank puts records into its tap and does nothing else for measuring. A
//! [`Meter`] for each rank takes them out, reads the energy counter as often as its rhythm
//! requires, and hands both to its listeners: the windows of a trial, and the taps of the agent.

mod curve;
mod meter;
mod meters;
mod refresh;
mod rhythm;
mod step_energies;
mod trial;

pub(crate) use self::meter::{Listener, Meter};
pub(crate) use self::meters::Meters;
pub(crate) use self::trial::run as run_trial;

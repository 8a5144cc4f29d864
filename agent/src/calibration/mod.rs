//! How the GPUs of a model change their clocks under a version of the driver, and what their energy
//! counters count: what jobs show of it, and how `pfod` learns it.

mod change;
mod counter;
mod measure;
pub(crate) mod memory;
mod store;
mod tell;
mod transfers;

pub(crate) use change::Changes;
pub(crate) use measure::Measuring;
pub(crate) use store::{Calibrations, Of};
pub(crate) use tell::Told;

//! Measuring a running job: a connection that holds it, and what its trials say.
//!
//! The job is at default clocks again whenever the connection ends, however it ends. Nothing here
//! has to clean up.

mod held;
mod interrupt;
mod interval;
mod stages_here;
mod trouble;
mod window;

pub(crate) use held::Held;
pub(crate) use interrupt::Interrupt;
pub(crate) use interval::Interval;
pub(crate) use stages_here::require_every_stage;
pub(crate) use trouble::{RESTART, Trouble};
pub(crate) use window::Window;

//! Measuring a running job: a connection that holds it, and what its trials say.
//!
//! The agent measures windows, which are the time and energy of whole steps, and records instructions, on
//! all nodes of a job. The job returns to default clocks whenever the connection ends, however it ends. Nothing here
//! has to clean up.

mod error;
mod held;
mod interrupt;
mod measuring;
mod stages_here;
mod trouble;
pub(crate) mod waiting;

pub(crate) use self::error::TrialError;
pub(crate) use self::held::Held;
pub(crate) use self::interrupt::Interrupt;
pub(crate) use self::measuring::Measuring;
pub(crate) use self::stages_here::require_every_stage;
pub(crate) use self::trouble::{RESTART, Trouble};
pub(crate) use pfo_experiment::{NoEnergy, Window};

//! Reading energy counters, for the taps of the agent.
//!
//! The thread of a rank puts records into its tap and does nothing else for measuring. A
//! [`Meter`] for each rank takes them out, reads the energy counter as often as its rhythm
//! requires, and hands both to the taps that listen.

mod counter;
mod judge;
mod meter;
mod meters;
mod outbox;
mod refresh;
mod rhythm;

pub(crate) use self::counter::{CounterReader, Verdict};
pub(crate) use self::meter::Meter;
pub(crate) use self::meters::Meters;
pub(crate) use self::outbox::Outbox;

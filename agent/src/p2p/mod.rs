//! P2P-blocking power: what trials show of it, and what is kept of that.

mod requests;
mod samples;
mod store;

pub(crate) use requests::{keep, set};
pub(crate) use samples::Samples;
pub(crate) use store::P2pStore;
#[cfg(feature = "fuzzing")]
pub(crate) use store::parse as parse_powers;

//! P2P-blocking power: what trials show of it, and what is kept of that.

pub mod requests;
pub mod samples;
pub mod store;

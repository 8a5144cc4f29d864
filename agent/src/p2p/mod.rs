//! P2P-blocking power: what trials show of it, and what is kept of that.

mod samples;
mod store;

//! Fuzz targets for everything that is read from somebody else: each is a function of bytes that
//! must not panic, whatever they are.
//!
//! `make fuzz` runs them under libFuzzer. The tests run them on mutated seeds, and those of whole
//! daemons on random bytes, which takes no longer than other tests.

pub mod agent;
pub mod agent_config;
pub mod config;
pub mod daemon;
pub mod events;
pub mod frame;
pub mod frontier;
pub mod hello;
mod input;
mod kit;
pub mod ledger;
pub mod lowtime_plan;
pub mod message;
pub mod order;
pub mod plan;
pub mod powers;
pub mod seeds;
pub mod state;
pub mod sweep;
pub mod tap;
pub mod temporary;
pub mod terms;

//! Fuzz targets for everything that is read from somebody else: each is a function of bytes that
//! must not panic, whatever they are.
//!
//! `make fuzz` runs them under libFuzzer. The tests run them on mutated seeds, which takes no more
//! than any test does.

pub mod config;
pub mod events;
pub mod frame;
pub mod frontier;
pub mod hello;
pub mod ledger;
pub mod lowtime_plan;
pub mod plan;
pub mod seeds;
pub mod sweep;

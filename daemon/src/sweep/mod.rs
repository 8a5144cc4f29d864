//! The instruction sweep: one trial after the other at falling clocks, kept on disk, until a profile can
//! be stored.
//!
//! What to measure next follows from what is on disk alone ([`record`]), so a sweep goes on after a pause
//! or a restart of the daemon as if there had been none.

pub mod attended;
pub mod enough;
pub mod estimate;
pub mod file;
pub mod ladder;
pub mod record;
pub mod requests;
pub mod rising;
pub mod runner;
pub mod shape;
pub mod sweeps;
pub mod swept;

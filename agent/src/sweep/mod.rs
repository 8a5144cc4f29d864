//! The instruction sweep: one trial after the other at falling clocks, kept on disk, until a
//! profile can be stored.
//!
//! What to measure next follows from what is on disk alone ([`record`]), so a sweep continues after
//! a pause or a restart of either daemon as if there had been none.

mod attended;
mod enough;
mod estimate;
mod file;
mod ladder;
mod obstacle;
mod record;
mod replicas;
mod requests;
mod rising;
mod runner;
mod shape;
mod shared;
mod sweeps;
mod swept;

pub(crate) use file::SweepFiles;
pub(crate) use requests::{Ordered, attend, control, list, read, start};
pub(crate) use shape::allowed_clocks;
pub(crate) use shared::{fetch_measured, share_sweeps};
pub(crate) use sweeps::{Means, Sweeps};
#[cfg(test)]
pub(crate) use swept::tests;
#[cfg(feature = "fuzzing")]
pub(crate) use {
    file::{content as sweep_content, parse as parse_sweep},
    ladder::ladder,
    record::SweepRecord,
    shape::JobShape,
};

//! Keeps the slowdown that was allowed: while a job runs a plan, it is compared with default clocks
//! now and then, and a plan that no longer keeps its limit is given up.

mod comparison;
mod file;
mod guards;
mod runner;
mod turns;

pub(crate) use file::GuardFile;
pub(crate) use guards::{GuardMeans, Guards};

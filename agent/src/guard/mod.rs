//! Keeps the slowdown that was allowed: while a job runs a plan, it is compared with default clocks
//! now and then. A plan that no longer keeps its limit is replaced once by one that is made for what
//! is measured now, and given up if that does not keep it either.

mod comparison;
mod guards;
mod runner;
#[cfg(test)]
mod scenarios;
mod turns;

pub(crate) use guards::{Guards, status_of};

//! Keeps the jobs of a node below power budgets. Every few seconds three things happen: what runs and
//! what it draws is gathered, which job runs which point is decided, and that is carried out by
//! ordinary swaps. The decision is a pure function between two edges, so that another one, such as that
//! of a fleet, may take its place.
//!
//! Nothing is asked of `pfod` and nothing wakes while no budget is set.

mod book;
mod budgets;
mod caps;
mod carry;
mod config;
mod decision;
mod fleet;
mod followed;
mod gather;
mod job_curve;
mod known;
mod level;
mod partitions;
mod report;
mod runner;
mod trouble;
mod witness;

pub(crate) use book::BudgetFiles;
pub(crate) use budgets::{BudgetMeans, Budgets};
pub(crate) use config::BudgetConfig;

//! What a job runs while a straggler makes it wait: a plan for what is measured now, or the plan of
//! its frontier that takes the straggler's time, and afterwards what it ran before.

mod answer;
mod files;
mod frontier;
mod jobs;
mod pace;
mod points;
mod replan;
mod shared;
mod table;

use std::collections::BTreeMap;

use pfo_protocol::Stage;

pub(crate) use files::JobFiles;
pub(crate) use frontier::JobFrontier;
pub(crate) use jobs::{FrontierJob, Stragglers};
pub(crate) use shared::share_frontiers;
pub(crate) use table::Labelled;

/// The stages whose instructions take longer than was profiled, each with the share by which they
/// do. It is negative for stages that are answered because they take less.
pub(crate) type SlowStages = BTreeMap<Stage, f64>;

#[cfg(test)]
pub(crate) use frontier::tests;

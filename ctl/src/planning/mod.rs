//! What commands that plan have in common: files in and out, profiles and how they are treated,
//! pipelines, and what plans cost. No daemon is asked here.

pub(crate) mod directory;
pub(crate) mod file;
pub(crate) mod format;
pub(crate) mod frontier_file;
pub(crate) mod job_order;
pub(crate) mod measured;
pub(crate) mod pipeline;
pub(crate) mod plan_file;
pub(crate) mod policy_options;
pub(crate) mod replayed;
pub(crate) mod rest;
pub(crate) mod unfinished;
pub(crate) mod written;

pub(crate) use pfo_experiment::clock_table;

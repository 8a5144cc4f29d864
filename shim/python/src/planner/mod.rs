//! The planner as Python classes. Files, tables and pictures are in `pfo_gpu.planner`.

mod bound;
pub(crate) mod error;
mod frontier;
mod interruptible;
mod pipeline;
mod plan;
mod power;
mod profile;

pub(crate) use bound::Bound;
pub(crate) use frontier::Frontier;
pub(crate) use pipeline::Pipeline;
pub(crate) use plan::Plan;
pub(crate) use profile::Profile;

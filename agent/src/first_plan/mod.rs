//! Plans that are kept for a job's name: the job begins with one at its first step, on every rank.
//!
//! Nothing here is asked while a job trains. `pfod` has a first plan as the plan of a job without
//! ranks, so it needs no agent when the job comes; the agent keeps it over boots, and sees to it that
//! `pfod` has it whenever the job is not there.

mod begin;
mod file;
mod kept;
mod tend;
mod turns;
mod whole;

pub(crate) use self::file::FirstPlanFiles;
pub(crate) use self::kept::{FirstPlanMeans, FirstPlans};

//! The connections of users and administrators: what they ask, whether they may, and who serves it.

mod budget;
mod first_plan;
mod holds;
mod serve;
mod status;
mod talk;

pub(crate) use holds::Holds;
pub(crate) use serve::{Services, away};
pub(crate) use status::status_of as agent_status;
pub(crate) use talk::talk;

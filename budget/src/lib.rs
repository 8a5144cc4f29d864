#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod control;
mod curve;
mod decision;
mod error;
mod exchange;
mod factor;
mod job;
mod price;
mod reserve;
mod series;
mod uniform;

pub use control::{Controller, Now, Orders, Seen};
pub use curve::{Curve, Point, Steering};
pub use decision::{Decision, Reason, Room, Share, Shortfall, decide};
pub use error::BudgetError;
pub use job::Job;
pub use series::{Ramp, Ramped, Series, watts};
pub use uniform::{Clock, Paces, Prior, uniform_points};

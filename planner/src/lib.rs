//! From a measured profile to the time-energy frontier and its plans.
//!
//! Pure: no I/O but the parsing and writing of its own file formats, from and to bytes.

mod error;
mod instruction;
mod plan;
mod schedule;
mod units;

pub use error::PlanError;
pub use instruction::Instruction;
pub use plan::{Plan, PlannedInstruction, Prediction, StagePlan};
pub use schedule::Schedule;
pub use units::{Mhz, Microbatch, Stage, Watts};

//! The units, numbers and names that every part of pfo shares.
//!
//! Types only, and the checks that make a value one of its type: no logic, no I/O. What crosses a
//! function boundary beside its like, a rank beside a stage beside a clock, has a type here.
#![forbid(unsafe_code)]

mod driver_use;
mod id;
mod instruction;
mod moved_fields;
mod name;
mod throttled;
mod unit;
mod units;

pub use driver_use::DriverUse;
pub use id::{DpRank, Gid, Pid, Rank, SessionId, Stage, TpRank, Uid};
pub use instruction::{Instruction, UnknownInstruction};
pub use moved_fields::has_moved_fields;
pub use name::{GpuName, GpuUuid, JobName, NameError, PartitionName, PciBusId};
pub use throttled::ThrottledNs;
pub use unit::{Chunk, Microbatch, Unit};
pub use units::{Mhz, Milliwatts, Watts};

//! The keeper: the only code of pfo that sets clocks and power limits, and is responsible for
//! undoing them.
//!
//! What is about to be locked is on disk before the driver is asked; what was locked is undone
//! before its record is cleared. `README.md` is the auditor's guide.
#![deny(unsafe_code, clippy::arithmetic_side_effects)]

mod base_clock;
mod clocks;
mod device;
mod driver;
mod driver_error;
mod driver_use;
mod example;
mod gpu;
mod ledger;
mod power_limit;
mod published;
mod reading;
mod replace;
mod restore;
mod salvage;
mod setting;

pub use base_clock::BaseClock;
pub use clocks::{ClockError, Clocks};
pub use driver::{Driver, Gpu, LastUser, OnLost};
pub use driver_error::DriverError;
pub use driver_use::Asked;
pub use example::example_gpu;
pub use gpu::GpuFacts;
pub use ledger::{Entry, Ledger, LedgerError};
pub use nvml_wrapper::bitmasks::device::ThrottleReasons;
pub use power_limit::{LimitRange, OwedLimit};
pub use published::Published;
pub use reading::{Probe, Reading};
pub use restore::{RestoreError, reset, restore_entry};
pub use salvage::Damage;
pub use setting::{only_observe, only_observes};

//! Settings in turn on a running job, and a judge that says what is known and when to stop.
//!
//! [`tune`] is the experiment that finds a plan for a job and proves it there. It does everything to the
//! job through a [`Bench`], which a test can play. It reads no clock, opens no file and starts nothing:
//! whoever runs it decides where that happens. Its answers depend on those of the bench only, so that it
//! can be run again over answers that were kept, up to where an earlier run of it was interrupted.

mod bench;
pub mod clock_table;
mod contender;
mod cost;
mod energy;
mod error;
mod in_force;
mod interval;
mod judge;
mod known_power;
pub mod order;
mod quantity;
mod report;
mod sequence;
mod subject;
mod terms;
mod trouble;
mod tune;
mod usual;
mod window;

pub use bench::{Bench, BenchError, Phase, Progress};
pub use cost::Cost;
pub use energy::{energy_j, mean_w};
pub use error::TuneError;
pub use in_force::{Asked, Looks, SET_WITHIN, is_above_lock};
pub use interval::{Interval, students_reach};
pub use judge::{Compared, Verdict};
pub use known_power::{KnownPower, MeanPower, means_by_clock, power_of, source_in_words};
pub use report::{
    DefaultClocks, Origin, PlannedPower, PlannedWith, PowerOrigin, Report, Searched, Transfers,
    Tried, UsefulClocks,
};
pub use terms::{Knob, Raising, System, Terms, TuneOrder};
pub use tune::{Tuned, described, preflight, tune};
pub use usual::{Usual, median};
pub use window::{NoEnergy, Window};

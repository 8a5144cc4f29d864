//! The integration tests of `pfoctl`: one program, so that it is linked once.

#[macro_use]
mod ran;

mod clocks;
mod connection;
mod fake_daemon;
mod interrupted;
mod noise;
mod pfoctl;
mod pictures;
mod plan;
mod plan_files;
mod policy;
mod reload;
mod rest_of_a_step;
mod samples;
mod schedules;
mod status;
mod sweep;
mod tune;

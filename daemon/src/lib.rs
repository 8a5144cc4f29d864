//! The root daemon of pfo: it owns NVML, leases GPUs to the ranks of unprivileged jobs, and sets
//! the clock of each of their instructions.
//!
//! One event on its way from the socket to the driver passes through [`rank`], [`cursor`] and
//! [`clocks`].
#![deny(unsafe_code)]

pub mod accounts;
pub mod authorize;
pub mod base_clock;
pub mod boot;
pub mod cli;
pub mod clocks;
pub mod config;
pub mod connections;
pub mod cursor;
pub mod daemon;
pub mod descriptor_store;
pub mod deviation;
pub mod drift;
pub mod driver;
pub mod driver_watch;
pub mod explain;
pub mod fit;
pub mod flood;
pub mod gpu;
pub mod grant;
pub mod hold;
pub mod job;
pub mod job_file;
pub mod job_frontier;
pub mod job_record;
pub mod job_watch;
pub mod jobs;
pub mod journal;
pub mod late_driver;
pub mod lease;
pub mod lease_requests;
pub mod ledger;
pub mod listen;
pub mod log;
pub mod log_limit;
pub mod measure;
pub mod monotonic;
pub mod node;
pub mod notify;
pub mod own_times;
pub mod p2p;
pub mod pace;
pub mod peer;
pub mod policy;
pub mod profile_store;
pub mod progress;
pub mod rank;
pub mod rank_reading;
pub mod reading;
pub mod record;
pub mod reload;
pub mod replace;
pub mod requests;
pub mod restore;
pub mod resume;
pub mod revocations;
pub mod rule;
pub mod serve;
pub mod session;
pub mod settings;
pub mod slice;
pub mod slow_ranks;
pub mod stage_times;
pub mod status;
pub mod straggler;
pub mod swap;
pub mod sweep;
mod sys;
pub mod terms;
pub mod throttle_watch;
pub mod trial;
pub mod within;

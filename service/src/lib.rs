//! What `pfod` and `pfo-agent` share as services of a node: the sockets that systemd passes, the
//! identity of peers, the quota of each person, the journal, and files that survive a crash.
//!
//! Nothing here knows GPUs, jobs or plans.
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod accept;
mod accounts;
mod attempt;
mod boot;
mod boundary;
mod cgroup;
mod config;
mod connections;
mod example_process;
mod file_stem;
mod flood;
mod listen;
mod log;
mod log_limit;
mod monotonic;
mod notify;
mod passed_files;
mod peer;
mod people;
mod process;
mod replace;
mod runtime;
mod sys;
mod threads;
mod unix_time;
mod versioned;
mod within;

pub use accept::{Conversation, Received, accept, hung_up, refuse, send};
pub use accounts::{Accounts, Lookup, NodeAccounts, UnknownName};
pub use attempt::{Attempt, LIVED};
pub use boot::boot_id;
pub use boundary::{
    Panicked, Whose, blocking, catch, catch_in, lock, panic_in_tests, report_panics,
};
pub use config::{ConfigError, Position};
pub use connections::{Connections, Entered, Room};
#[doc(hidden)]
pub use example_process::Running;
pub use file_stem::{file_stem, named_by};
pub use flood::{Flood, ThreadClocks};
pub use listen::{ListenError, PassedDescriptor, bind, passed_descriptors, passed_listener};
pub use log::{Messages, begin_log};
pub use log_limit::report_left_out;
pub use monotonic::{computed_ns, now_ns};
pub use notify::{Service, feed_watchdog};
pub use passed_files::FileIdentity;
pub use peer::{Door, Peer, watch_process};
pub use people::{People, SUBORDINATE_UIDS, User};
pub use process::{Process, ProcessRecord, user_of};
pub use replace::{replace, replace_in_own_directory};
pub use runtime::serve;
pub use sys::{pidfd_open, register};
pub use threads::{allow_interruptions, interrupt_thread, scheduling, set_scheduling};
pub use unix_time::unix_s;
pub use versioned::{parse_of_boot, parse_versioned, read_versioned};
pub use within::Within;

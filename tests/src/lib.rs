//! The harness of the end-to-end tests: a simulated node with its own daemons, driver and sockets in a
//! temporary directory, and everybody who talks to it.
//!
//! Tests run side by side, so nothing in here may touch what another test or the machine owns.

mod ansible;
pub mod attack;
mod bindings;
mod booted_node;
mod cgroup;
mod client;
mod container;
pub mod control;
mod daemon;
mod debian;
mod etcd;
mod free;
mod ground;
pub mod identity;
mod installed;
mod link;
mod log_text;
mod machine;
mod memory_limit;
pub mod metrics_node;
mod node;
mod packaged_node;
mod pfoctl;
mod plan;
pub mod process;
pub mod programs;
mod ran;
mod rank;
mod relay;
mod service_manager;
mod skip;
mod slurm;
mod tmux;
mod trainer;
mod undisturbed;
pub mod wait;

pub use ansible::{AnsibleHost, changed};
pub use bindings::{Bindings, Reading};
pub use booted_node::{BootedJob, BootedNode, USERS};
pub use client::{Client, devices_beside, devices_in, hello, send_with};
pub use container::Container;
pub use daemon::{Daemon, Program};
pub use debian::{Debian, PROGRAMS};
pub use etcd::{EtcdCluster, EtcdSetup};
pub use free::{FOREIGN_MHZ, assert_free};
pub use ground::{GROUNDS, Ground};
pub use identity::Identity;
pub use link::Link;
pub use log_text::tail;
pub use machine::{Machine, MachineSetup, honest};
pub use memory_limit::{MemoryLimit, memory_max};
pub use node::{Node, Setup};
pub use packaged_node::{DEVICES, PackagedNode, UNIT_COUNT, UNITS, built_deb, built_rpm};
pub use plan::TestPlan;
pub use ran::{Ran, kept_plan};
pub use rank::Rank;
pub use relay::Relay;
pub use service_manager::ServiceManager;
pub use skip::say_skipped;
pub use slurm::Slurm;
pub use tmux::Tmux;
pub use trainer::{MICROBATCHES, STAGES, Training, profile_of, true_frontier, true_profile};
pub use undisturbed::{GOOD_JOB, Undisturbed};

//! The harness of the end-to-end tests: a simulated node with its own daemon, driver and sockets in a
//! temporary directory, and everybody who talks to it.
//!
//! Tests run side by side, so nothing in here may touch what another test or the machine owns.

pub mod bindings;
pub mod booted_node;
mod cgroup;
pub mod client;
pub mod container;
pub mod control;
pub mod daemon;
pub mod debian;
pub mod free;
pub mod identity;
pub mod installed;
pub mod log_text;
pub mod machine;
pub mod node;
pub mod packaged_node;
pub mod pfoctl;
pub mod plan;
pub mod process;
pub mod programs;
pub mod ran;
pub mod rank;
pub mod relay;
pub mod service_manager;
pub mod skip;
pub mod trainer;
pub mod undisturbed;
pub mod wait;

//! What the agent knows, for Prometheus: over HTTP on a Unix socket or a TCP address, and as a file for
//! the textfile collector of the node exporter.
//!
//! Nothing is measured for it, and nothing wakes up for it: who scrapes has the agent ask `pfod` for
//! its status, once a second at most.

mod config;
mod known;
mod page;
mod pages;
mod series;
mod server;
mod textfile;

pub(crate) use config::MetricsConfig;
pub(crate) use server::{bind_socket, serve};

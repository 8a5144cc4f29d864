//! The daemon in one line.

use pfo_protocol::DaemonStatus;

use super::quantity::span;
use crate::text::harmless;

/// Version, process, age, driver and sessions.
pub(crate) fn line(daemon: &DaemonStatus) -> String {
    let driver = match &daemon.driver {
        Some(version) => format!("driver {version}"),
        None => "no driver".to_owned(),
    };
    let sessions = match daemon.sessions {
        1 => "1 session".to_owned(),
        count => format!("{count} sessions"),
    };
    let line = format!(
        "pfod {} (pid {}), up {}, {driver}, {sessions}",
        daemon.version,
        daemon.pid,
        span(daemon.uptime_s),
    );
    format!("{}\n", harmless(&line))
}

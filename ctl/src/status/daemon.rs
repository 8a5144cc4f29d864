//! Each daemon in one line.

use pfo_protocol::{AgentStatus, DaemonStatus};

use super::quantity::span;
use crate::text::harmless;

/// Version, process, age, driver and sessions.
pub(crate) fn pfod_line(daemon: &DaemonStatus) -> String {
    let driver = match &daemon.driver {
        Some(version) => format!("driver {version}"),
        None => "no driver".to_owned(),
    };
    let sessions = match daemon.sessions {
        1 => "1 session".to_owned(),
        count => format!("{count} sessions"),
    };
    let observes = if daemon.only_observes { ", only observes" } else { "" };
    let line = format!(
        "pfod {} (pid {}), up {}, {driver}, {sessions}{observes}",
        daemon.version,
        daemon.pid,
        span(daemon.uptime_s),
    );
    format!("{}\n", harmless(&line))
}

/// Version, process, age and jobs.
pub(crate) fn agent_line(agent: &AgentStatus) -> String {
    let jobs = match agent.jobs.len() {
        1 => "1 job".to_owned(),
        count => format!("{count} jobs"),
    };
    let line = format!(
        "pfo-agent {} (pid {}), up {}, watches {jobs}",
        agent.version,
        agent.pid,
        span(agent.uptime_s),
    );
    format!("{}\n", harmless(&line))
}

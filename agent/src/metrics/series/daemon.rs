//! Series of pfod.

use std::fmt;

use pfo_protocol::DaemonStatus;

use super::{Known, Sink, Subject, count, flag, gauge, info};

pub(super) fn series(known: &Known, sink: &mut impl Sink) -> fmt::Result {
    let is_up = Subject {
        labels: &[],
        label_values: |_| Vec::new(),
        series: vec![gauge(
            "pfo_daemon_up",
            None,
            "1 if pfod answers pfo-agent, else 0; then there are only series of pfo-agent.",
            |known: &&Known| flag(known.node.is_some()),
        )],
    };
    sink.take(&is_up, &[known])?;
    let daemons: Vec<_> = known.node.iter().map(|node| &node.daemon).collect();
    let version = Subject {
        labels: &["version"],
        label_values: |daemon: &&DaemonStatus| vec![daemon.version.clone()],
        series: vec![info("pfo_daemon_info", "The version of pfod.")],
    };
    sink.take(&version, &daemons)?;
    sink.take(&daemon(), &daemons)
}

fn daemon<'a>() -> Subject<&'a DaemonStatus> {
    Subject {
        labels: &[],
        label_values: |_| Vec::new(),
        series: vec![
            gauge(
                "pfo_daemon_uptime_seconds",
                Some("seconds"),
                "Time since pfod started.",
                |daemon| Some(daemon.uptime_s),
            ),
            gauge(
                "pfo_daemon_driver_up",
                None,
                "1 if pfod has loaded the driver and finds nothing wrong with it, else 0.",
                |daemon| flag(daemon.driver.is_some() && daemon.driver_problem.is_none()),
            ),
            gauge("pfo_daemon_sessions", None, "Sessions that are open.", |daemon| {
                count(daemon.sessions)
            }),
            gauge(
                "pfo_daemon_unrestored_gpus",
                None,
                "GPUs whose clocks or power limits pfod has to restore and could not so far.",
                |daemon| count(daemon.unrestored.len()),
            ),
            gauge(
                "pfo_daemon_ledger_damaged",
                None,
                "1 if the ledger was damaged, until an administrator acknowledges that, else 0.",
                |daemon| flag(daemon.ledger_damage.is_some()),
            ),
            gauge(
                "pfo_daemon_drained",
                None,
                "1 if the node is drained, so that no GPU of it can be leased, else 0.",
                |daemon| flag(daemon.drained.is_some()),
            ),
            gauge(
                "pfo_daemon_only_observes",
                None,
                "1 if pfod sets nothing, so that plans are followed as if their clocks were set, else 0.",
                |daemon| flag(daemon.only_observes),
            ),
            gauge(
                "pfo_daemon_config_refused",
                None,
                "1 if pfod.toml has an error, so that what it said before is in force, else 0.",
                |daemon| flag(daemon.config.refused.is_some()),
            ),
            gauge(
                "pfo_daemon_config_outdated",
                None,
                "1 if pfod.toml was written after pfod read it, so that it is not in force, else 0.",
                |daemon| flag(daemon.config.outdated),
            ),
        ],
    }
}

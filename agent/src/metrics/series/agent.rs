//! Series of the agent itself.

use std::fmt;

use pfo_protocol::AgentStatus;

use super::{Known, Sink, Subject, count, counter, flag, gauge, info};

pub(super) fn series(known: &Known, sink: &mut impl Sink) -> fmt::Result {
    let version = Subject {
        labels: &["version"],
        label_values: |agent: &&AgentStatus| vec![agent.version.clone()],
        series: vec![info("pfo_agent_info", "The version of pfo-agent.")],
    };
    sink.take(&version, &[&known.agent])?;
    let agent = Subject {
        labels: &[],
        label_values: |_| Vec::new(),
        series: vec![
            gauge(
                "pfo_agent_uptime_seconds",
                Some("seconds"),
                "Time since pfo-agent started.",
                |known: &&Known| Some(known.agent.uptime_s),
            ),
            counter(
                "pfo_agent_refusals_total",
                None,
                "Requests that pfo-agent has refused since it started.",
                |known: &&Known| count(known.refusals),
            ),
            gauge(
                "pfo_agent_failing_duties",
                None,
                "Parts of the watch over jobs that fail; the journal names them.",
                |known: &&Known| count(known.failing_duties),
            ),
            gauge(
                "pfo_agent_ledger_entries",
                None,
                "Entries of the ledger of savings, of all users.",
                |known: &&Known| count(known.ledger_entries),
            ),
            gauge(
                "pfo_agent_store_connected",
                None,
                "1 if the store of the fleet answers, else 0; absent where the node is in no fleet.",
                |known: &&Known| flag(known.store?),
            ),
        ],
    };
    sink.take(&agent, &[known])
}

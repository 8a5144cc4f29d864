//! The sweep of the job of a fleet.

use std::time::Duration;

use pfo_protocol::{AgentRequest, AgentResponse, SweepStatus};
use pfo_tests::{Node, wait};

use super::cluster::JOB;

/// The sweep of the job, if a node has one.
pub(crate) fn swept(node: &Node) -> Option<SweepStatus> {
    let Ok(AgentResponse::Sweeps(sweeps)) = node.agent_control().ask_agent(AgentRequest::Sweeps)
    else {
        return None;
    };
    sweeps.into_iter().find(|sweep| sweep.job.as_str() == JOB)
}

pub(crate) fn until_swept_within(
    patience: Duration,
    node: &Node,
    what: &str,
    so: impl Fn(&SweepStatus) -> bool,
) -> SweepStatus {
    let seen = wait::until_within(patience, || match swept(node) {
        Some(sweep) if so(&sweep) => Ok(sweep),
        other => Err(format!("{other:?}")),
    });
    seen.unwrap_or_else(|sweep| panic!("never so: {what}: {sweep}"))
}

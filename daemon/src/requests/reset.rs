//! Resetting clocks: what pfo owes and, if requested, every lock on GPUs that no session holds. And
//! the end of the reports that the ledger has lost some.

use std::sync::Arc;
use std::time::Duration;

use pfo_keeper::{Gpu, reset as reset_clocks};
use pfo_policy::Permit;
use pfo_protocol::{GpuName, Refusal, ResetOutcome, Response};

use super::maintenance::not_recorded;
use crate::host::journal;
use crate::node::Node;

/// How long the driver may take to restore what is owed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Restores one GPU or all of the node; with `all` also resets locks that pfo did not set.
///
/// # Errors
/// If there is no driver, or no such GPU.
pub(super) fn reset(
    node: &Node,
    permit: &Permit,
    name: Option<&GpuName>,
    all: bool,
) -> Result<Response, Refusal> {
    let chosen: Vec<_> = match name {
        None => node.driver.ready()?.gpus.clone(),
        Some(name) => vec![node.driver.gpu(name)?],
    };
    node.owed.restore_now(PATIENCE);
    Ok(Response::Reset(chosen.iter().map(|gpu| reset_gpu(node, permit, gpu, all)).collect()))
}

fn reset_gpu(node: &Node, permit: &Permit, gpu: &Arc<Gpu>, all: bool) -> ResetOutcome {
    let outcome =
        |outcome: String, restored| ResetOutcome { uuid: gpu.uuid.clone(), outcome, restored };
    let Some(_restoring) = node.leases.restore(&gpu.uuid) else {
        // The thread of the session is the only one that may set this GPU's clocks.
        let message = node.leases.holder(&gpu.uuid).map_or_else(
            || "its restore is under way".into(),
            |session| {
                let holder = &session.holder;
                format!("leased by job {}, rank {}: left alone", holder.job, holder.rank)
            },
        );
        return outcome(message, false);
    };
    if node.ledger.entry(&gpu.uuid).is_some() {
        return outcome("still locked; `pfoctl status` shows the reason".into(), false);
    }
    if !all {
        return outcome("pfo has locked nothing".into(), true);
    }
    match reset_clocks(gpu) {
        Ok(old_clock) => {
            let user = permit.caller();
            tracing::info!(
                name: journal::RESET,
                uid = user.peer.uid.0, owner_uid = user.peer.person.0, pid = permit.pid().0,
                gpu_uuid = %gpu.uuid,
                old_mhz = old_clock.map(|clock| clock.0),
                "{user} reset the clocks of GPU {}", gpu.uuid
            );
            outcome("reset, including locks that pfo did not set".into(), true)
        }
        Err(error) => outcome(error.to_string(), false),
    }
}

/// Reports no more that a damaged ledger may have named locks that are lost.
///
/// # Errors
/// If that cannot be recorded.
pub(super) fn acknowledge(node: &Node, permit: &Permit) -> Result<Response, Refusal> {
    if let Some(damage) = node.ledger.acknowledge().map_err(|error| not_recorded(&error))? {
        let (user, pid) = (permit.caller(), permit.pid());
        tracing::warn!(
            name: journal::ACKNOWLEDGED, uid = user.peer.uid.0, owner_uid = user.peer.person.0, pid = pid.0,
            "{user} acknowledges that the ledger was damaged: {}", damage.reason
        );
    }
    Ok(Response::Done)
}

//! Draining the node, releasing the driver, and back.

use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use pfo_policy::Permit;
use pfo_protocol::{ClosingReason, Drained, Refusal, RefusalCode, Response, check_line};
use pfo_service::unix_s;

use crate::host::journal;
use crate::node::Node;

/// The longest reason, in bytes.
const LONGEST_REASON: usize = 200;

/// How long to wait until everything is restored and no thread uses the driver, and how often to
/// look.
const PATIENCE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// Ends every lease, and grants none until the node is undrained.
///
/// # Errors
/// If the reason is no line of text, it cannot be recorded, or the driver could not be released.
pub(super) fn drain(
    node: &Node,
    permit: &Permit,
    reason: String,
    release_driver: bool,
) -> Result<Response, Refusal> {
    check_line("reason", &reason, LONGEST_REASON)
        .map_err(|wrong| Refusal::new(RefusalCode::Malformed, wrong, "give another reason"))?;
    let (by, since_unix_s) = (permit.uid(), unix_s(SystemTime::now()));
    let driver_released = node.drain.standing().is_some_and(|drained| drained.driver_released);
    let drained = Drained { reason, by_uid: by, since_unix_s, driver_released };
    node.drain.begin(drained.clone()).map_err(|error| not_recorded(&error))?;
    let sessions = node.leases.sessions();
    tracing::warn!(
        name: journal::DRAINED, uid = by.0, pid = permit.pid().0,
        "user {by} drains this node; {} leases end: {}", sessions.len(), drained.reason
    );
    for session in &sessions {
        session
            .end(ClosingReason::ShuttingDown, format!("the node is drained: {}", drained.reason));
    }
    if release_driver {
        release(node)?;
        let released = Drained { driver_released: true, ..drained };
        node.drain.begin(released).map_err(|error| not_recorded(&error))?;
        tracing::warn!(
            name: journal::DRAINED, uid = by.0, pid = permit.pid().0,
            "user {by} releases the driver until this node is undrained"
        );
    }
    Ok(Response::Drained(sessions.len() as u32))
}

/// Grants leases again.
///
/// # Errors
/// If that cannot be recorded.
pub(super) fn undrain(node: &Node, permit: &Permit) -> Result<Response, Refusal> {
    node.drain.end().map_err(|error| not_recorded(&error))?;
    node.driver.take_up();
    let by = permit.uid();
    tracing::info!(
        name: journal::UNDRAINED, uid = by.0, pid = permit.pid().0,
        "user {by} undrains this node"
    );
    Ok(Response::Done)
}

/// Releases the driver once nothing is locked any more.
fn release(node: &Node) -> Result<(), Refusal> {
    let since = Instant::now();
    let waits = |idle: &dyn Fn() -> bool| {
        while !idle() && since.elapsed() < PATIENCE {
            sleep(POLL);
        }
        !idle()
    };
    let locked = || node.ledger.entries();
    if waits(&|| node.leases.sessions().is_empty() && locked().is_empty()) {
        let gpus: Vec<_> = locked().iter().map(|entry| entry.gpu_uuid.to_string()).collect();
        return Err(in_use(&format!("clocks are still locked: {}", gpus.join(", "))));
    }
    node.driver.release();
    if waits(&|| !node.driver.is_in_use()) {
        node.driver.take_up();
        return Err(in_use("a call of the driver does not return"));
    }
    Ok(())
}

fn in_use(why: &str) -> Refusal {
    let remedy = "the node is drained; try again, or see `pfoctl status`";
    Refusal::new(RefusalCode::GpuUnavailable, format!("the driver is in use: {why}"), remedy)
}

pub(super) fn not_recorded(error: &dyn std::error::Error) -> Refusal {
    let message = format!("cannot record the change beside the ledger: {error}");
    Refusal::new(RefusalCode::Internal, message, "see whether /run/pfo is full or read-only")
}

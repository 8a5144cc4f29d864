//! Giving GPUs to users, and the ends of that: by request, by another grant and by time.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pfo_policy::Permit;
use pfo_protocol::{
    ClosingReason, GpuGrant, GpuName, GpuUuid, Refusal, RefusalCode, Response, Uid,
};
use pfo_service::{blocking, unix_s};
use tokio::time::timeout;

use super::maintenance::not_recorded;
use crate::host::journal;
use crate::node::Node;

/// The longest time for which the end of a grant is waited for at once: the clock may be set.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Gives GPUs to a user. Leases that others have on them end.
///
/// # Errors
/// If one of them is not a GPU of this node, the time is past, or it cannot be recorded.
pub(super) fn grant(
    node: &Node,
    permit: &Permit,
    uid: Uid,
    gpus: &[GpuName],
    until_unix_s: Option<u64>,
) -> Result<Response, Refusal> {
    let since_unix_s = unix_s(SystemTime::now());
    if let Some(until) = until_unix_s.filter(|until| *until <= since_unix_s) {
        let message =
            format!("the grant would end at {until}, and it is {since_unix_s}, in s since 1970");
        return Err(Refusal::new(RefusalCode::Malformed, message, "give a later time"));
    }
    let by_uid = permit.uid();
    let new = |gpu_uuid| GpuGrant { gpu_uuid, uid, by_uid, since_unix_s, until_unix_s };
    let granted: Vec<_> = named(node, gpus)?.into_iter().map(new).collect();
    let over = node.gpu_grants.add(&granted).map_err(|error| not_recorded(&error))?;
    let end = until_unix_s.map_or_else(String::new, |until| format!(" until {until} s since 1970"));
    for grant in &granted {
        tracing::info!(
            name: journal::GRANTED, uid = by_uid.0, pid = permit.pid().0,
            gpu_uuid = %grant.gpu_uuid,
            "user {by_uid} grants GPU {} to user {uid}{}", grant.gpu_uuid, end
        );
        end_leases(node, &grant.gpu_uuid, |holder| holder != uid, "is granted to another user");
    }
    over.iter().filter(|over| over.uid != uid).for_each(log_end);
    Ok(Response::Granted(granted))
}

/// Ends grants, and the leases that their users have on these GPUs.
///
/// # Errors
/// If one of them is not a GPU of this node, or it cannot be recorded.
pub(super) fn revoke(
    node: &Node,
    _: &Permit,
    uid: Option<Uid>,
    gpus: &[GpuName],
) -> Result<Response, Refusal> {
    let gpus = named(node, gpus)?;
    let is_meant = |grant: &GpuGrant| {
        uid.is_none_or(|uid| uid == grant.uid)
            && (gpus.is_empty() || gpus.contains(&grant.gpu_uuid))
    };
    end(node, is_meant).map(Response::Granted)
}

/// Ends grants whose time has come.
pub(crate) async fn watch_grants(node: Arc<Node>) {
    loop {
        let grants = node.gpu_grants.standing();
        let now = unix_s(SystemTime::now());
        match grants.iter().filter_map(|grant| grant.until_unix_s).min() {
            None => node.gpu_grants.changed.notified().await,
            Some(next) if next > now => {
                let wait = Duration::from_secs(next.saturating_sub(now)).min(LOOK_EVERY);
                let _ = timeout(wait, node.gpu_grants.changed.notified()).await;
            }
            Some(_) => {
                let worker = Arc::clone(&node);
                let is_over =
                    move |grant: &GpuGrant| grant.until_unix_s.is_some_and(|until| until <= now);
                let ended = blocking(move || end(&worker, is_over)).await;
                let ended = ended.unwrap_or_else(|panicked| Err(panicked.into()));
                if let Err(refusal) = ended {
                    tracing::error!("grants that are over stay in force: {}", refusal.message);
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
        }
    }
}

fn end(node: &Node, is_meant: impl Fn(&GpuGrant) -> bool) -> Result<Vec<GpuGrant>, Refusal> {
    let over = node.gpu_grants.end(is_meant).map_err(|error| not_recorded(&error))?;
    for grant in &over {
        log_end(grant);
        let is_its_user = |holder| holder == grant.uid;
        end_leases(node, &grant.gpu_uuid, is_its_user, "is not granted to this user any more");
    }
    Ok(over)
}

fn log_end(grant: &GpuGrant) {
    tracing::info!(
        name: journal::GRANT_ENDED, uid = grant.uid.0, gpu_uuid = %grant.gpu_uuid,
        "the grant of GPU {} to user {} has ended", grant.gpu_uuid, grant.uid
    );
}

fn end_leases(node: &Node, gpu: &GpuUuid, ends: impl Fn(Uid) -> bool, why: &str) {
    if let Some(session) = node.leases.holder(gpu).filter(|session| ends(session.holder.uid)) {
        session.end(ClosingReason::Revoked, format!("GPU {gpu} {why}"));
    }
}

/// The GPUs of these names.
fn named(node: &Node, gpus: &[GpuName]) -> Result<Vec<GpuUuid>, Refusal> {
    gpus.iter().map(|name| node.driver.gpu(name).map(|gpu| gpu.uuid.clone())).collect()
}

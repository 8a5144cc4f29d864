//! Who holds which GPU, and taking leases back.

use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use pfo_protocol::{
    ClosingReason, GpuName, GpuUuid, JobSelector, LeaseStatus, LeaseTarget, Refusal, RefusalCode,
    Response, RevocationStatus,
};

use crate::authorize::{Action, Authority};
use crate::job::JobKey;
use crate::lease::Session;
use crate::node::Node;
use crate::peer::{Peer, watch_process};
use crate::process::Process;
use crate::requests::select;
use crate::revocations::Revocation;
use crate::unix_time::unix_s;

/// Every lease and every revocation.
///
/// # Errors
/// If there is no driver.
pub fn list(node: &Node) -> Result<Response, Refusal> {
    let mut leases: Vec<_> =
        node.leases.held().iter().filter_map(|(gpu, session)| lease(node, gpu, session)).collect();
    leases.sort_by_key(|lease| lease.index);
    let revoked = node.revocations.standing().iter().map(revocation).collect();
    Ok(Response::Leases { leases, revoked })
}

/// Ends the sessions of a job or on a GPU, and keeps their processes from opening others.
///
/// # Errors
/// If the peer may not, or there is no such job or GPU.
pub fn revoke(
    node: &Node,
    authority: &Authority,
    peer: &Peer,
    target: &LeaseTarget,
) -> Result<Response, Refusal> {
    let gpu = match target {
        LeaseTarget::Gpu(name) => Some(node.gpu(name)?.uuid.clone()),
        LeaseTarget::Job(_) => None,
    };
    let end_lease = |owner| Action::EndLease { owner };
    let job = match target {
        LeaseTarget::Job(selector) => {
            select(node, authority, peer, selector, end_lease)?.key.clone()
        }
        LeaseTarget::Gpu(_) => {
            let holder = gpu.as_ref().and_then(|gpu| node.leases.holder(gpu));
            let Some(session) = holder else { return Ok(Response::Revoked(Vec::new())) };
            authority.authorize(peer, end_lease(session.holder.uid))?;
            key(&session)
        }
    };
    let concerned = || {
        let mut held = node.leases.held();
        held.retain(|(held, session)| {
            key(session) == job && gpu.as_ref().is_none_or(|gpu| gpu == held)
        });
        held
    };
    // First nobody gets in any more, then whoever is in has to go.
    let processes = concerned().iter().filter_map(|(_, session)| process(session)).collect();
    let (by, since) = (peer.uid, SystemTime::now());
    node.revocations.add(Revocation {
        job: job.clone(),
        gpu: gpu.clone(),
        by,
        since,
        processes,
    })?;
    let ended = concerned();
    for (gpu, session) in &ended {
        let holder = &session.holder;
        tracing::info!(
            uid = peer.uid, pid = peer.pid, job = %holder.job, rank = holder.rank, gpu_uuid = %gpu,
            "revoked the lease"
        );
        session.end(ClosingReason::Revoked, format!("user {by} revoked the lease"));
    }
    let mut ended: Vec<_> =
        ended.iter().filter_map(|(gpu, session)| lease(node, gpu, session)).collect();
    ended.sort_by_key(|lease| lease.index);
    Ok(Response::Revoked(ended))
}

/// Lifts revocations: of anybody's for an administrator, otherwise those of the peer's own.
///
/// # Errors
/// If there is none that the peer may lift.
pub fn allow(
    node: &Node,
    authority: &Authority,
    peer: &Peer,
    target: &LeaseTarget,
) -> Result<Response, Refusal> {
    let any = authority.authorize(peer, Action::EveryJob).is_ok();
    let gpu = match target {
        LeaseTarget::Gpu(name) => Some(node.gpu(name)?.uuid.clone()),
        LeaseTarget::Job(_) => None,
    };
    let meant = |revocation: &Revocation| match target {
        LeaseTarget::Gpu(_) => revocation.gpu == gpu,
        LeaseTarget::Job(JobSelector { job, uid }) => {
            revocation.job.name == *job && uid.is_none_or(|uid| uid == revocation.job.uid)
        }
    };
    let own = |revocation: &Revocation| (revocation.job.uid, revocation.by) == (peer.uid, peer.uid);
    let lifted = node.revocations.lift(|standing| meant(standing) && (any || own(standing)));
    if lifted.is_empty() {
        let message = format!("there is no revocation of {target} that user {} may lift", peer.uid);
        let remedy = "`pfoctl lease list` shows those that stand; an administrator may lift any";
        return Err(Refusal::new(RefusalCode::UnknownJob, message, remedy));
    }
    Ok(Response::Allowed(lifted.iter().map(revocation).collect()))
}

fn key(session: &Session) -> JobKey {
    JobKey { uid: session.holder.uid, name: session.holder.job.clone() }
}

fn process(session: &Session) -> Option<Process> {
    let peer = Peer::of(session.stream()).ok()?;
    Some(Process::new(watch_process(session.stream(), &peer)?, peer.pid))
}

fn lease(node: &Node, uuid: &GpuUuid, session: &Session) -> Option<LeaseStatus> {
    let gpu = node.gpu(&GpuName::Uuid(uuid.clone())).ok()?;
    let locked = session.progress.locked_mhz.load(Relaxed);
    Some(LeaseStatus {
        index: gpu.index,
        gpu: gpu.listing(),
        holder: session.holder.clone(),
        since_unix_s: unix_s(session.since),
        requested_mhz: (locked > 0).then_some(locked),
        observed_mhz: gpu
            .reader
            .read(&gpu)
            .ok()
            .and_then(|reading| reading.sm_clock)
            .map(|mhz| mhz.0),
    })
}

fn revocation(revocation: &Revocation) -> RevocationStatus {
    RevocationStatus {
        job: revocation.job.name.clone(),
        uid: revocation.job.uid,
        gpu_uuid: revocation.gpu.clone(),
        by_uid: revocation.by,
        since_unix_s: unix_s(revocation.since),
        processes: revocation.living() as u32,
    }
}

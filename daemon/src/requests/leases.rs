//! Listing leases, revoking them, and lifting revocations.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use pfo_keeper::only_observes;
use pfo_policy::{Action, Permit};
use pfo_protocol::{
    ClosingReason, GpuName, GpuUuid, JobSelector, LeaseStatus, LeaseTarget, Mhz, Refusal,
    RefusalCode, Response, RevocationStatus, SettleTimes,
};
use pfo_service::{Process, unix_s, watch_process};

use super::listing;
use crate::host::journal;
use crate::job::{JobKey, observed};
use crate::lease::Session;
use crate::node::Node;
use crate::revocation::Revocation;

/// Every lease, with the holders that the permit lets its caller see, with the revocations of their
/// jobs and the GPUs that they were given.
///
/// # Errors
/// If there is no driver.
pub(super) fn list(node: &Node, permit: &Permit) -> Result<Response, Refusal> {
    let leases = listed(node, permit, &node.leases.held());
    let standing = node.revocations.standing();
    let revoked = standing.iter().filter(|one| permit.sees(one.job.uid)).map(revocation).collect();
    let granted = node.gpu_grants.standing();
    let granted = granted.into_iter().filter(|grant| permit.sees(grant.uid)).collect();
    Ok(Response::Leases { leases, revoked, granted })
}

/// Ends the sessions of a job or on a GPU, and keeps their processes from opening new ones.
///
/// # Errors
/// If the caller may not, or there is no such job or GPU.
pub(super) fn revoke(
    node: &Node,
    permit: &Permit,
    target: &LeaseTarget,
) -> Result<Response, Refusal> {
    let (job, gpu) = match target {
        LeaseTarget::Job(selector) => (node.jobs.select(permit, selector)?.key.clone(), None),
        LeaseTarget::Gpu(name) => {
            let gpu = node.driver.gpu(name)?.uuid.clone();
            let Some(session) = node.leases.holder(&gpu) else {
                return Ok(Response::Revoked(Vec::new()));
            };
            let owner = session.holder.uid;
            permit.covers(&node.settings().authority, owner, Action::EndLeases)?;
            (key(&session), Some(gpu))
        }
    };
    let concerned = || {
        let mut held = node.leases.held();
        held.retain(|(held, session)| {
            key(session) == job && gpu.as_ref().is_none_or(|gpu| gpu == held)
        });
        held
    };
    // New sessions are refused before the open ones are ended.
    let processes = concerned().iter().filter_map(|(_, session)| process(session)).collect();
    let (user, by, since) = (permit.caller(), permit.uid(), SystemTime::now());
    let (job, gpu) = (job.clone(), gpu.clone());
    node.revocations.add(Revocation { job, gpu, by, since, processes })?;
    let ended = concerned();
    for (gpu, session) in &ended {
        let holder = &session.holder;
        tracing::info!(
            uid = by.0, owner_uid = user.peer.person.0, pid = permit.pid().0, job = %holder.job,
            rank = holder.rank.0, gpu_uuid = %gpu,
            "{user} revoked the lease of GPU {gpu} by job {}, rank {} of user {}",
            holder.job, holder.rank, holder.uid
        );
        session.end(ClosingReason::Revoked, format!("user {by} revoked the lease"));
    }
    Ok(Response::Revoked(listed(node, permit, &ended)))
}

/// Lifts revocations: every user's for an administrator, otherwise only the caller's own.
///
/// # Errors
/// If there is no revocation that the caller may lift.
pub(super) fn allow(
    node: &Node,
    permit: &Permit,
    target: &LeaseTarget,
) -> Result<Response, Refusal> {
    let own_uid = permit.uid();
    let gpu = match target {
        LeaseTarget::Gpu(name) => Some(node.driver.gpu(name)?.uuid.clone()),
        LeaseTarget::Job(_) => None,
    };
    let meant = |revocation: &Revocation| match target {
        LeaseTarget::Gpu(_) => revocation.gpu == gpu,
        LeaseTarget::Job(JobSelector { job, uid }) => {
            revocation.job.name == *job && uid.is_none_or(|uid| uid == revocation.job.uid)
        }
    };
    let own = |revocation: &Revocation| (revocation.job.uid, revocation.by) == (own_uid, own_uid);
    let any = permit.sees_all();
    let lifted = node.revocations.lift(|standing| meant(standing) && (any || own(standing)));
    if lifted.is_empty() {
        let message = format!("no revocation of {target} stands that user {own_uid} may lift");
        let remedy = "`pfoctl lease list` shows the revocations; an administrator may lift any";
        return Err(Refusal::new(RefusalCode::UnknownJob, message, remedy));
    }
    Ok(Response::Allowed(lifted.iter().map(revocation).collect()))
}

fn key(session: &Session) -> JobKey {
    JobKey { uid: session.holder.uid, name: session.holder.job.clone() }
}

fn process(session: &Session) -> Option<Process> {
    let pid = session.holder.pid;
    Some(Process::new(watch_process(session.stream(), pid)?, pid))
}

/// Takes what the agent has measured of a leased GPU.
///
/// # Errors
/// If nobody has a lease of it.
pub(super) fn settle(
    node: &Node,
    permit: &Permit,
    gpu: &GpuUuid,
    times: SettleTimes,
) -> Result<Response, Refusal> {
    let session = holder(node, gpu)?;
    let longest_ms = times.longest_ns() / 1_000_000;
    if session.progress.settle.set(Some(times), node.agent_silence()) {
        log_lent(permit, gpu, &session, &format!("has its clocks in force after {longest_ms} ms"));
    }
    Ok(Response::Done)
}

/// Keeps a leased GPU below a power, or lets it go. The rank's thread sets that, now or at its next event.
///
/// # Errors
/// If nobody has a lease of it.
pub(super) fn cap_power(
    node: &Node,
    permit: &Permit,
    gpu: &GpuUuid,
    limit_w: Option<u32>,
) -> Result<Response, Refusal> {
    let session = holder(node, gpu)?;
    if limit_w.is_some() && only_observes() {
        return Err(observed());
    }
    if session.progress.power_cap_w.set(limit_w, node.agent_silence()) {
        let what = limit_w.map(|limit_w| format!("is kept below {limit_w} W"));
        log_lent(permit, gpu, &session, what.as_deref().unwrap_or("is not kept below a power"));
    }
    session.interrupt();
    Ok(Response::Done)
}

fn log_lent(permit: &Permit, gpu: &GpuUuid, session: &Session, what: &str) {
    let (user, job) = (permit.caller(), &session.holder.job);
    tracing::info!(
        name: journal::AGENT_ASKED, uid = user.peer.uid.0, pid = permit.pid().0,
        door = user.agent.map(|_| "agent"), via_pid = user.agent.map(|pid| pid.0), %job, gpu_uuid = %gpu,
        "{user}: GPU {gpu} of job {job} {what}"
    );
}

fn holder(node: &Node, gpu: &GpuUuid) -> Result<Arc<Session>, Refusal> {
    node.leases.holder(gpu).ok_or_else(|| {
        let message = format!("nobody has a lease of GPU {gpu}");
        let remedy = "`pfoctl lease list` shows those that are leased";
        Refusal::new(RefusalCode::UnknownGpu, message, remedy)
    })
}

fn listed(node: &Node, permit: &Permit, held: &[(GpuUuid, Arc<Session>)]) -> Vec<LeaseStatus> {
    let leases = held.iter().filter_map(|(gpu, session)| lease(node, permit, gpu, session));
    let mut leases: Vec<_> = leases.collect();
    leases.sort_by_key(|lease| lease.index);
    leases
}

fn lease(node: &Node, permit: &Permit, uuid: &GpuUuid, session: &Session) -> Option<LeaseStatus> {
    let gpu = node.driver.gpu(&GpuName::Uuid(uuid.clone())).ok()?;
    let locked = session.progress.published.locked_mhz.load(Relaxed);
    Some(LeaseStatus {
        index: gpu.index,
        gpu: listing(&gpu),
        holder: permit.sees(session.holder.uid).then(|| session.holder.clone()),
        since_unix_s: unix_s(session.since),
        requested_mhz: (locked > 0).then_some(Mhz(locked)),
        observed_mhz: node.driver.read_recently(&gpu).ok().and_then(|reading| reading.sm_clock),
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

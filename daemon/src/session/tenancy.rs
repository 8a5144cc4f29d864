//! Who has the GPU now: a lease lasts as long as its holder, and ends when the GPU has another tenant.
//!
//! The descriptor in a hello proves that its process was given the GPU once, and nothing takes it
//! away again. The driver's list of processes says who has the GPU now: `docs/threat-model.md`.

use std::future::pending;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use pfo_keeper::Gpu;
use pfo_protocol::{ClosingReason, GpuUuid, Holder, Refusal, RefusalCode};
use pfo_service::{register, user_of};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::{RANK_STACK_BYTES, begin::unavailable};
use crate::host::journal;
use crate::lease::{Progress, Session};
use crate::node::Node;

/// Checks that a GPU has no other tenant than the holder of its lease: no process of another person
/// computes on it while none of the holder's does. Where the administrator requires it, the holder's
/// process itself must compute.
///
/// # Errors
/// A refusal for want of a process, or if the driver does not say where that is required.
pub(super) fn check(node: &Node, gpu: &Gpu, session: &Session) -> Result<(), Refusal> {
    let (Holder { uid, pid, .. }, uuid) = (&session.holder, &gpu.uuid);
    let grant = session.grant.load();
    let required = grant.terms.require_process;
    let processes = match gpu.processes() {
        Ok(processes) => processes,
        Err(error) if required => return Err(unavailable(&error)),
        Err(_) => return Ok(()),
    };
    // The watch of the process ends the session if the number belongs to another process by now.
    if processes.contains(pid) {
        return Ok(());
    }
    let is_own = |user| node.people.person(user) == session.person;
    let mut users = processes.into_iter().filter_map(user_of).peekable();
    let message = if required {
        format!("process {pid} does not compute on GPU {uuid}, which {} requires", grant.place)
    } else if users.peek().is_none() || users.any(is_own) || node.gpu_grants.gives(*uid, uuid) {
        return Ok(());
    } else {
        format!("another user computes on GPU {uuid}, and no process of user {uid} does")
    };
    let remedy = "use the GPU before the session opens; it retries by itself";
    Err(Refusal::new(RefusalCode::NoProcess, message, remedy))
}

/// Ends a session with its process, or when its GPU has another tenant.
pub(super) async fn watch(
    node: Arc<Node>,
    gpu: Arc<Gpu>,
    process: Option<OwnedFd>,
    session: Weak<Session>,
) {
    tokio::select! {
        () = end_with_process(process, &session) => {}
        () = end_with_tenancy(&node, &gpu, &session) => {}
    }
}

/// The trainer's children may hold a copy of its socket, so the end of the socket alone does not
/// show that the trainer has ended.
async fn end_with_process(process: Option<OwnedFd>, session: &Weak<Session>) {
    let Some(pidfd) = process.and_then(|process| register(process).ok()) else {
        return pending().await;
    };
    if pidfd.readable().await.is_ok()
        && let Some(session) = session.upgrade()
    {
        session.hang_up();
    }
}

async fn end_with_tenancy(node: &Arc<Node>, gpu: &Arc<Gpu>, session: &Weak<Session>) {
    loop {
        let every_s = node.settings().config.limits.tenant_check_s.get();
        sleep(Duration::from_secs(every_s.into())).await;
        let Some(session) = session.upgrade() else { return };
        expire(&session, &gpu.uuid);
        let (node, gpu, looked_at) = (Arc::clone(node), Arc::clone(gpu), Arc::clone(&session));
        let (found, looked) = oneshot::channel();
        let look = move || {
            let checked = check(&node, &gpu, &looked_at);
            // The driver must not stay loaded because of this thread.
            drop((node, gpu, looked_at));
            drop(found.send(checked));
        };
        // A GPU that hangs keeps one thread, and nobody waiting.
        drop(
            thread::Builder::new().name("tenancy".into()).stack_size(RANK_STACK_BYTES).spawn(look),
        );
        if let Ok(Err(Refusal { code: RefusalCode::NoProcess, message, .. })) = looked.await {
            session.end(ClosingReason::Revoked, message);
        }
    }
}

/// Ends what the agent has not asked for again in time.
fn expire(session: &Session, gpu: &GpuUuid) {
    let Progress { power_cap_w, settle, .. } = &*session.progress;
    let over = [(power_cap_w.expire(), "power limit"), (settle.expire(), "settle times")];
    for (_, what) in over.into_iter().filter(|(is_over, _)| *is_over) {
        session.interrupt();
        tracing::warn!(
            name: journal::AGENT_ASKED, job = %session.holder.job, gpu_uuid = %gpu,
            "GPU {gpu} of job {}: the {what} of pfo-agent ends, because it has not asked again",
            session.holder.job
        );
    }
}

//! Loading plans and swapping them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pfo_policy::Permit;
use pfo_protocol::{ClockTable, JobSelector, Refusal, RefusalCode, Response, SwapTarget, Swapped};
use pfo_service::blocking;
use tokio::time::sleep;

use crate::host::journal;
use crate::job::{Job, Swap};
use crate::node::Node;

/// How often a waiting request checks the progress of the ranks. Checking costs them nothing, while
/// a notification would cost every rank a call into the runtime.
pub(super) const POLL: Duration = Duration::from_millis(5);

/// Checks a plan against a job and, with `keep`, keeps it for a swap.
///
/// # Errors
/// If it does not fit, or there is no such job.
pub(super) fn load(
    node: &Node,
    permit: &Permit,
    job: &JobSelector,
    (label, table): (String, ClockTable),
    keep: bool,
) -> Result<Response, Refusal> {
    let job = node.jobs.select(permit, job)?;
    let most = node.jobs.room_for_plans(job.key.uid);
    let plan = if keep { job.load(label, table, most) } else { job.fit_table(label, table, most) }?;
    if keep {
        let (user, name) = (permit.caller(), &job.key.name);
        tracing::info!(
            uid = user.peer.uid.0, owner_uid = user.peer.person.0, pid = permit.pid().0, job = %name,
            door = user.agent.map(|_| "agent"), via_pid = user.agent.map(|pid| pid.0), plan = plan.number,
            "{user} loaded plan {} of job {name}: {}", plan.number, plan.label
        );
    }
    Ok(Response::Loaded(plan.status()))
}

/// The plan that a job runs.
///
/// # Errors
/// If there is no such job.
pub(super) fn read(node: &Node, permit: &Permit, job: &JobSelector) -> Result<Response, Refusal> {
    let job = node.jobs.select(permit, job)?;
    let plan = job.members().plans.current().cloned();
    Ok(Response::Plan(plan.and_then(|plan| plan.table())))
}

/// Begins a swap and, if `wait` asks for it, waits until every rank has changed or is gone.
///
/// # Errors
/// If there is nothing to swap to, the plan does not fit, or another swap takes its place meanwhile.
pub(super) async fn swap(
    node: &Arc<Node>,
    permit: &Permit,
    job: Arc<Job>,
    (mut target, at, after): (SwapTarget, Option<u64>, Option<u64>),
    wait: bool,
) -> Result<Response, Refusal> {
    while wait && (!job.knows_steps() || job.members().plans.half_done().is_some()) {
        // A table that waits counts towards the plans of its user.
        if let SwapTarget::Table { label, table } = target {
            let (node, job) = (Arc::clone(node), Arc::clone(&job));
            let load = move || job.load(label, table, node.jobs.room_for_plans(job.key.uid));
            blocking(load).await??;
            target = SwapTarget::Loaded;
        }
        sleep(POLL).await;
    }
    let (begun_in, begun_on, permit) = (Arc::clone(node), Arc::clone(&job), permit.clone());
    let begin = move || begin(&begun_in, &permit, &begun_on, (target, at, after));
    let swap = blocking(begin).await??;
    let is_replaced = || swap.replaced.load(Relaxed);
    while wait && !swap.is_complete() && !is_replaced() {
        sleep(POLL).await;
    }
    if wait && is_replaced() {
        let (name, step) = (&job.key.name, swap.step());
        let message = format!("job {name} was swapped to something else before step {step}");
        let remedy = "`pfoctl status` shows what it runs";
        return Err(Refusal::new(RefusalCode::NotInForce, message, remedy));
    }
    let (changed, ranks) = swap.taken_up();
    Ok(Response::Swapped(Swapped {
        plan: swap.plan.as_ref().map(|plan| plan.status()),
        step: swap.step(),
        ranks: ranks as u32,
        changed: changed as u32,
    }))
}

fn begin(
    node: &Node,
    permit: &Permit,
    job: &Arc<Job>,
    (target, at, after): (SwapTarget, Option<u64>, Option<u64>),
) -> Result<Arc<Swap>, Refusal> {
    if node.drain.standing().is_some() && job.members().ranks().next().is_none() {
        // Back after the drain, its ranks would change without those on other nodes.
        let message = format!("this node is drained: job {} has no rank here", job.key.name);
        let remedy = "swap it on a node where it runs or, after `pfoctl undrain`, here";
        return Err(Refusal::new(RefusalCode::LimitReached, message, remedy));
    }
    let swap = job.swap(target, (at, after), node.jobs.room_for_plans(job.key.uid))?;
    node.jobs.keep(job);
    let (user, name) = (permit.caller(), &job.key.name);
    let to = swap.plan.as_ref().map_or_else(
        || "default clocks".to_owned(),
        |plan| format!("plan {} ({})", plan.number, plan.label),
    );
    tracing::info!(
        name: journal::SWAPPED,
        uid = user.peer.uid.0, owner_uid = user.peer.person.0, pid = permit.pid().0, job = %name,
        door = user.agent.map(|_| "agent"), via_pid = user.agent.map(|pid| pid.0), plan = swap.plan.as_ref().map_or(0, |plan| plan.number),
        "{user} swaps job {name} to {to} at step {}", swap.step()
    );
    Ok(swap)
}

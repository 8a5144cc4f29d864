//! What administrators and users ask for, decided and done.

use std::sync::Arc;
use std::time::Duration;

use pfo_planner::Straggler;
use pfo_protocol::{
    GpuName, JobSelector, Refusal, RefusalCode, Request, ResetOutcome, Response, Swapped, User,
};

use crate::allowed_limits::allowed_limits;
use crate::authorize::{Action, Authority};
use crate::driver::Gpu;
use crate::explain::explain;
use crate::job::Job;
use crate::journal;
use crate::node::Node;
use crate::peer::Peer;
use crate::reload::reload;
use crate::restore::{reset_memory, reset_sm, sm_clock};
use crate::swap::Swap;
use crate::sweep::requests as sweep;
use crate::{lease_requests, p2p, status};

/// How often a waiting request looks how far the ranks are. Asking costs them nothing,
/// while telling would cost every rank a call into the runtime.
const SWAP_POLL: Duration = Duration::from_millis(5);

/// The longest label of a plan, in bytes.
const LONGEST_LABEL: usize = 64;

/// What a request leads to.
pub enum Decision {
    /// This answer.
    Answer(Response),
    /// A swap that has begun.
    Swap(Arc<Swap>),
    /// None before it is known how far the ranks of this job are.
    NotYet(Arc<Job>, Request),
}

/// Does what a peer asks for, if it may.
#[must_use]
pub fn decide(node: &Arc<Node>, peer: &Peer, request: Request) -> Decision {
    match try_decide(node, peer, request) {
        Ok(decision) => decision,
        Err(refusal) => Decision::Answer(answer_to(peer, Err(refusal))),
    }
}

/// The response, or the refusal, which is logged.
#[must_use]
pub fn answer_to(peer: &Peer, response: Result<Response, Refusal>) -> Response {
    response.unwrap_or_else(|refusal| {
        tracing::warn!(
            name: journal::REFUSED, uid = peer.uid, pid = peer.pid, "refused: {}", refusal.message
        );
        Response::Refused(refusal)
    })
}

fn try_decide(node: &Arc<Node>, peer: &Peer, request: Request) -> Result<Decision, Refusal> {
    let authority = &node.settings().authority;
    let change_plan = |owner| Action::ChangePlan { owner };
    if let Request::PlanSwap { job, wait: true, .. } | Request::Straggler { job, wait: true, .. } =
        &request
    {
        let job = select(node, authority, peer, job, change_plan)?;
        if !job.knows_steps() {
            return Ok(Decision::NotYet(job, request));
        }
    }
    match request {
        Request::Gpus => {
            authority.authorize(peer, Action::Status)?;
            list_gpus(node).map(Decision::Answer)
        }
        Request::Status => {
            authority.authorize(peer, Action::Status)?;
            let every = authority.authorize(peer, Action::EveryJob).is_ok();
            let status = status::status(node, (!every).then_some(peer.uid));
            Ok(Decision::Answer(Response::Status(Box::new(status))))
        }
        Request::PlanLoad { job, label, plan } => {
            let job = select(node, authority, peer, &job, change_plan)?;
            check_label(&label)?;
            let plan = job.load(label, &plan, node.jobs.room_for_plans(job.key.uid))?;
            tracing::info!(
                uid = peer.uid, pid = peer.pid, job = %job.key.name, plan = plan.number,
                "loaded plan {}", plan.label
            );
            Ok(Decision::Answer(Response::Loaded(plan.status())))
        }
        Request::PlanSwap { job, target, not_before, wait: _ } => {
            let job = select(node, authority, peer, &job, change_plan)?;
            let swap = job.swap(&target, not_before.unwrap_or(0))?;
            Ok(begun(node, peer, &job, swap))
        }
        Request::FrontierLoad { job, label, frontier } => {
            let job = select(node, authority, peer, &job, change_plan)?;
            check_label(&label)?;
            let room = node.jobs.room_for_plans(job.key.uid);
            let loaded = job.load_frontier(label, &frontier, room)?;
            node.jobs.keep_with_frontier(&job, &frontier);
            tracing::info!(
                uid = peer.uid, pid = peer.pid, job = %job.key.name,
                "loaded frontier {}", loaded.label
            );
            Ok(Decision::Answer(Response::Frontier(loaded)))
        }
        Request::Straggler { job, slowdown, wait: _ } => {
            let job = select(node, authority, peer, &job, change_plan)?;
            let swap = match slowdown {
                Some(factor) => job.answer_straggler(straggler(factor)?)?,
                None => job.straggler_is_over()?,
            };
            Ok(begun(node, peer, &job, swap))
        }
        Request::StragglerAuto { job, on } => {
            let job = select(node, authority, peer, &job, change_plan)?;
            let frontier = job.answer_by_itself(on)?;
            node.jobs.keep(&job);
            Ok(Decision::Answer(Response::Frontier(frontier)))
        }
        Request::SmClocks(gpu) => {
            p2p::requests::sm_clocks(node, authority, peer, &gpu).map(Decision::Answer)
        }
        Request::PowerLimits(gpu) => {
            allowed_limits(node, authority, peer, &gpu).map(Decision::Answer)
        }
        Request::P2pPowers => {
            authority.authorize(peer, Action::Status)?;
            Ok(Decision::Answer(Response::P2pPowers(node.p2p.list())))
        }
        Request::P2pSet { target, power_w } => {
            p2p::requests::set(node, authority, peer, target, power_w).map(Decision::Answer)
        }
        Request::ClocksReset { gpu, all } => {
            authority.authorize(peer, Action::ResetClocks)?;
            reset_clocks(node, peer, gpu.as_ref(), all).map(Decision::Answer)
        }
        Request::PolicyExplain { who, gpu } => {
            let other = who.map(|User { uid, groups }| Peer { uid, pid: 0, groups });
            authority.authorize(
                peer,
                if other.is_some() { Action::ExplainOthers } else { Action::Status },
            )?;
            let verdicts = explain(node, authority, other.as_ref().unwrap_or(peer), gpu.as_ref())?;
            Ok(Decision::Answer(Response::Policy(verdicts)))
        }
        Request::Leases => {
            authority.authorize(peer, Action::Status)?;
            lease_requests::list(node).map(Decision::Answer)
        }
        Request::LeaseRevoke(target) => {
            lease_requests::revoke(node, authority, peer, &target).map(Decision::Answer)
        }
        Request::LeaseAllow(target) => {
            authority.authorize(peer, Action::Status)?;
            lease_requests::allow(node, authority, peer, &target).map(Decision::Answer)
        }
        Request::Reload => {
            authority.authorize(peer, Action::Reload)?;
            tracing::info!(uid = peer.uid, pid = peer.pid, "asked to read the configuration again");
            Ok(Decision::Answer(Response::Reloaded(reload(node))))
        }
        Request::SweepStart(order) => sweep::start(node, peer, order).map(Decision::Answer),
        Request::SweepControl { job, control } => {
            sweep::control(node, peer, &job, control).map(Decision::Answer)
        }
        Request::SweepRead(job) => sweep::read(node, peer, &job).map(Decision::Answer),
        Request::Sweeps => sweep::sweeps(node, peer).map(Decision::Answer),
        Request::Profiles => sweep::profiles(node, peer).map(Decision::Answer),
        Request::ProfileRead(selector) => {
            sweep::read_profile(node, peer, &selector).map(Decision::Answer)
        }
        _ => Err(Refusal::new(
            RefusalCode::Malformed,
            "this daemon does not know the request",
            "install the same release of pfod and pfoctl",
        )),
    }
}

/// What a swap that a peer asked for leads to.
fn begun(node: &Node, peer: &Peer, job: &Job, swap: Arc<Swap>) -> Decision {
    node.jobs.keep(job);
    tracing::info!(
        name: journal::SWAPPED,
        uid = peer.uid, pid = peer.pid, job = %job.key.name,
        plan = swap.plan.as_ref().map_or(0, |plan| plan.number),
        "swap at step {}", swap.step()
    );
    Decision::Swap(swap)
}

fn straggler(factor: f64) -> Result<Straggler, Refusal> {
    Straggler::new(factor)
        .map_err(|error| Refusal::new(RefusalCode::Malformed, error.to_string(), ""))
}

/// A label is shown to others, in tables and logs.
///
/// # Errors
/// If it is too long, or not one line.
pub fn check_label(label: &str) -> Result<(), Refusal> {
    let wrong = match label.len() {
        1..=LONGEST_LABEL if !label.contains(char::is_control) => return Ok(()),
        1..=LONGEST_LABEL => format!("the label {label:?} is not one line of text"),
        length => format!("the label has {length} bytes, not 1 to {LONGEST_LABEL}"),
    };
    Err(Refusal::new(RefusalCode::Malformed, wrong, "give the plan another label"))
}

/// The job that a peer means, if it may do something to jobs of that owner.
///
/// # Errors
/// If it may not, or there is no such job.
pub fn select(
    node: &Node,
    authority: &Authority,
    peer: &Peer,
    selector: &JobSelector,
    action: impl Fn(u32) -> Action,
) -> Result<Arc<Job>, Refusal> {
    let any = authority.authorize(peer, Action::EveryJob).is_ok();
    let owner = selector.uid.unwrap_or(peer.uid);
    authority.authorize(peer, action(owner))?;
    node.jobs.select(selector, peer.uid, any)
}

fn list_gpus(node: &Node) -> Result<Response, Refusal> {
    Ok(Response::Gpus(node.ready_driver()?.gpus.iter().map(|gpu| gpu.listing()).collect()))
}

fn reset_clocks(
    node: &Node,
    peer: &Peer,
    name: Option<&GpuName>,
    all: bool,
) -> Result<Response, Refusal> {
    let chosen: Vec<_> = match name {
        None => node.ready_driver()?.gpus.clone(),
        Some(name) => vec![node.gpu(name)?],
    };
    node.restore_owed();
    let outcomes = chosen.into_iter().map(|gpu| {
        let old_clock = sm_clock(&gpu);
        let outcome = reset_gpu(node, &gpu, all);
        if all {
            tracing::info!(
                name: journal::RESET,
                uid = peer.uid, pid = peer.pid, gpu_uuid = %gpu.uuid,
                old_mhz = old_clock.filter(|_| outcome.restored).map(|clock| clock.0),
                "reset: {}", outcome.outcome
            );
        }
        outcome
    });
    Ok(Response::Reset(outcomes.collect()))
}

fn reset_gpu(node: &Node, gpu: &Gpu, all: bool) -> ResetOutcome {
    let outcome =
        |outcome: String, restored| ResetOutcome { uuid: gpu.uuid.clone(), outcome, restored };
    let Some(_restoring) = node.leases.restore(&gpu.uuid) else {
        // The thread of the session is the only one that may set this GPU's clocks.
        let message = node.leases.holder(&gpu.uuid).map_or_else(
            || "somebody else is restoring it".into(),
            |session| {
                let holder = &session.holder;
                format!("leased by job {}, rank {}: left alone", holder.job, holder.rank)
            },
        );
        return outcome(message, false);
    };
    if node.ledger.entry(&gpu.uuid).is_some() {
        return outcome("still locked; see `pfoctl status` for the reason".into(), false);
    }
    if !all {
        return outcome("pfo has locked nothing".into(), true);
    }
    let reset = || {
        let mut device = gpu.device()?;
        reset_sm(&mut device, gpu)?;
        reset_memory(&mut device, gpu)
    };
    match reset() {
        Ok(()) => outcome("reset, whoever locked it".into(), true),
        Err(error) => outcome(error.to_string(), false),
    }
}

/// Waits until every rank has begun a step since the daemon started, or is gone.
pub async fn wait_for_steps(job: &Job) {
    while !job.knows_steps() {
        tokio::time::sleep(SWAP_POLL).await;
    }
}

/// Waits until every rank has changed or is gone.
pub async fn wait_for_swap(swap: &Swap) {
    while !swap.is_complete() {
        tokio::time::sleep(SWAP_POLL).await;
    }
}

/// A swap for the peer that asked for it.
#[must_use]
pub fn swapped(swap: &Swap) -> Swapped {
    let (changed, ranks) = swap.taken_up();
    Swapped {
        plan: swap.plan.as_ref().map(|plan| plan.status()),
        step: swap.step(),
        ranks: ranks as u32,
        changed: changed as u32,
    }
}

//! What peers ask of sweeps and stored profiles.

use std::sync::Arc;

use pfo_protocol::{
    JobSelector, ProfileSelector, Refusal, RefusalCode, Response, StoredProfile, SweepControl,
    SweepOrder, SweepSettings,
};
use tokio::task::spawn_blocking;

use crate::authorize::Action;
use crate::node::Node;
use crate::peer::Peer;
use crate::requests::select;
use crate::session::internal;
use crate::sweep::attended::Attended;
use crate::sweep::ladder::ladder;
use crate::sweep::record::SweepRecord;
use crate::sweep::shape::{JobShape, allowed_clocks};
use crate::sweep::sweeps::Sweep;

/// Nobody measures more steps at one clock.
const MOST_STEPS: u32 = 10_000;

/// What an order of a profile leads to.
enum Ordered<S> {
    /// It is stored.
    Stored(StoredProfile),
    /// A sweep that has begun.
    Begun(S),
}

/// Begins a sweep, or finds that it is not needed.
///
/// # Errors
/// If the peer may not measure the job, or the job cannot be swept like that.
pub(crate) fn start(node: &Arc<Node>, peer: &Peer, order: SweepOrder) -> Result<Response, Refusal> {
    Ok(match begin(node, peer, order, false)? {
        Ordered::Stored(profile) => Response::Reused(profile),
        Ordered::Begun(sweep) => Response::Sweep(Box::new(sweep.status())),
    })
}

/// Begins a sweep, or goes on with the job's, until it is over or this is dropped.
///
/// # Errors
/// As [`start`], if the job has no sweep that is not over.
pub(crate) async fn attend(node: &Arc<Node>, peer: &Peer, order: SweepOrder) -> Result<Response, Refusal> {
    let (node, peer) = (Arc::clone(node), peer.clone());
    let begin = move || {
        let job = order.job.clone();
        let sweep = match begin(&node, &peer, order, true) {
            Ok(Ordered::Stored(profile)) => return Ok(Ordered::Stored(profile)),
            Ok(Ordered::Begun(sweep)) => sweep,
            Err(refusal) => match select_sweep(&node, &peer, &job) {
                Ok(sweep) if !sweep.is_over() => sweep,
                _ => return Err(refusal),
            },
        };
        let attended = Attended::begin(&node, sweep)?;
        tracing::info!(uid = peer.uid, pid = peer.pid, job = %job.job, "waits for the sweep");
        Ok(Ordered::Begun(attended))
    };
    let begun = spawn_blocking(begin).await.map_err(|error| internal(&error))?;
    Ok(match begun? {
        Ordered::Stored(profile) => Response::Reused(profile),
        Ordered::Begun(attended) => Response::Sweep(Box::new(attended.over().await)),
    })
}

fn begin(
    node: &Arc<Node>,
    peer: &Peer,
    order: SweepOrder,
    attended: bool,
) -> Result<Ordered<Arc<Sweep>>, Refusal> {
    let SweepOrder { job, model, settings, reuse } = order;
    let authority = &node.settings().authority;
    let job = select(node, authority, peer, &job, |owner| Action::Measure { owner })?;
    check(settings)?;
    let name = &job.key.name;
    let members = job.members();
    let shape = JobShape::of(&members).ok_or_else(|| {
        Refusal::new(
            RefusalCode::LimitReached,
            format!("the ranks of job {name} have not all run a step, or not of equally many microbatches"),
            "try again after the next step",
        )
    })?;
    let allowed = allowed_clocks(&members);
    let free = members.check_free(name);
    drop(members);
    let model = model.unwrap_or_else(|| name.clone());
    if reuse && let Some(stored) = node.profiles.find(&shape.key(job.key.uid, model.clone())) {
        return Ok(Ordered::Stored(stored));
    }
    let clocks = ladder(&allowed, Mhz(settings.stride_mhz), Mhz(settings.min_mhz));
    if clocks.is_empty() {
        return Err(Refusal::new(
            RefusalCode::PlanDoesNotFit,
            format!(
                "no clock from {} MHz on is allowed to all ranks of job {name}",
                settings.min_mhz
            ),
            "`pfoctl policy explain` shows which clocks are",
        ));
    }
    let mut record = SweepRecord::new(job.key.clone(), peer.uid, model, settings, shape, clocks);
    record.attended = attended;
    free?;
    let clocks = record.clocks.len();
    let sweep = node.sweeps.start(node, record)?;
    tracing::info!(uid = peer.uid, pid = peer.pid, job = %name, "began a sweep of {clocks} clocks");
    Ok(Ordered::Begun(sweep))
}

fn check(settings: SweepSettings) -> Result<(), Refusal> {
    let SweepSettings { steps, settling_steps, max_slowdown, .. } = settings;
    let wrong =
        |what: String, remedy: String| Err(Refusal::new(RefusalCode::Malformed, what, remedy));
    let possible = 1..=MOST_STEPS;
    if !possible.contains(&steps) || !possible.contains(&settling_steps) {
        return wrong(
            format!("{steps} steps after {settling_steps} at each clock cannot be measured"),
            format!("let it settle for 1 to {MOST_STEPS} steps, and measure 1 to {MOST_STEPS}"),
        );
    }
    match max_slowdown {
        Some(slowdown) if !(0.0..=100.0).contains(&slowdown) => wrong(
            format!("no job can be kept from a slowdown of {slowdown}"),
            "give a share of the step's time, such as 0.1".into(),
        ),
        _ => Ok(()),
    }
}

/// Pauses, resumes or stops a sweep.
///
/// # Errors
/// If the peer may not measure the job, or it is not being swept.
pub(crate) fn control(
    node: &Arc<Node>,
    peer: &Peer,
    job: &JobSelector,
    control: SweepControl,
) -> Result<Response, Refusal> {
    let status = select_sweep(node, peer, job)?.control(node, control)?;
    tracing::info!(uid = peer.uid, pid = peer.pid, job = %status.job, "sweep: {control:?}");
    Ok(Response::Sweep(Box::new(status)))
}

/// The CSV of what a sweep has measured so far.
///
/// # Errors
/// If the peer may not measure the job, it is not being swept, or nothing was measured yet.
pub(crate) fn read(node: &Node, peer: &Peer, job: &JobSelector) -> Result<Response, Refusal> {
    let (sweep, csv) = select_sweep(node, peer, job)?.so_far()?;
    Ok(Response::Swept { sweep: Box::new(sweep), csv: csv.into_bytes() })
}

fn select_sweep(node: &Node, peer: &Peer, job: &JobSelector) -> Result<Arc<Sweep>, Refusal> {
    let authority = &node.settings().authority;
    authority.authorize(peer, Action::Measure { owner: job.uid.unwrap_or(peer.uid) })?;
    let any = authority.authorize(peer, Action::EveryJob).is_ok();
    node.sweeps.select(job, peer.uid, any)
}

/// The sweeps that a peer may see.
///
/// # Errors
/// If it may see nothing.
pub(crate) fn sweeps(node: &Node, peer: &Peer) -> Result<Response, Refusal> {
    Ok(Response::Sweeps(node.sweeps.statuses(visible(node, peer)?)))
}

/// The stored profiles that a peer may see.
///
/// # Errors
/// If it may see nothing.
pub(crate) fn profiles(node: &Node, peer: &Peer) -> Result<Response, Refusal> {
    Ok(Response::Profiles(node.profiles.list(visible(node, peer)?)))
}

/// The CSV of the one stored profile that a peer means.
///
/// # Errors
/// If the peer may see none, or none or several that it may see are meant.
pub(crate) fn read_profile(
    node: &Node,
    peer: &Peer,
    selector: &ProfileSelector,
) -> Result<Response, Refusal> {
    let visible = visible(node, peer)?;
    let mut meant = node.profiles.list(selector.uid.or(visible));
    let fits = |part: &str, wanted: &Option<String>| wanted.as_ref().is_none_or(|w| w == part);
    meant.retain(|profile| {
        let key = &profile.key;
        visible.is_none_or(|uid| uid == key.uid)
            && key.model == selector.model
            && fits(&key.gpus, &selector.gpus)
            && fits(&key.partition, &selector.partition)
    });
    // Of an administrator's own and others', the own one is meant.
    if selector.uid.is_none() && meant.iter().any(|profile| profile.key.uid == peer.uid) {
        meant.retain(|profile| profile.key.uid == peer.uid);
    }
    let model = &selector.model;
    match &meant[..] {
        [profile] => {
            let csv = node.profiles.read(profile).map_err(|error| internal(&error))?;
            Ok(Response::Profile { profile: profile.clone(), csv })
        }
        [] => Err(Refusal::new(
            RefusalCode::UnknownJob,
            format!("no such profile of model {model} is stored"),
            "`pfoctl profile list` shows those that are",
        )),
        several => Err(Refusal::new(
            RefusalCode::UnknownJob,
            format!("{} profiles of model {model} are stored", several.len()),
            "say which with --gpus, --partition or --user; `pfoctl profile list` shows them",
        )),
    }
}

/// Whose sweeps and profiles a peer may see; none means everybody's.
fn visible(node: &Node, peer: &Peer) -> Result<Option<u32>, Refusal> {
    let authority = &node.settings().authority;
    authority.authorize(peer, Action::Status)?;
    Ok(authority.authorize(peer, Action::EveryJob).is_err().then_some(peer.uid))
}

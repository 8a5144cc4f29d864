//! What clients ask about P2P-blocking power.

use std::io;
use std::time::SystemTime;

use pfo_protocol::{
    GpuName, JobName, P2pPower, P2pSource, P2pTarget, Refusal, RefusalCode, Response,
};

use crate::authorize::{Action, Authority};
use crate::node::Node;
use crate::p2p::samples::Samples;
use crate::p2p::store::{is_model, is_plausible};
use crate::peer::Peer;
use crate::unix_time::unix_s;

/// The SM clocks of a GPU that a peer may lock.
///
/// # Errors
/// If it may not lease it, or there is no such GPU.
pub(crate) fn sm_clocks(
    node: &Node,
    authority: &Authority,
    peer: &Peer,
    gpu: &GpuName,
) -> Result<Response, Refusal> {
    authority.authorize(peer, Action::Status)?;
    let gpu = node.gpu(gpu)?;
    let (terms, _) = authority.lease(peer, &gpu)?;
    let (min, max) = terms.bounds();
    let allowed = gpu.sm_clocks.iter().filter(|clock| (min..=max).contains(*clock));
    Ok(Response::SmClocks(allowed.map(|clock| clock.0).collect()))
}

/// Keeps what the trials of a job have shown.
///
/// # Errors
/// If they have shown nothing, or it cannot be written.
pub(crate) fn keep(
    node: &Node,
    peer: &Peer,
    job: &JobName,
    samples: &Samples,
) -> Result<Response, Refusal> {
    let powers = samples.powers(peer.uid, unix_s(SystemTime::now()));
    if powers.is_empty() {
        return Err(Refusal::new(
            RefusalCode::NoPlan,
            format!("the trials of job {job} have shown no waits"),
            "measure more steps, or use `pfoctl p2p measure` on two free GPUs",
        ));
    }
    node.p2p.put(&powers).map_err(|error| not_written(&error))?;
    tracing::info!(
        uid = peer.uid, pid = peer.pid, %job, "keeps {} P2P-blocking powers", powers.len()
    );
    Ok(Response::P2pPowers(powers))
}

/// Sets a power, or forgets what was set.
///
/// # Errors
/// If the peer may not, it is no power, or it cannot be written.
pub(crate) fn set(
    node: &Node,
    authority: &Authority,
    peer: &Peer,
    target: P2pTarget,
    power_w: Option<f64>,
) -> Result<Response, Refusal> {
    authority.authorize(peer, Action::SetP2pPower)?;
    let malformed =
        |message: String, remedy: &str| Refusal::new(RefusalCode::Malformed, message, remedy);
    let (model, gpu_uuid) = match target {
        P2pTarget::Gpu(uuid) => (node.gpu(&GpuName::Uuid(uuid.clone()))?.model.clone(), Some(uuid)),
        P2pTarget::Model(model) if is_model(&model) => (model, None),
        P2pTarget::Model(model) => {
            return Err(malformed(format!("{model:?} is no model of a GPU"), "see `pfoctl gpus`"));
        }
    };
    let Some(power_w) = power_w else {
        let is_meant = |power: &P2pPower| {
            power.source == P2pSource::Set && (&power.model, &power.gpu_uuid) == (&model, &gpu_uuid)
        };
        node.p2p.forget(is_meant).map_err(|error| not_written(&error))?;
        return Ok(Response::P2pPowers(Vec::new()));
    };
    if !is_plausible(power_w) {
        return Err(malformed(format!("{power_w} W is no power of a GPU"), "give watts"));
    }
    let power = P2pPower {
        model,
        gpu_uuid,
        mhz: None,
        power_w,
        error_w: 0.0,
        count: 0,
        source: P2pSource::Set,
        by_uid: peer.uid,
        since_unix_s: unix_s(SystemTime::now()),
    };
    node.p2p.put(std::slice::from_ref(&power)).map_err(|error| not_written(&error))?;
    tracing::info!(
        uid = peer.uid,
        pid = peer.pid,
        "set the P2P-blocking power of {} to {power_w} W",
        power.model
    );
    Ok(Response::P2pPowers(vec![power]))
}

fn not_written(error: &io::Error) -> Refusal {
    Refusal::new(
        RefusalCode::Internal,
        format!("cannot write P2P-blocking powers: {error}"),
        "see [paths] state in pfod.toml",
    )
}

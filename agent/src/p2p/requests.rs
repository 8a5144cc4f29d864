//! What peers ask about P2P-blocking power. To be called where files may be written.

use std::time::SystemTime;

use pfo_protocol::{
    AgentResponse, GpuListing, JobName, P2pPower, P2pSource, P2pTarget, Refusal, RefusalCode,
};
use pfo_service::unix_s;

use crate::authority::Permit;
use crate::p2p::samples::Samples;
use crate::p2p::store::{P2pStore, is_model, is_plausible};
use crate::refusal::not_written;

/// What these requests write.
const WHAT: &str = "P2P-blocking powers";

/// Keeps what the trials of a job have shown.
///
/// # Errors
/// If they have shown nothing, or it cannot be written.
pub(crate) fn keep(
    store: &P2pStore,
    permit: &Permit,
    job: &JobName,
    samples: &Samples,
) -> Result<AgentResponse, Refusal> {
    let (user, pid) = (permit.user(), permit.pid());
    let powers = samples.powers(user.uid, unix_s(SystemTime::now()));
    if powers.is_empty() {
        return Err(Refusal::new(
            RefusalCode::NoPlan,
            format!("the trials of job {job} have shown no waits"),
            "measure more steps, or use `pfoctl p2p measure` on two free GPUs",
        ));
    }
    store.put(&powers, permit.only_of().is_none()).map_err(|error| not_written(WHAT, &error))?;
    tracing::info!(
        uid = user.uid.0, owner_uid = user.person.0, pid = pid.0, %job,
        "{user} kept {} P2P-blocking powers that job {job} has shown", powers.len()
    );
    Ok(AgentResponse::P2pPowers(powers))
}

/// Sets a power, or forgets what was set. `gpus` are those of the node, if they are known.
///
/// # Errors
/// If there is no such GPU, it is no power, or it cannot be written.
pub(crate) fn set(
    store: &P2pStore,
    permit: &Permit,
    gpus: Result<Vec<GpuListing>, Refusal>,
    target: P2pTarget,
    power_w: Option<f64>,
) -> Result<AgentResponse, Refusal> {
    let (model, gpu_uuid) = match target {
        P2pTarget::Gpu(uuid) => {
            let gpu = gpus?.into_iter().find(|gpu| gpu.uuid == uuid);
            let gpu = gpu.ok_or_else(|| {
                let message = format!("this node has no GPU {uuid}");
                Refusal::new(RefusalCode::UnknownGpu, message, "see `pfoctl gpus`")
            })?;
            (gpu.model, Some(uuid))
        }
        P2pTarget::Model(model) if is_model(&model) => (model, None),
        P2pTarget::Model(model) => {
            return Err(malformed(format!("{model:?} is no model of a GPU"), "see `pfoctl gpus`"));
        }
    };
    let (user, pid) = (permit.user(), permit.pid());
    let Some(power_w) = power_w else {
        let is_meant = |power: &P2pPower| {
            power.source == P2pSource::Set && (&power.model, &power.gpu_uuid) == (&model, &gpu_uuid)
        };
        store.forget(is_meant).map_err(|error| not_written(WHAT, &error))?;
        tracing::info!(
            uid = user.uid.0,
            owner_uid = user.person.0,
            pid = pid.0,
            "{user} removed the P2P-blocking power set for {model}"
        );
        return Ok(AgentResponse::P2pPowers(Vec::new()));
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
        by_uid: user.uid,
        since_unix_s: unix_s(SystemTime::now()),
    };
    store.put(std::slice::from_ref(&power), true).map_err(|error| not_written(WHAT, &error))?;
    tracing::info!(
        uid = user.uid.0,
        owner_uid = user.person.0,
        pid = pid.0,
        "{user} set the P2P-blocking power of {} to {power_w} W",
        power.model
    );
    Ok(AgentResponse::P2pPowers(vec![power]))
}

fn malformed(message: String, remedy: &str) -> Refusal {
    Refusal::new(RefusalCode::Malformed, message, remedy)
}

//! The policy as a response: what it says about a user and the GPUs of this node.

use pfo_keeper::{BaseClock, Gpu};
use pfo_policy::{Permit, Terms};
use pfo_protocol::{GpuName, LeaseTerms, Mhz, Pid, PolicyVerdict, Refusal, Response, User};
use pfo_service::Peer;

use super::listing;
use crate::node::Node;

/// What the policy says about the caller or another user, and one GPU or all of them.
///
/// # Errors
/// If there is no driver, or no such GPU.
pub(super) fn explain(
    node: &Node,
    permit: &Permit,
    other: Option<User>,
    name: Option<&GpuName>,
) -> Result<Response, Refusal> {
    let gpus = match name {
        Some(name) => vec![node.driver.gpu(name)?],
        None => node.driver.ready()?.gpus.clone(),
    };
    let other = other.map(|User { uid, groups, cgroup }| {
        let cgroups = cgroup.into_iter().collect();
        Peer { uid, person: uid, pid: Pid(0), groups, cgroups }
    });
    let who = other.as_ref().unwrap_or(&permit.caller().peer);
    Ok(Response::Policy(gpus.iter().map(|gpu| verdict(node, who, gpu)).collect()))
}

fn verdict(node: &Node, who: &Peer, gpu: &Gpu) -> PolicyVerdict {
    let verdict = node.settings().authority.verdict(who, gpu);
    let (decided_by, terms) = match node.gpu_grants.check(who.uid, &gpu.uuid) {
        Ok(()) => (verdict.place.to_string(), verdict.terms),
        Err(granted_to_another) => (granted_to_another.message, None),
    };
    PolicyVerdict {
        index: gpu.index,
        gpu: listing(gpu),
        decided_by,
        terms: terms.as_ref().map(on_the_wire),
    }
}

fn on_the_wire(terms: &Terms) -> LeaseTerms {
    LeaseTerms {
        min_mhz: Mhz(terms.min_mhz.get()),
        max_mhz: Mhz(terms.max_mhz.get()),
        min_power_limit_w: terms.min_power_limit_w.get(),
        changes_per_second: terms.changes_per_second.get(),
        restore_to_mhz: match terms.restore_to_mhz {
            BaseClock::Reset => None,
            BaseClock::Locked { min, max } => Some((min, max)),
        },
        sessions_per_user: terms.sessions_per_user.get(),
        idle_limit_s: terms.idle_limit_s.get(),
        require_process: terms.require_process,
        require_device: terms.require_device,
    }
}

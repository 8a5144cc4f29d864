//! The policy in words that cross the socket: what it says of a user and the GPUs of this node.

use pfo_protocol::{GpuName, LeaseTerms, PolicyVerdict, Refusal};

use crate::authorize::Authority;
use crate::base_clock::BaseClock;
use crate::driver::Gpu;
use crate::node::Node;
use crate::peer::Peer;
use crate::terms::Terms;

/// What the policy says of somebody and one GPU, or all of them.
///
/// # Errors
/// If there is no driver, or no such GPU.
pub fn explain(
    node: &Node,
    authority: &Authority,
    who: &Peer,
    name: Option<&GpuName>,
) -> Result<Vec<PolicyVerdict>, Refusal> {
    let gpus = match name {
        Some(name) => vec![node.gpu(name)?],
        None => node.ready_driver()?.gpus.clone(),
    };
    Ok(gpus.iter().map(|gpu| verdict(authority, who, gpu)).collect())
}

fn verdict(authority: &Authority, who: &Peer, gpu: &Gpu) -> PolicyVerdict {
    let verdict = authority.verdict(who, gpu);
    PolicyVerdict {
        index: gpu.index,
        gpu: gpu.listing(),
        decided_by: verdict.place.to_string(),
        terms: verdict.terms.map(on_the_wire),
    }
}

fn on_the_wire(terms: &Terms) -> LeaseTerms {
    LeaseTerms {
        min_mhz: terms.min_mhz.get(),
        max_mhz: terms.max_mhz.get(),
        min_power_limit_w: terms.min_power_limit_w.get(),
        changes_per_second: terms.changes_per_second.get(),
        restore_to_mhz: match terms.restore_to_mhz {
            BaseClock::Reset => None,
            BaseClock::Locked { min, max } => Some((min.0, max.0)),
        },
        sessions_per_user: terms.sessions_per_user.get(),
        idle_limit_s: terms.idle_limit_s.get(),
        require_process: terms.require_process,
    }
}

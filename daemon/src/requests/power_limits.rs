//! Between which power limits of a GPU somebody may choose: not below what the administrator and the
//! board allow, and not above what the GPU has without pfo.

use pfo_protocol::{GpuName, Refusal, RefusalCode, Response};

use crate::authorize::{Action, Authority};
use crate::node::Node;
use crate::peer::Peer;
use crate::power_limit::OwedLimit;

/// The power limits of a GPU that a peer may have set.
///
/// # Errors
/// If it may not lease it, there is no such GPU, or none is left to choose.
pub fn allowed_limits(
    node: &Node,
    authority: &Authority,
    peer: &Peer,
    name: &GpuName,
) -> Result<Response, Refusal> {
    authority.authorize(peer, Action::Status)?;
    let gpu = node.gpu(name)?;
    let (terms, place) = authority.lease(peer, &gpu)?;
    let unavailable = |message: String| {
        let remedy = "this GPU can be tuned by its clocks only";
        Refusal::new(RefusalCode::GpuUnavailable, message, remedy)
    };
    let reading = gpu.reader.read(&gpu).map_err(|error| unavailable(error.to_string()))?;
    let Some((board, now)) = gpu.power_limits.zip(reading.power_limit) else {
        return Err(unavailable(format!("GPU {} ({}) takes no power limit", gpu.uuid, gpu.model)));
    };
    let owed = node.ledger.entry(&gpu.uuid).and_then(|entry| entry.power_limit);
    let highest = OwedLimit::without_pfo(owed, now).min(board.highest);
    let min = terms.min_power_limit();
    if min > highest {
        return Err(Refusal::new(
            RefusalCode::NotAuthorized,
            format!(
                "the administrator allows no power limit below {min} ({place}), and GPU {} has \
                 {highest} without pfo",
                gpu.uuid
            ),
            "ask for a lower min_power_limit_w",
        ));
    }
    Ok(Response::PowerLimits {
        lowest_w: board.lowest.max(min).0.div_ceil(1000),
        highest_w: highest.watts(),
    })
}

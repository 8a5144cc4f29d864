//! The settings of a GPU that a caller may choose from: clocks, and power limits not below what the
//! administrator and the board allow, and not above what the GPU has without pfo.

use pfo_keeper::OwedLimit;
use pfo_policy::Permit;
use pfo_protocol::{GpuName, Refusal, RefusalCode, Response};

use crate::node::Node;

/// The SM clocks of a GPU that a caller may lock.
///
/// # Errors
/// If the caller may not lease the GPU, or there is no GPU of that name.
pub(super) fn sm_clocks(node: &Node, permit: &Permit, gpu: &GpuName) -> Result<Response, Refusal> {
    let gpu = node.driver.gpu(gpu)?;
    let (terms, _) = node.settings().authority.lease(&permit.caller().peer, &gpu)?;
    let (min, max) = terms.bounds();
    let allowed = gpu.sm_clocks.iter().filter(|clock| (min..=max).contains(*clock));
    Ok(Response::SmClocks(allowed.copied().collect()))
}

/// The power limits of a GPU that a caller may have set.
///
/// # Errors
/// If the caller may not lease the GPU, there is no GPU of that name, or no limit is left to
/// choose.
pub(super) fn power_limits(
    node: &Node,
    permit: &Permit,
    name: &GpuName,
) -> Result<Response, Refusal> {
    let gpu = node.driver.gpu(name)?;
    let (terms, place) = node.settings().authority.lease(&permit.caller().peer, &gpu)?;
    let unavailable = |message: String| {
        let remedy = "tune this GPU by its clocks";
        Refusal::new(RefusalCode::GpuUnavailable, message, remedy)
    };
    let reading = node.driver.read(&gpu).map_err(|error| unavailable(error.to_string()))?;
    let Some((board, now)) = gpu.power_limits.zip(reading.power_limit) else {
        return Err(unavailable(format!("GPU {} ({}) takes no power limit", gpu.uuid, gpu.model)));
    };
    let owed = node.ledger.entry(&gpu.uuid).and_then(|entry| entry.power_limit);
    let highest = OwedLimit::without_pfo(owed, now).min(board.highest);
    let min = terms.min_power_limit();
    if min > highest {
        let message = format!(
            "the administrator allows no power limit below {min} ({place}), and GPU {} has {highest} \
             without pfo",
            gpu.uuid
        );
        let remedy = "ask for a lower min_power_limit_w";
        return Err(Refusal::new(RefusalCode::NotAuthorized, message, remedy));
    }
    Ok(Response::PowerLimits {
        lowest_w: board.lowest.max(min).0.div_ceil(1000),
        highest_w: highest.watts(),
    })
}

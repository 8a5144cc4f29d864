//! The power limit of a GPU. Unlike a lock of its clocks it can be read: a limit that another tool
//! has set meanwhile is recognised, and left alone.

use nvml_wrapper::Device;
use pfo_vocabulary::Milliwatts;
use serde::{Deserialize, Serialize};

use crate::driver::Gpu;
use crate::driver_error::DriverError;

/// A driver may round a limit, but not by a whole watt.
const ROUNDED_BY: u32 = 1000;

/// The power limits that a board takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitRange {
    /// The lowest.
    pub lowest: Milliwatts,
    /// The highest.
    pub highest: Milliwatts,
}

/// A power limit that pfo has set or is about to set, as the ledger knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwedLimit {
    /// What was in force before pfo set one.
    before_mw: Milliwatts,
    /// What pfo sets.
    set_mw: Milliwatts,
    /// The limit of pfo in force until the driver has accepted the new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replaced_mw: Option<Milliwatts>,
}

impl OwedLimit {
    /// What is owed once `limit` is set on a GPU that has `now` in force, if `owed` was recorded
    /// before.
    #[must_use]
    pub fn for_limit(limit: Milliwatts, now: Milliwatts, owed: Option<Self>) -> Self {
        let ours = owed.filter(|owed| owed.is_ours(now));
        Self {
            before_mw: ours.map_or(now, |owed| owed.before_mw),
            set_mw: limit,
            replaced_mw: ours.map(|_| now),
        }
    }

    /// The limit without pfo, on a GPU that has `now` in force.
    #[must_use]
    pub fn without_pfo(owed: Option<Self>, now: Milliwatts) -> Milliwatts {
        owed.filter(|owed| owed.is_ours(now)).map_or(now, |owed| owed.before_mw)
    }

    fn is_ours(self, now: Milliwatts) -> bool {
        let is = |limit: Milliwatts| limit.0.abs_diff(now.0) < ROUNDED_BY;
        is(self.set_mw) || self.replaced_mw.is_some_and(is)
    }
}

/// The limit in force, as requested by pfo or another tool.
///
/// # Errors
/// If the driver does not report it.
pub(crate) fn read(device: &Device<'_>, gpu: &Gpu) -> Result<Milliwatts, DriverError> {
    let limit = device.power_management_limit();
    limit.map(Milliwatts).map_err(|source| gpu.failed("reading its power limit", source))
}

/// Restores the limit from before pfo, unless another tool has set one since.
///
/// # Errors
/// If the driver refuses; a GPU that takes no power limit has none.
pub(crate) fn put_back(
    device: &mut Device<'_>,
    gpu: &Gpu,
    owed: OwedLimit,
) -> Result<(), DriverError> {
    let now = match read(device, gpu) {
        Err(error) if error.is_not_supported() => return Ok(()),
        now => now?,
    };
    if owed.is_ours(now) {
        return gpu.set(device, "putting its power limit back", |device| {
            device.set_power_management_limit(owed.before_mw.0)
        });
    }
    if now != owed.before_mw {
        tracing::warn!(
            gpu_uuid = %gpu.uuid,
            "another tool has set the power limit to {now}, after pfo set {}: left alone",
            owed.set_mw
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn w(watts: u32) -> Milliwatts {
        Milliwatts::of_watts(watts)
    }

    #[test]
    fn what_was_there_before_pfo_is_remembered_over_any_number_of_limits() {
        let first = OwedLimit::for_limit(w(250), Milliwatts(366_500), None);
        let second = OwedLimit::for_limit(w(200), w(250), Some(first));
        let third = OwedLimit::for_limit(w(150), w(200), Some(second));
        for (owed, now) in [(first, 250), (second, 250), (second, 200), (third, 200), (third, 150)]
        {
            assert_eq!(OwedLimit::without_pfo(Some(owed), w(now)), Milliwatts(366_500), "{now} W");
        }
    }

    #[test]
    fn a_limit_that_somebody_else_has_set_meanwhile_is_the_one_without_pfo() {
        let owed = OwedLimit::for_limit(w(250), w(400), None);
        assert_eq!(OwedLimit::without_pfo(Some(owed), w(300)), w(300));
        let next = OwedLimit::for_limit(w(200), w(300), Some(owed));
        assert_eq!(OwedLimit::without_pfo(Some(next), w(200)), w(300));
        // Not pfo's any more: it was gone before.
        assert_eq!(OwedLimit::without_pfo(Some(next), w(250)), w(250));
    }

    #[test]
    fn a_limit_that_the_driver_has_rounded_is_pfos_still_and_one_a_watt_off_is_not() {
        let owed = OwedLimit::for_limit(w(250), w(400), None);
        for (now_mw, expected) in [(249_900, 400_000), (250_999, 400_000), (251_000, 251_000)] {
            let found = OwedLimit::without_pfo(Some(owed), Milliwatts(now_mw));
            assert_eq!(found, Milliwatts(expected));
        }
    }
}

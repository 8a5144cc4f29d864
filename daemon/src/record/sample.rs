//! What the driver reports of a GPU that is recorded. Pure.

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use pfo_planner::Mhz;

/// What the driver reported of a GPU at some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When (`CLOCK_MONOTONIC`, ns).
    pub at_ns: u64,
    /// The energy counter, if it is known to have changed to this then.
    pub energy_j: Option<f64>,
    /// The SM clock.
    pub sm_clock: Option<Mhz>,
    /// Why the clock is what it is.
    pub reasons: ThrottleReasons,
    /// Whether pfo itself limits the power.
    pub power_limited: bool,
}

impl Sample {
    /// Nothing, before there was anything.
    pub const NONE: Self = Self {
        at_ns: 0,
        energy_j: None,
        sm_clock: None,
        reasons: ThrottleReasons::empty(),
        power_limited: false,
    };

    /// Whether something slowed the GPU down.
    #[must_use]
    pub fn is_throttled(&self) -> bool {
        let mut slowed = ThrottleReasons::SW_POWER_CAP
            | ThrottleReasons::HW_SLOWDOWN
            | ThrottleReasons::SW_THERMAL_SLOWDOWN
            | ThrottleReasons::HW_THERMAL_SLOWDOWN
            | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN;
        // A limit of pfo's is what is to be measured.
        slowed.set(ThrottleReasons::SW_POWER_CAP, !self.power_limited);
        self.reasons.intersects(slowed)
    }
}

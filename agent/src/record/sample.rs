//! What the driver reported of a GPU that is recorded. Pure.

use pfo_protocol::CounterReading;

/// `nvmlClocksThrottleReasonSwPowerCap`
pub(crate) const SW_POWER_CAP: u64 = 0x04;
/// `nvmlClocksThrottleReasonHwSlowdown`
const HW_SLOWDOWN: u64 = 0x08;
/// `nvmlClocksThrottleReasonSwThermalSlowdown`
const SW_THERMAL_SLOWDOWN: u64 = 0x20;
/// `nvmlClocksThrottleReasonHwThermalSlowdown`
pub(crate) const HW_THERMAL_SLOWDOWN: u64 = 0x40;
/// `nvmlClocksThrottleReasonHwPowerBrakeSlowdown`
const HW_POWER_BRAKE_SLOWDOWN: u64 = 0x80;

/// The reading before the first one.
pub(crate) const NO_READING: CounterReading = CounterReading {
    at_ns: 0,
    energy_j: None,
    sm_clock: None,
    throttle_reasons: 0,
    power_limited: false,
};

/// Whether something slowed the GPU down.
pub(crate) fn is_throttled(reading: &CounterReading) -> bool {
    let slowed = HW_SLOWDOWN | SW_THERMAL_SLOWDOWN | HW_THERMAL_SLOWDOWN | HW_POWER_BRAKE_SLOWDOWN;
    // A power limit of pfo is what the trial measures.
    let slowed = if reading.power_limited { slowed } else { slowed | SW_POWER_CAP };
    reading.throttle_reasons & slowed != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_limit_of_pfo_is_no_disturbance_and_everything_else_is() {
        let throttled = |throttle_reasons, power_limited| {
            is_throttled(&CounterReading { throttle_reasons, power_limited, ..NO_READING })
        };
        assert!(throttled(SW_POWER_CAP, false));
        assert!(!throttled(SW_POWER_CAP, true));
        assert!(throttled(SW_POWER_CAP | HW_THERMAL_SLOWDOWN, true));
        assert!(!throttled(0x01, false), "an idle GPU is not throttled");
    }
}

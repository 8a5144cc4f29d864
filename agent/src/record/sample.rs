//! What the driver reported of a GPU that is recorded. Pure.

use pfo_protocol::{CounterReading, Mhz, ThrottledNs};

/// `nvmlClocksThrottleReasonSwPowerCap`
pub(crate) const SW_POWER_CAP: u64 = 0x04;
/// `nvmlClocksThrottleReasonHwSlowdown`, which has no counter.
const HW_SLOWDOWN: u64 = 0x08;
/// `nvmlClocksThrottleReasonSyncBoost`
const SYNC_BOOST: u64 = 0x10;
/// `nvmlClocksThrottleReasonSwThermalSlowdown`
const SW_THERMAL_SLOWDOWN: u64 = 0x20;
/// `nvmlClocksThrottleReasonHwThermalSlowdown`
pub(crate) const HW_THERMAL_SLOWDOWN: u64 = 0x40;
/// `nvmlClocksThrottleReasonHwPowerBrakeSlowdown`
const HW_POWER_BRAKE_SLOWDOWN: u64 = 0x80;

/// Those of power limits: the board's, one of software, or one from outside the node.
pub(crate) const BY_POWER: u64 = SW_POWER_CAP | HW_POWER_BRAKE_SLOWDOWN;

/// The reasons that have a counter, in the order of [`ThrottledNs`].
const COUNTED: [u64; 5] =
    [SW_POWER_CAP, SYNC_BOOST, SW_THERMAL_SLOWDOWN, HW_THERMAL_SLOWDOWN, HW_POWER_BRAKE_SLOWDOWN];

/// Reasons that a clock has as long as nothing changes: what it then takes is a fact about it.
const STEADY: u64 = SW_POWER_CAP | SYNC_BOOST;

/// Reasons that come and go at any clock.
const DISTURBING: u64 =
    HW_SLOWDOWN | SW_THERMAL_SLOWDOWN | HW_THERMAL_SLOWDOWN | HW_POWER_BRAKE_SLOWDOWN;

/// The reading before the first one.
pub(crate) const NO_READING: CounterReading = CounterReading {
    at_ns: 0,
    energy_j: None,
    read_ns: 0,
    sm_clock: None,
    throttled_ns: ThrottledNs {
        sw_power_cap: None,
        sync_boost: None,
        sw_thermal: None,
        hw_thermal: None,
        hw_power_brake: None,
    },
    throttle_reasons: 0,
};

/// What kept the clock of a GPU down between two readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Throttling {
    /// NVML's bits.
    pub(crate) reasons: u64,
    /// For how long a steady reason did, in seconds, by the driver's counters.
    pub(crate) steady_s: f64,
    /// Whether a steady reason that the driver does not count held at the second reading; none if
    /// it counts them all.
    pub(crate) steady_now: Option<bool>,
}

impl Throttling {
    /// By what each counter moved. Where the driver lacks one, by the reasons of both readings.
    pub(crate) fn between(before: &CounterReading, now: &CounterReading) -> Self {
        let bits = before.throttle_reasons | now.throttle_reasons;
        let between_ns = now.read_ns.saturating_sub(before.read_ns);
        let mut throttling = Self { reasons: bits & HW_SLOWDOWN, steady_s: 0.0, steady_now: None };
        let counters = before.throttled_ns.counters().into_iter().zip(now.throttled_ns.counters());
        for (reason, counter) in COUNTED.into_iter().zip(counters) {
            let is_seen = match counter {
                (Some(before_ns), Some(now_ns)) => {
                    // It is lower after the driver was loaded again.
                    let moved_ns = now_ns.saturating_sub(before_ns).min(between_ns);
                    if reason & STEADY != 0 {
                        throttling.steady_s += moved_ns as f64 / 1e9;
                    }
                    moved_ns > 0
                }
                (_, counter) => {
                    if reason & STEADY != 0 && counter.is_none() {
                        let holds = now.throttle_reasons & reason != 0;
                        throttling.steady_now = Some(throttling.steady_now == Some(true) || holds);
                    }
                    bits & reason != 0
                }
            };
            if is_seen {
                throttling.reasons |= reason;
            }
        }
        // Two reasons may hold at the same time.
        throttling.steady_s = throttling.steady_s.min(between_ns as f64 / 1e9);
        throttling
    }

    /// Whether heat, the hardware or a brake slowed the GPU down.
    pub(crate) fn disturbs(self) -> bool {
        self.reasons & DISTURBING != 0
    }

    /// Whether a steady reason kept the clock down.
    pub(crate) fn is_steady(self) -> bool {
        self.reasons & STEADY != 0
    }
}

/// Whether there is no supported clock between two: a GPU may run at the one beside its lock.
pub(crate) fn is_next_to(supported: &[Mhz], one: Mhz, other: Mhz) -> bool {
    let place = |mhz| supported.partition_point(|clock| *clock < mhz);
    one == other || !supported.is_empty() && place(one).abs_diff(place(other)) <= 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn counted(at_ms: u64, counters_ms: [Option<u64>; 5]) -> CounterReading {
        let throttled_ns = ThrottledNs::of(counters_ms.map(|ms| ms.map(|ms| ms * MS)));
        let at_ns = at_ms * MS;
        CounterReading { at_ns, read_ns: at_ns, throttled_ns, ..NO_READING }
    }

    #[test]
    fn a_power_cap_is_steady_and_heat_and_brakes_disturb() {
        let from = counted(100, [Some(7); 5]);
        for (place, disturbs) in [false, false, true, true, true].into_iter().enumerate() {
            let mut counters_ms = [Some(7); 5];
            counters_ms[place] = Some(12);
            let throttling = Throttling::between(&from, &counted(120, counters_ms));
            assert_eq!((throttling.disturbs(), throttling.is_steady()), (disturbs, !disturbs));
            assert_eq!(throttling.steady_s, if disturbs { 0.0 } else { 0.005 });
            assert_eq!(throttling.reasons, COUNTED[place]);
        }
    }

    #[test]
    fn bits_are_looked_at_only_where_a_counter_is_missing() {
        let bits = SW_POWER_CAP | HW_THERMAL_SLOWDOWN;
        let with_bits = |reading| CounterReading { throttle_reasons: bits, ..reading };
        let all = [Some(7); 5];
        let still = Throttling::between(&counted(100, all), &with_bits(counted(120, all)));
        assert_eq!(still, Throttling { reasons: 0, steady_s: 0.0, steady_now: None });
        let cap_only = [Some(7), None, None, None, None];
        let throttling =
            Throttling::between(&counted(100, cap_only), &with_bits(counted(120, cap_only)));
        assert_eq!(throttling.reasons, HW_THERMAL_SLOWDOWN);
        assert_eq!(throttling.steady_now, Some(false), "nothing counts a sync boost");
        let none = [None; 5];
        let throttling = Throttling::between(&counted(100, none), &with_bits(counted(120, none)));
        assert_eq!((throttling.reasons, throttling.steady_now), (bits, Some(true)));
        let over = Throttling::between(&with_bits(counted(100, none)), &counted(120, none));
        assert_eq!((over.reasons, over.steady_now), (bits, Some(false)), "it ended between");
        assert_eq!((throttling.steady_s, over.steady_s), (0.0, 0.0));
        let first = Throttling::between(&NO_READING, &with_bits(counted(120, all)));
        assert_eq!(first.steady_now, None, "its counters tell from the next one on");
    }

    #[test]
    fn a_slowdown_of_the_hardware_without_a_counter_disturbs_too() {
        let slow = CounterReading { throttle_reasons: HW_SLOWDOWN, ..counted(120, [Some(7); 5]) };
        assert!(Throttling::between(&counted(100, [Some(7); 5]), &slow).disturbs());
        let idle = CounterReading { throttle_reasons: 0x01, ..NO_READING };
        assert_eq!(Throttling::between(&NO_READING, &idle).reasons, 0);
    }

    #[test]
    fn counters_that_go_back_or_ahead_of_time_count_for_no_more_than_there_was() {
        let moved = |from, to| {
            let reading = |at_ms, ms| counted(at_ms, [Some(ms); 5]);
            Throttling::between(&reading(100, from), &reading(120, to)).steady_s
        };
        assert_eq!((moved(50, 3), moved(0, 500)), (0.0, 0.020));
    }

    #[test]
    fn clocks_are_next_to_each_other_if_no_supported_one_is_between_them() {
        let supported = [1380, 1395, 1410].map(Mhz);
        for (one, other, is_next) in
            [(1410, 1410, true), (1410, 1395, true), (1395, 1410, true), (1410, 1380, false)]
        {
            assert_eq!(is_next_to(&supported, Mhz(one), Mhz(other)), is_next, "{one} {other}");
        }
        assert!(!is_next_to(&[], Mhz(1410), Mhz(1395)) && is_next_to(&[], Mhz(9), Mhz(9)));
    }
}

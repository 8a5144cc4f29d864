//! Quantities that cross function boundaries here, each a type of its own.

use std::fmt;
use std::hint;
use std::ops::Add;
use std::thread;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A clock in MHz.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mhz(pub u32);

impl fmt::Display for Mhz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MHz", self.0)
    }
}

/// Power in mW, the unit of NVML.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Milliwatts(pub u32);

impl Milliwatts {
    /// From watts, rounded to whole milliwatts; what is negative or not a number becomes zero.
    pub fn from_watts(watts: f64) -> Self {
        Self((watts * 1e3).round() as u32)
    }

    /// In watts.
    pub fn watts(self) -> f64 {
        f64::from(self.0) / 1e3
    }
}

/// Energy in pJ, which is what a milliwatt does in a nanosecond: integrals stay exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Picojoules(pub u128);

impl Picojoules {
    /// The energy of a constant power over a time.
    pub fn of(power: Milliwatts, nanoseconds: u64) -> Self {
        Self(u128::from(power.0) * u128::from(nanoseconds))
    }

    /// In whole mJ, rounded down as a counter does.
    pub fn millijoules(self) -> u64 {
        (self.0 / 1_000_000_000) as u64
    }
}

impl Add for Picojoules {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

/// A point in time on `CLOCK_MONOTONIC`, in ns: comparable between all processes of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MonotonicNs(pub u64);

impl MonotonicNs {
    /// Now. Needs no system call: the kernel answers in the vDSO.
    pub fn now() -> Self {
        // CLOCK_MONOTONIC exists on every Linux; zero would only make a simulation start over.
        let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
        Self(time.as_nanos() as u64)
    }

    /// This much later.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(delay.as_nanos() as u64))
    }

    /// Returns when this time has come. What is shorter than a sleep can be is spent computing, as in
    /// a driver.
    pub(crate) fn wait(self) {
        /// Longer than a sleep of the shortest kind takes on Linux.
        const SHORT_NS: u64 = 100_000;
        let left = self.since(Self::now());
        if left > SHORT_NS {
            thread::sleep(Duration::from_nanos(left));
        }
        while Self::now() < self {
            hint::spin_loop();
        }
    }

    /// Nanoseconds since an earlier point; zero if that is not earlier.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watt_for_a_second_is_a_thousand_millijoules() {
        let energy = Picojoules::of(Milliwatts::from_watts(1.0), 1_000_000_000);
        assert_eq!(energy.millijoules(), 1000);
    }

    #[test]
    fn the_clock_does_not_go_backwards() {
        let first = MonotonicNs::now();
        assert!(MonotonicNs::now() >= first);
        assert_eq!(first.since(first.after(Duration::from_secs(1))), 0);
    }
}

//! How long calls keep a GPU's driver, and who waits for it: calls one after the other, and
//! transfers to a neighbour behind them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::units::MonotonicNs;

/// The driver of one GPU, in the state file.
#[repr(C)]
pub(crate) struct Occupation {
    until_ns: AtomicU64,
    calls: AtomicU64,
    busy_ns: AtomicU64,
    delayed_ns: AtomicU64,
}

/// What calls have cost so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverTime {
    /// Calls.
    pub calls: u64,
    /// The time for which they kept the driver.
    pub busy: Duration,
    /// The time for which transfers waited for them.
    pub transfers_delayed: Duration,
}

impl Occupation {
    /// Keeps the driver for a while, after those who came before; returns until when.
    pub(crate) fn enter(&self, now: MonotonicNs, ns: u64) -> MonotonicNs {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.busy_ns.fetch_add(ns, Ordering::Relaxed);
        let begin = |until: u64| until.max(now.0).saturating_add(ns);
        let before = self
            .until_ns
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |until| Some(begin(until)));
        MonotonicNs(before.map_or(now.0, begin))
    }

    /// Until when it is kept.
    pub(crate) fn until(&self) -> MonotonicNs {
        MonotonicNs(self.until_ns.load(Ordering::Acquire))
    }

    /// Notes that a transfer waited.
    pub(crate) fn delayed(&self, ns: u64) {
        self.delayed_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn time(&self) -> DriverTime {
        let time = |ns: &AtomicU64| Duration::from_nanos(ns.load(Ordering::Relaxed));
        DriverTime {
            calls: self.calls.load(Ordering::Relaxed),
            busy: time(&self.busy_ns),
            transfers_delayed: time(&self.delayed_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_keep_the_driver_one_after_the_other() {
        let driver = Occupation {
            until_ns: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
            delayed_ns: AtomicU64::new(0),
        };
        assert_eq!(driver.enter(MonotonicNs(100), 50), MonotonicNs(150));
        assert_eq!(driver.enter(MonotonicNs(120), 50), MonotonicNs(200));
        assert_eq!(driver.enter(MonotonicNs(500), 50), MonotonicNs(550));
        assert_eq!(driver.until(), MonotonicNs(550));
        assert_eq!((driver.time().calls, driver.time().busy.as_nanos()), (3, 150));
    }
}

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
    reading_ns: AtomicU64,
    setting_ns: AtomicU64,
    delayed_ns: AtomicU64,
}

/// What calls have cost so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverTime {
    /// Calls.
    pub calls: u64,
    /// The time for which those that read kept the driver.
    pub reading: Duration,
    /// The time for which those that set something kept it.
    pub setting: Duration,
    /// The time for which transfers waited for them.
    pub transfers_delayed: Duration,
}

impl Occupation {
    /// Keeps the driver for a call that reads, after those who came before; returns until when.
    pub(crate) fn enter_to_read(&self, now: MonotonicNs, ns: u64) -> MonotonicNs {
        self.reading_ns.fetch_add(ns, Ordering::Relaxed);
        self.enter(now, ns)
    }

    /// Counts a call that reads and is in nobody's way.
    pub(crate) fn read_aside(&self, ns: u64) {
        self.reading_ns.fetch_add(ns, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// The same for a call that sets something.
    pub(crate) fn enter_to_set(&self, now: MonotonicNs, ns: u64) -> MonotonicNs {
        self.setting_ns.fetch_add(ns, Ordering::Relaxed);
        self.enter(now, ns)
    }

    fn enter(&self, now: MonotonicNs, ns: u64) -> MonotonicNs {
        self.calls.fetch_add(1, Ordering::Relaxed);
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
            reading: time(&self.reading_ns),
            setting: time(&self.setting_ns),
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
            reading_ns: AtomicU64::new(0),
            setting_ns: AtomicU64::new(0),
            delayed_ns: AtomicU64::new(0),
        };
        assert_eq!(driver.enter_to_read(MonotonicNs(100), 50), MonotonicNs(150));
        assert_eq!(driver.enter_to_set(MonotonicNs(120), 50), MonotonicNs(200));
        assert_eq!(driver.enter_to_set(MonotonicNs(500), 50), MonotonicNs(550));
        assert_eq!(driver.until(), MonotonicNs(550));
        let DriverTime { calls, reading, setting, .. } = driver.time();
        assert_eq!((calls, reading.as_nanos(), setting.as_nanos()), (3, 50, 100));
    }
}

//! The record of calls that locked a GPU's SM clock: who called when, and what came of it.
//!
//! It is written without a lock and before anything else happens in such a call, because it is what
//! measures how long an event takes from a trainer to the driver.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::units::{Mhz, MonotonicNs};

/// How many calls are kept.
pub const SET_CALLS_KEPT: usize = 4096;

/// The result of a call that has not returned.
const RUNNING: u32 = u32::MAX;

/// One call of `nvmlDeviceSetGpuLockedClocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetCall {
    /// Its number on this GPU, from 0.
    pub number: u64,
    /// When the function was entered.
    pub entered: MonotonicNs,
    /// When it returned, if it has.
    pub returned: Option<MonotonicNs>,
    /// The NVML result, if it has returned.
    pub result: Option<u32>,
    /// The arguments.
    pub min: Mhz,
    /// The arguments.
    pub max: Mhz,
    /// The calling process.
    pub pid: u32,
}

#[repr(C)]
struct SetCallSlot {
    /// Number of the call plus one: zero for a slot never used.
    tag: AtomicU64,
    entered_ns: AtomicU64,
    returned_ns: AtomicU64,
    min_mhz: AtomicU32,
    max_mhz: AtomicU32,
    pid: AtomicU32,
    result: AtomicU32,
}

/// The newest calls on a GPU, and how many there were.
#[repr(C)]
pub(crate) struct SetCallRing {
    count: AtomicU64,
    last_entered_ns: AtomicU64,
    slots: [SetCallSlot; SET_CALLS_KEPT],
}

impl SetCallRing {
    fn slot(&self, number: u64) -> &SetCallSlot {
        &self.slots[(number % SET_CALLS_KEPT as u64) as usize]
    }

    /// Notes that a call was entered; returns its number.
    pub(crate) fn enter(&self, entered: MonotonicNs, min: Mhz, max: Mhz, pid: u32) -> u64 {
        let number = self.count.fetch_add(1, Ordering::AcqRel);
        let slot = self.slot(number);
        slot.tag.store(0, Ordering::Release);
        slot.entered_ns.store(entered.0, Ordering::Relaxed);
        slot.returned_ns.store(0, Ordering::Relaxed);
        slot.min_mhz.store(min.0, Ordering::Relaxed);
        slot.max_mhz.store(max.0, Ordering::Relaxed);
        slot.pid.store(pid, Ordering::Relaxed);
        slot.result.store(RUNNING, Ordering::Relaxed);
        slot.tag.store(number + 1, Ordering::Release);
        self.last_entered_ns.fetch_max(entered.0, Ordering::AcqRel);
        number
    }

    /// Notes that a call returns.
    pub(crate) fn leave(&self, number: u64, returned: MonotonicNs, result: u32) {
        let slot = self.slot(number);
        if slot.tag.load(Ordering::Acquire) == number + 1 {
            slot.returned_ns.store(returned.0, Ordering::Relaxed);
            slot.result.store(result, Ordering::Release);
        }
    }

    /// How many calls there were.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// When the last one was entered.
    pub(crate) fn last_entered(&self) -> Option<MonotonicNs> {
        let ns = self.last_entered_ns.load(Ordering::Acquire);
        (ns != 0).then_some(MonotonicNs(ns))
    }

    /// The kept calls from a number on, oldest first.
    pub(crate) fn since(&self, number: u64) -> Vec<SetCall> {
        let count = self.count();
        let oldest = number.max(count.saturating_sub(SET_CALLS_KEPT as u64));
        (oldest..count).filter_map(|number| self.read(number)).collect()
    }

    /// One call; `None` if it is being written, or was never finished being written.
    fn read(&self, number: u64) -> Option<SetCall> {
        let slot = self.slot(number);
        let tag = slot.tag.load(Ordering::Acquire);
        let result = slot.result.load(Ordering::Acquire);
        let call = SetCall {
            number,
            entered: MonotonicNs(slot.entered_ns.load(Ordering::Acquire)),
            returned: (result != RUNNING)
                .then(|| MonotonicNs(slot.returned_ns.load(Ordering::Acquire))),
            result: (result != RUNNING).then_some(result),
            min: Mhz(slot.min_mhz.load(Ordering::Acquire)),
            max: Mhz(slot.max_mhz.load(Ordering::Acquire)),
            pid: slot.pid.load(Ordering::Acquire),
        };
        let unchanged = slot.tag.load(Ordering::Acquire) == tag;
        (tag == number + 1 && unchanged).then_some(call)
    }

    /// Forgets all calls.
    pub(crate) fn clear(&self) {
        for slot in &self.slots {
            slot.tag.store(0, Ordering::Relaxed);
        }
        self.last_entered_ns.store(0, Ordering::Relaxed);
        self.count.store(0, Ordering::Release);
    }

    /// A ring of its own, for tests.
    #[cfg(test)]
    fn new() -> Box<Self> {
        Box::new(Self {
            count: AtomicU64::new(0),
            last_entered_ns: AtomicU64::new(0),
            slots: std::array::from_fn(|_| SetCallSlot {
                tag: AtomicU64::new(0),
                entered_ns: AtomicU64::new(0),
                returned_ns: AtomicU64::new(0),
                min_mhz: AtomicU32::new(0),
                max_mhz: AtomicU32::new(0),
                pid: AtomicU32::new(0),
                result: AtomicU32::new(0),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_calls_are_kept_and_all_are_counted() {
        let ring = SetCallRing::new();
        assert_eq!(ring.last_entered(), None);
        for n in 0..5000_u32 {
            let number = ring.enter(MonotonicNs(u64::from(n) + 10), Mhz(210), Mhz(n), 1);
            ring.leave(number, MonotonicNs(u64::from(n) + 20), 0);
        }
        let calls = ring.since(0);
        assert_eq!((ring.count(), calls.len()), (5000, SET_CALLS_KEPT));
        assert_eq!(calls.last().unwrap().max, Mhz(4999));
        assert_eq!(ring.last_entered(), Some(MonotonicNs(5009)));
        assert_eq!(ring.since(4998).len(), 2);
    }

    #[test]
    fn a_call_that_never_returned_is_shown_as_running() {
        let ring = SetCallRing::new();
        ring.enter(MonotonicNs(5), Mhz(900), Mhz(900), 42);
        let call = ring.since(0)[0];
        assert_eq!((call.entered, call.returned, call.result), (MonotonicNs(5), None, None));
    }
}

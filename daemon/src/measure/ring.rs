//! The way from the thread of a rank to whoever records it. Putting something in takes no lock and
//! allocates nothing; while nobody records, it is one relaxed load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwapOption;
use crossbeam_queue::ArrayQueue;
use pfo_planner::Mhz;
use pfo_protocol::{Event, Mark, Unit};

use crate::cursor::{Finished, Outcome};

/// What a rank may tell before somebody looks: more than a second of the busiest.
const CAPACITY: usize = 1 << 13;

/// Something that a rank told. The times are the peer's word, on the client's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// A step began.
    StepBegan {
        /// Its number.
        step: u64,
        /// When.
        at_ns: u64,
        /// The step before it went astray and did not end.
        astray: bool,
    },
    /// A step ended.
    StepEnded {
        /// When.
        at_ns: u64,
        /// It did not go as planned, or events of it are lost.
        astray: bool,
    },
    /// An instruction is over.
    Ran {
        /// The instruction.
        unit: Unit,
        /// When it began.
        began_ns: u64,
        /// When it ended.
        ended_ns: u64,
        /// The clock that it should have had; none at default clocks.
        asked: Option<Mhz>,
        /// The clock that was locked when its end was read, and when the driver had accepted that.
        locked: Option<(Mhz, u64)>,
        /// Its step did not go as planned, or events of it are lost.
        astray: bool,
    },
}

impl Observed {
    /// What an event shows that had this outcome while that clock was locked.
    #[must_use]
    pub fn of(event: &Event, outcome: &Outcome, locked: Option<(Mhz, u64)>) -> Option<Self> {
        let (at_ns, astray) = (event.client_ns, outcome.astray);
        match event.mark {
            Mark::StepBegin(step) => Some(Self::StepBegan { step, at_ns, astray }),
            Mark::StepEnd(_) => Some(Self::StepEnded { at_ns, astray }),
            Mark::InstructionBegin(_) => None,
            Mark::InstructionEnd(_) => outcome.finished.map(
                |Finished { unit, planned: asked, astray, began_ns, ended_ns }| Self::Ran {
                    unit,
                    began_ns,
                    ended_ns,
                    asked,
                    locked,
                    astray,
                },
            ),
        }
    }
}

/// Where the thread of a rank puts what it sees.
#[derive(Debug, Default)]
pub struct Tap {
    open: AtomicBool,
    ring: ArcSwapOption<Ring>,
}

impl Tap {
    /// Puts something into the ring, if there is one.
    pub fn put(&self, observed: impl FnOnce() -> Option<Observed>) {
        if self.open.load(Relaxed)
            && let Some(ring) = &*self.ring.load()
            && let Some(observed) = observed()
            && ring.queue.push(observed).is_err()
        {
            ring.overflowed.fetch_add(1, Relaxed);
        }
    }

    /// Puts everything from now on into another ring.
    #[must_use]
    pub fn open(&self) -> Arc<Ring> {
        let ring = Arc::new(Ring::default());
        self.ring.store(Some(Arc::clone(&ring)));
        self.open.store(true, Relaxed);
        ring
    }

    /// Puts nothing into that ring any more.
    pub fn close(&self, ring: &Arc<Ring>) {
        let current = self.ring.load();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, ring)) {
            self.open.store(false, Relaxed);
            self.ring.store(None);
        }
    }
}

/// What a rank told and nobody has looked at yet.
#[derive(Debug)]
pub struct Ring {
    queue: ArrayQueue<Observed>,
    overflowed: AtomicU64,
}

impl Default for Ring {
    fn default() -> Self {
        Self { queue: ArrayQueue::new(CAPACITY), overflowed: AtomicU64::new(0) }
    }
}

impl Ring {
    /// The oldest that nobody has looked at.
    #[must_use]
    pub fn take(&self) -> Option<Observed> {
        self.queue.pop()
    }

    /// Whether there was no room for something.
    #[must_use]
    pub fn has_overflowed(&self) -> bool {
        self.overflowed.load(Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBSERVED: Observed = Observed::StepEnded { at_ns: 7, astray: false };

    #[test]
    fn nothing_is_kept_while_nobody_records() {
        let tap = Tap::default();
        tap.put(|| panic!("nobody wants it"));
        let ring = tap.open();
        tap.put(|| Some(OBSERVED));
        tap.close(&ring);
        tap.put(|| panic!("nobody wants it any more"));
        assert_eq!((ring.take(), ring.take()), (Some(OBSERVED), None));
    }

    #[test]
    fn a_ring_that_nobody_empties_keeps_what_it_has_room_for_and_says_that_there_was_more() {
        let tap = Tap::default();
        let ring = tap.open();
        (0..CAPACITY).for_each(|_| tap.put(|| Some(OBSERVED)));
        assert!(!ring.has_overflowed());
        tap.put(|| Some(OBSERVED));
        assert!(ring.has_overflowed());
        assert_eq!(std::iter::from_fn(|| ring.take()).count(), CAPACITY);
    }

    #[test]
    fn who_records_anew_does_not_lose_the_tap_to_who_recorded_before() {
        let tap = Tap::default();
        let (former, current) = (tap.open(), tap.open());
        tap.close(&former);
        tap.put(|| Some(OBSERVED));
        assert_eq!((former.take(), current.take()), (None, Some(OBSERVED)));
    }
}

//! The path from the thread of a rank to the records of a tap. Putting a record takes no lock and
//! allocates nothing; without a listener it is one relaxed load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwapOption;
use crossbeam_queue::ArrayQueue;
use pfo_protocol::{Event, Mark, Mhz, TapRecord};

use crate::rank::{Finished, Outcome};

/// Records that wait for the meter: more than a second's worth of the busiest rank.
const CAPACITY: usize = 1 << 13;

/// The record of an event that had this outcome while that clock was locked.
#[must_use]
pub(crate) fn record_of(
    event: &Event,
    outcome: &Outcome,
    locked: Option<(Mhz, u64)>,
) -> Option<TapRecord> {
    let (at_ns, astray) = (event.client_ns, outcome.astray);
    match event.mark {
        Mark::StepBegin(step) => Some(TapRecord::StepBegan { step, at_ns, astray }),
        Mark::StepEnd(_) => Some(TapRecord::StepEnded { at_ns, astray }),
        Mark::InstructionBegin(_) | Mark::Untimed(_) => None,
        Mark::InstructionEnd(_) => {
            let Finished { unit, planned, astray, began_ns, ended_ns, .. } = outcome.finished?;
            Some(TapRecord::Ran { unit, began_ns, ended_ns, asked: planned, locked, astray })
        }
    }
}

/// Where the thread of a rank puts its records.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    open: AtomicBool,
    queue: ArcSwapOption<Queue>,
}

impl Tap {
    /// Puts a record into the queue, if there is one.
    pub(crate) fn put(&self, record: impl FnOnce() -> Option<TapRecord>) {
        if self.open.load(Relaxed)
            && let Some(queue) = &*self.queue.load()
            && let Some(record) = record()
            && queue.records.push(record).is_err()
        {
            queue.lost.fetch_add(1, Relaxed);
        }
    }

    /// Puts everything from now on into a new queue.
    pub(crate) fn open(&self) -> Arc<Queue> {
        let records = ArrayQueue::new(CAPACITY);
        let queue = Arc::new(Queue { records, lost: AtomicU64::new(0) });
        self.queue.store(Some(Arc::clone(&queue)));
        self.open.store(true, Relaxed);
        queue
    }

    /// Stops filling that queue.
    pub(crate) fn close(&self, queue: &Arc<Queue>) {
        let current = self.queue.load();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, queue)) {
            self.open.store(false, Relaxed);
            self.queue.store(None);
        }
    }
}

/// Records that the meter has not taken yet.
#[derive(Debug)]
pub(crate) struct Queue {
    records: ArrayQueue<TapRecord>,
    lost: AtomicU64,
}

impl Queue {
    /// The oldest record.
    pub(crate) fn take(&self) -> Option<TapRecord> {
        self.records.pop()
    }

    /// How many records found no room since the last call.
    pub(crate) fn take_lost(&self) -> u64 {
        self.lost.swap(0, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{Instruction, Unit};

    use super::*;

    const RECORD: TapRecord = TapRecord::StepEnded { at_ns: 7, astray: false };

    #[test]
    fn nothing_is_kept_while_nobody_wants_records() {
        let tap = Tap::default();
        tap.put(|| panic!("nobody wants it"));
        let queue = tap.open();
        tap.put(|| Some(RECORD));
        tap.close(&queue);
        tap.put(|| panic!("nobody wants it any more"));
        assert_eq!((queue.take(), queue.take()), (Some(RECORD), None));
    }

    #[test]
    fn a_queue_that_nobody_empties_keeps_what_it_has_room_for_and_counts_the_rest() {
        let tap = Tap::default();
        let queue = tap.open();
        (0..CAPACITY).for_each(|_| tap.put(|| Some(RECORD)));
        assert_eq!(queue.take_lost(), 0);
        (0..3).for_each(|_| tap.put(|| Some(RECORD)));
        assert_eq!((queue.take_lost(), queue.take_lost()), (3, 0));
        assert_eq!(std::iter::from_fn(|| queue.take()).count(), CAPACITY);
    }

    #[test]
    fn a_new_meter_does_not_lose_the_tap_to_the_former_one() {
        let tap = Tap::default();
        let (former, current) = (tap.open(), tap.open());
        tap.close(&former);
        tap.put(|| Some(RECORD));
        assert_eq!((former.take(), current.take()), (None, Some(RECORD)));
    }

    #[test]
    fn a_record_has_the_clock_that_was_asked_for_and_the_one_that_was_locked() {
        let unit = Unit::new(Instruction::Forward, 3);
        let (planned, locked) = (Some(Mhz(900)), Some((Mhz(1410), 5)));
        let finished =
            Finished { unit, position: 0, planned, astray: true, began_ns: 9, ended_ns: u64::MAX };
        let record = |mark, outcome: Outcome| {
            record_of(&Event { sequence: 0, client_ns: u64::MAX, mark }, &outcome, locked)
        };
        let ended = Outcome { finished: Some(finished), astray: true, ..Outcome::default() };
        let (asked, astray, at_ns) = (planned, true, u64::MAX);
        let ran = TapRecord::Ran { unit, began_ns: 9, ended_ns: at_ns, asked, locked, astray };
        assert_eq!(record(Mark::InstructionEnd(unit), ended), Some(ran));
        assert_eq!(record(Mark::InstructionEnd(unit), Outcome::default()), None);
        assert_eq!(record(Mark::InstructionBegin(unit), ended), None);
        let began = TapRecord::StepBegan { step: u64::MAX, at_ns, astray };
        assert_eq!(record(Mark::StepBegin(u64::MAX), ended), Some(began));
        let over = TapRecord::StepEnded { at_ns, astray };
        assert_eq!(record(Mark::StepEnd(4), ended), Some(over));
    }
}

//! The path from the thread of a rank to the records of a tap. Putting a record takes no lock and
//! allocates nothing; without a listener it is one relaxed load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwapOption;
use crossbeam_queue::ArrayQueue;
use pfo_protocol::TapRecord;

/// Records that wait for the meter: more than a second's worth of the busiest rank.
const CAPACITY: usize = 1 << 13;

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
}

//! How soon the kernel runs the thread of a rank. A thread that computes only briefly at a time is
//! woken before others that compute on its core (Linux 6.12 and later; earlier kernels prefer
//! threads that have slept). The trainer may be one of these: its call then takes as long as what
//! pfod does with the event. So the thread is woken first only for an event that sets a clock.

use crate::host::set_slice;

/// More than handling an event takes, and the shortest slice that the kernel accepts.
const SHORT_NS: u64 = 100_000;

/// Events that follow each other sooner than this are a burst, in which changing the slice costs
/// more than it saves.
const BURST_NS: u64 = 250_000;

/// How long a thread may compute at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slice {
    /// Briefly, but without delay.
    Short,
    /// As every other thread.
    Usual,
}

/// The slice of the calling thread, which reads events.
#[derive(Debug)]
pub(crate) struct ReaderSlice {
    now: Slice,
    read_ns: u64,
    floods: bool,
}

impl ReaderSlice {
    /// That of a thread that has read nothing yet.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self { now: Slice::Usual, read_ns: 0, floods: false }
    }

    /// From now on the thread is not scheduled before others.
    pub(crate) fn gives_way(&mut self) {
        self.floods = true;
    }

    /// Takes the slice for the next event, which is `urgent` if it sets a clock. The thread runs
    /// all the same if the kernel refuses.
    pub(crate) fn prepare(&mut self, urgent: bool, now_ns: u64) {
        let next = self.next(urgent, now_ns);
        if std::mem::replace(&mut self.now, next) != next {
            let _ = set_slice(match next {
                Slice::Short => SHORT_NS,
                Slice::Usual => 0,
            });
        }
    }

    fn next(&mut self, urgent: bool, now_ns: u64) -> Slice {
        let since_ns = now_ns.saturating_sub(std::mem::replace(&mut self.read_ns, now_ns));
        match urgent {
            _ if self.floods => Slice::Usual,
            true => Slice::Short,
            false if since_ns < BURST_NS => self.now,
            false => Slice::Usual,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::scheduling;

    #[test]
    fn a_thread_has_the_slice_that_it_has_asked_for_and_nothing_else_of_it_changes() {
        std::thread::spawn(|| {
            let before = scheduling().unwrap();
            let mut slice = ReaderSlice::new();
            slice.prepare(true, BURST_NS);
            let short = scheduling().unwrap();
            if short.sched_runtime == before.sched_runtime {
                return println!("skipped: this kernel gives every thread the same slice");
            }
            assert_eq!(short.sched_runtime, SHORT_NS);
            assert_eq!(short.sched_nice, before.sched_nice);
            slice.prepare(false, 2 * BURST_NS);
            assert_eq!(scheduling().unwrap().sched_runtime, before.sched_runtime);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn only_before_an_urgent_event_and_in_a_burst_after_one_is_the_slice_short() {
        let mut slice = ReaderSlice::new();
        let mut next = |urgent, now_ns| {
            slice.now = slice.next(urgent, now_ns);
            slice.now
        };
        assert_eq!(next(false, 1), Slice::Usual, "a burst that has set nothing");
        assert_eq!(next(true, 2), Slice::Short);
        assert_eq!(next(false, 3), Slice::Short, "a burst");
        assert_eq!(next(false, 3 + BURST_NS), Slice::Usual);
        assert_eq!(next(true, 4 + 2 * BURST_NS), Slice::Short);
        slice.gives_way();
        assert_eq!(slice.next(true, 5 + 3 * BURST_NS), Slice::Usual);
    }
}

//! How soon the kernel runs the thread of a rank. A thread that computes only briefly at a time is
//! woken before others that compute on its core (Linux 6.12 and later; earlier kernels prefer
//! threads that have slept). The trainer may be one of these: its call then takes as long as what
//! pfod does with the event. So the thread is woken first only for an event that sets a clock.

use crate::host::set_slice;

/// More than handling an event takes, and the shortest slice that the kernel accepts.
const SHORT_NS: u64 = 100_000;

/// How long a thread may compute at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slice {
    /// Briefly, but without delay.
    Short,
    /// As every other thread.
    Usual,
}

impl Slice {
    /// Requests another slice for the calling thread, whose slice this is. The thread runs all the
    /// same if the kernel refuses.
    pub(crate) fn change_to(&mut self, other: Self) {
        if std::mem::replace(self, other) != other {
            let _ = set_slice(match other {
                Self::Short => SHORT_NS,
                Self::Usual => 0,
            });
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
            let mut slice = Slice::Usual;
            slice.change_to(Slice::Short);
            let short = scheduling().unwrap();
            if short.sched_runtime == before.sched_runtime {
                return println!("skipped: this kernel gives every thread the same slice");
            }
            assert_eq!(short.sched_runtime, SHORT_NS);
            assert_eq!(short.sched_nice, before.sched_nice);
            slice.change_to(Slice::Usual);
            assert_eq!(scheduling().unwrap().sched_runtime, before.sched_runtime);
        })
        .join()
        .unwrap();
    }
}

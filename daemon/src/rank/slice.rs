//! How soon the kernel lets the thread of a rank run. It wakes a thread that computes but little at a time
//! before others that compute on its core (Linux 6.12 and later; earlier ones prefer whoever has slept).

use crate::host::set_slice;

/// More than what follows an event, and the shortest that the kernel knows.
const SHORT_NS: u64 = 100_000;

/// For how long a thread may compute at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slice {
    /// Hardly at all, but at once.
    Short,
    /// As all others.
    Usual,
}

impl Slice {
    /// Asks for it, for the calling thread. It runs all the same where the kernel refuses.
    pub(crate) fn ask_for(self) {
        let _ = set_slice(match self {
            Self::Short => SHORT_NS,
            Self::Usual => 0,
        });
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
            Slice::Short.ask_for();
            let short = scheduling().unwrap();
            if short.sched_runtime == before.sched_runtime {
                return println!("skipped: this kernel gives every thread the same slice");
            }
            assert_eq!(short.sched_runtime, SHORT_NS);
            assert_eq!(short.sched_nice, before.sched_nice);
            Slice::Usual.ask_for();
            assert_eq!(scheduling().unwrap().sched_runtime, before.sched_runtime);
        })
        .join()
        .unwrap();
    }
}

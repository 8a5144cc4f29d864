//! How soon the kernel runs the thread of a rank. For an event that sets a clock it runs before all
//! that computes on the node: by a real-time policy where the unit's `RLIMIT_RTPRIO`
//! allows that, and otherwise by a short time slice (Linux 6.12 and later; earlier kernels prefer
//! threads that have slept). The trainer may be among those that wait: its call then takes as long
//! as what pfod does with the event. So it is only for events that set a clock.

use std::io;

use pfo_service::{scheduling, set_scheduling};

/// More than handling an event takes, and the shortest slice that the kernel accepts.
const SHORT_NS: u64 = 100_000;

/// Events that follow each other sooner than this are a burst, in which changing the urgency costs
/// more than it saves.
const BURST_NS: u64 = 250_000;

/// How the calling thread, which reads events, is scheduled.
#[derive(Debug)]
pub(crate) struct Urgency {
    /// As every other thread; `None` if the kernel does not report it.
    usual: Option<libc::sched_attr>,
    urgent: bool,
    read_ns: u64,
    floods: bool,
}

impl Urgency {
    /// That of a thread that has read nothing yet.
    pub(crate) fn new() -> Self {
        Self { usual: scheduling().ok(), urgent: false, read_ns: 0, floods: false }
    }

    /// From now on the thread is not scheduled before others.
    pub(crate) fn gives_way(&mut self) {
        self.floods = true;
    }

    /// Prepares for the next event, which is `urgent` if it sets a clock. The thread runs all the
    /// same if the kernel refuses.
    pub(crate) fn prepare(&mut self, urgent: bool, now_ns: u64) {
        let next = self.next(urgent, now_ns);
        if std::mem::replace(&mut self.urgent, next) != next
            && let Some(usual) = &self.usual
        {
            let _ = if next { before_others(usual) } else { set_scheduling(usual) };
        }
    }

    fn next(&mut self, urgent: bool, now_ns: u64) -> bool {
        let since_ns = now_ns.saturating_sub(std::mem::replace(&mut self.read_ns, now_ns));
        !self.floods && (urgent || (since_ns < BURST_NS && self.urgent))
    }
}

fn before_others(usual: &libc::sched_attr) -> io::Result<()> {
    let realtime = libc::sched_attr {
        sched_policy: libc::SCHED_FIFO.unsigned_abs(),
        sched_priority: 1,
        sched_nice: 0,
        sched_runtime: 0,
        ..*usual
    };
    set_scheduling(&realtime)
        .or_else(|_| set_scheduling(&libc::sched_attr { sched_runtime: SHORT_NS, ..*usual }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The policy, the priority and the slice of the calling thread.
    fn policy() -> (u32, u32, u64) {
        let now = scheduling().unwrap();
        (now.sched_policy, now.sched_priority, now.sched_runtime)
    }

    #[test]
    fn an_urgent_thread_runs_before_others_and_afterwards_as_before() {
        std::thread::spawn(|| {
            let before = policy();
            let mut urgency = Urgency::new();
            urgency.prepare(true, BURST_NS);
            let urgent = policy();
            if urgent == before {
                return println!("skipped: this kernel schedules every thread alike");
            }
            let is_fifo = (urgent.0, urgent.1) == (libc::SCHED_FIFO.unsigned_abs(), 1);
            assert!(is_fifo || urgent.2 == SHORT_NS, "{urgent:?}");
            urgency.prepare(false, 2 * BURST_NS);
            assert_eq!(policy(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn only_before_an_event_that_sets_a_clock_and_in_a_burst_after_one_is_a_thread_urgent() {
        let mut urgency = Urgency::new();
        let mut next = |urgent, now_ns| {
            urgency.urgent = urgency.next(urgent, now_ns);
            urgency.urgent
        };
        assert!(!next(false, 1), "a burst that has set nothing");
        assert!(next(true, 2));
        assert!(next(false, 3), "a burst");
        assert!(!next(false, 3 + BURST_NS));
        assert!(next(true, 4 + 2 * BURST_NS));
        urgency.gives_way();
        assert!(!urgency.next(true, 5 + 3 * BURST_NS));
    }
}

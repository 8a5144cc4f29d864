//! Bounds the processor time of a thread that serves one peer. If the peer sends more than any does
//! that is well, the thread sleeps: the events wait in the socket, where they cost other users nothing, and those
//! that do not fit there are lost.

use std::time::Duration;

/// Reads between two checks of the clocks.
const READS: u32 = 64;

/// A thread may compute for one part in this many of its time. 20,000 events per second need less.
const PARTS: u64 = 8;

/// A thread that has slept may compute this much at once: thousands of events that came in a burst,
/// or while the driver was busy.
const BURST_NS: u64 = 10_000_000;

/// The processor time that the thread of one peer has left.
#[derive(Debug)]
pub struct Flood {
    reads: u32,
    left_ns: u64,
    looked: ThreadClocks,
}

/// The clocks of a thread, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadClocks {
    /// `CLOCK_MONOTONIC`
    pub now_ns: u64,
    /// `CLOCK_THREAD_CPUTIME_ID`
    pub computed_ns: u64,
}

impl Flood {
    /// A thread that has not computed yet.
    pub fn new(clocks: ThreadClocks) -> Self {
        Self { reads: 0, left_ns: BURST_NS, looked: clocks }
    }

    /// Counts a read, which was `full` if more may follow at once. Returns how long to sleep before
    /// the next one.
    pub fn read(&mut self, full: bool, clocks: impl Fn() -> ThreadClocks) -> Option<Duration> {
        self.reads = self.reads.saturating_add(1);
        if self.reads < READS && !full {
            return None;
        }
        self.reads = 0;
        let looked = std::mem::replace(&mut self.looked, clocks());
        let earned_ns = self.looked.now_ns.saturating_sub(looked.now_ns) / PARTS;
        let computed_ns = self.looked.computed_ns.saturating_sub(looked.computed_ns);
        let has_ns = self.left_ns.saturating_add(earned_ns).min(BURST_NS);
        self.left_ns = has_ns.saturating_sub(computed_ns);
        let owed_ns = computed_ns.saturating_sub(has_ns);
        let pause_ns = owed_ns.saturating_mul(PARTS);
        // What is earned during this time is already owed.
        self.looked.now_ns = self.looked.now_ns.saturating_add(pause_ns);
        (pause_ns > 0).then(|| Duration::from_nanos(pause_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of the time that is slept, for a number of reads, each of which takes some time to
    /// come and some to be computed.
    fn slept(reads: u64, wait_ns: u64, compute_ns: u64, full: bool) -> f64 {
        let mut clocks = ThreadClocks { now_ns: 1_000_000_000, computed_ns: 5_000 };
        let began_ns = clocks.now_ns;
        let mut flood = Flood::new(clocks);
        let mut slept_ns = 0;
        for _ in 0..reads {
            clocks.now_ns += wait_ns + compute_ns;
            clocks.computed_ns += compute_ns;
            let pause = flood.read(full, || clocks).unwrap_or_default().as_nanos() as u64;
            clocks.now_ns += pause;
            slept_ns += pause;
        }
        slept_ns as f64 / (clocks.now_ns - began_ns) as f64
    }

    #[test]
    fn who_trains_never_waits_however_busy_it_is() {
        assert_eq!(slept(1_000_000, 45_000, 5_000, false), 0.0);
        // A burst of thousands of events, and a full buffer behind each call of a slow driver.
        assert_eq!(slept(2_000, 0, 5_000, false), 0.0);
        assert_eq!(slept(10_000, 8_000_000, 500_000, true), 0.0);
    }

    #[test]
    fn who_floods_sleeps_seven_eighths_of_the_time() {
        for (compute_ns, full) in [(500, false), (5_000, false), (50_000, false), (500_000, true)] {
            let slept = slept(10_000_000_000 / compute_ns, 0, compute_ns, full);
            assert!((0.865..0.885).contains(&slept), "{slept} after {compute_ns} ns each");
        }
    }
}

//! When a GPU got to an event, in the time of the host.
//!
//! The thread that waits for an event wakes up a little after it, and much later on a busy host. The GPU
//! itself keeps the time at which it got there, and says how long one event is after another one. So one
//! event is the base, whose time on the host is estimated: no thread wakes up before its event, hence the
//! wake-up that came soonest after its event says best when the base was. The clocks of GPU and host drift
//! apart, and a long time between two events is a coarse number, so that the base is renewed four times a
//! second.

/// How long a base is kept, in nanoseconds of the host.
const WINDOW_NS: u64 = 250_000_000;

/// Turns a GPU's times into those of the host.
#[derive(Debug)]
pub(crate) struct GpuClock<E> {
    base: Option<Base<E>>,
    last_ns: u64,
}

#[derive(Debug)]
struct Base<E> {
    event: E,
    /// The estimate of when the GPU got to it.
    at_ns: u64,
    since_ns: u64,
    /// How soon after its event a thread woke up, at best.
    soonest_ns: u64,
}

/// An event that the GPU has got to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reached<E> {
    /// When, in nanoseconds of `CLOCK_MONOTONIC`; never before the event that was reached before it.
    pub(crate) at_ns: u64,
    /// The events that are not needed any more.
    pub(crate) spare: [Option<E>; 2],
}

impl<E> Default for GpuClock<E> {
    fn default() -> Self {
        Self { base: None, last_ns: 0 }
    }
}

impl<E: Copy> GpuClock<E> {
    /// Takes in an event for which a thread has waited until `woke_ns` of the host. `elapsed_ns` says how
    /// long the second event is after the first; `None` if CUDA does not know, and then the wake-up counts.
    pub(crate) fn reached(
        &mut self,
        event: E,
        woke_ns: u64,
        elapsed_ns: impl FnOnce(E, E) -> Option<i64>,
    ) -> Reached<E> {
        let Some(mut base) = self.base.take() else {
            self.base = Some(Base::new(event, woke_ns, woke_ns));
            return self.at(woke_ns, [None, None]);
        };
        let Some(elapsed_ns) = elapsed_ns(base.event, event) else {
            return self.at(woke_ns, [Some(base.event), Some(event)]);
        };
        let mut at_ns = base.at_ns.saturating_add_signed(elapsed_ns);
        if let Some(early_ns) = at_ns.checked_sub(woke_ns) {
            base.at_ns = base.at_ns.saturating_sub(early_ns);
            at_ns = woke_ns;
        }
        base.soonest_ns = base.soonest_ns.min(woke_ns.saturating_sub(at_ns));
        let mut spare = event;
        if woke_ns.saturating_sub(base.since_ns) >= WINDOW_NS {
            spare = base.event;
            base = Base::new(event, at_ns.saturating_add(base.soonest_ns), woke_ns);
        }
        self.base = Some(base);
        self.at(at_ns, [Some(spare), None])
    }

    /// The event that is still needed.
    pub(crate) fn base(&self) -> Option<E> {
        self.base.as_ref().map(|base| base.event)
    }

    fn at(&mut self, at_ns: u64, spare: [Option<E>; 2]) -> Reached<E> {
        self.last_ns = self.last_ns.max(at_ns);
        Reached { at_ns: self.last_ns, spare }
    }
}

impl<E> Base<E> {
    fn new(event: E, at_ns: u64, since_ns: u64) -> Self {
        Self { event, at_ns, since_ns, soonest_ns: u64::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events are the times on the GPU's clock, in nanoseconds.
    fn reached(clock: &mut GpuClock<i64>, event: i64, woke_ns: u64) -> u64 {
        clock.reached(event, woke_ns, |base, event| Some(event - base)).at_ns
    }

    #[test]
    fn a_late_wake_up_does_not_move_an_event() {
        let mut clock = GpuClock::default();
        assert_eq!(reached(&mut clock, 0, 5_000_000), 5_000_000);
        assert_eq!(reached(&mut clock, 1_000_000, 9_000_000), 6_000_000);
        assert_eq!(reached(&mut clock, 2_000_000, 7_000_100), 7_000_000);
    }

    #[test]
    fn a_first_wake_up_that_was_late_is_made_good_by_one_that_was_not() {
        let mut clock = GpuClock::default();
        assert_eq!(reached(&mut clock, 0, 5_900_000), 5_900_000);
        assert_eq!(reached(&mut clock, 1_000_000, 6_000_000), 6_000_000);
        assert_eq!(reached(&mut clock, 2_000_000, 9_000_000), 7_000_000);
    }

    #[test]
    fn no_event_is_before_the_one_before_it_or_after_its_wake_up() {
        let mut clock = GpuClock::default();
        reached(&mut clock, 1_000_000, 5_000_000);
        // On another stream the GPU was there before.
        assert_eq!(reached(&mut clock, 400_000, 5_000_010), 5_000_000);
        assert_eq!(reached(&mut clock, 9_000_000, 5_500_000), 5_500_000);
        assert_eq!(reached(&mut clock, 9_000_100, 5_500_050), 5_500_050);
    }

    #[test]
    fn clocks_that_drift_apart_stay_together() {
        for drift in [-0.0001, 0.0001] {
            let mut clock = GpuClock::default();
            let mut worst = 0;
            for event in 0..600_000_i64 {
                let true_ns = 1_000_000_000 + event * 1_000_000;
                let on_gpu = (event as f64 * 1_000_000.0 * (1.0 + drift)) as i64;
                // A wake-up takes 5 µs, and every other one much longer.
                let late_ns = if event % 2 == 0 { 5_000 } else { 700_000 };
                let at = reached(&mut clock, on_gpu, (true_ns + late_ns) as u64);
                worst = worst.max((at as i64 - true_ns - 5_000).abs());
            }
            // 25 µs is what the clocks drift apart in one window, and the estimate is up to two of them old.
            assert!(worst <= 55_000, "{worst} ns at a drift of {drift}");
        }
    }

    #[test]
    fn a_base_is_renewed_and_every_event_is_given_back_once() {
        let mut clock = GpuClock::default();
        let mut out = Vec::new();
        for event in 0..10_i64 {
            let woke_ns = 1 + event as u64 * WINDOW_NS / 2;
            let elapsed = |base: i64, event: i64| Some((event - base) * WINDOW_NS as i64 / 2);
            out.extend(clock.reached(event, woke_ns, elapsed).spare.into_iter().flatten());
        }
        out.extend(clock.base());
        out.sort_unstable();
        assert_eq!(out, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn without_the_gpus_time_the_wake_up_counts_and_the_next_event_is_a_base() {
        let mut clock = GpuClock::default();
        clock.reached(1, 100, |_, _| None);
        let reached = clock.reached(2, 200, |_, _| None);
        assert_eq!(reached, Reached { at_ns: 200, spare: [Some(1), Some(2)] });
        assert_eq!(clock.base(), None);
    }
}

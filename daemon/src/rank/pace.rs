//! The clock changes that a rank may still ask of the driver. Pure and without allocation, because
//! it is called between the socket and the driver.
//!
//! The room for changes refills at a fixed rate, up to as much as fits into one second. The last
//! change is kept for the highest clock, so that a rank that runs out of room waits there.

/// What a rank that wants another clock may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Change to it, and to the clock of a wait and back: half of the room stays for others.
    Ample,
    /// Change to it.
    Enough,
    /// Change to the highest clock, and to no other.
    OnlyToHighest,
    /// Nothing: it is already at the highest clock.
    No,
}

/// The room for changes of one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    interval_ns: u64,
    burst: u64,
    /// When all of the room is available again.
    full_at_ns: u64,
}

impl Pace {
    /// All of the room for this many changes per second.
    pub(crate) fn new(changes_per_second: u32) -> Self {
        let rate = u64::from(changes_per_second);
        let interval_ns = 1_000_000_000_u64.checked_div(rate).unwrap_or(1_000_000_000).max(1);
        Self { interval_ns, burst: rate.max(2), full_at_ns: 0 }
    }

    /// Uses another rate from now on; what was used stays used.
    pub(crate) fn change(&mut self, changes_per_second: u32) {
        let full_at_ns = self.full_at_ns;
        *self = Self { full_at_ns, ..Self::new(changes_per_second) };
    }

    /// The change that there is room for at a time (`CLOCK_MONOTONIC`, ns).
    pub(crate) fn room(&self, now_ns: u64) -> Room {
        let missing = self.full_at_ns.saturating_sub(now_ns).div_ceil(self.interval_ns);
        match self.burst.saturating_sub(missing) {
            0 => Room::No,
            1 => Room::OnlyToHighest,
            left if left > (self.burst / 2).max(2) => Room::Ample,
            _ => Room::Enough,
        }
    }

    pub(crate) fn spend(&mut self, now_ns: u64) {
        self.full_at_ns = self.full_at_ns.max(now_ns).saturating_add(self.interval_ns);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_burst_is_a_seconds_worth_and_its_last_change_is_one_to_the_highest_clock() {
        let mut pace = Pace::new(3);
        for room in [Room::Ample, Room::Enough, Room::OnlyToHighest] {
            assert_eq!(pace.room(SECOND), room);
            pace.spend(SECOND);
        }
        assert_eq!(pace.room(SECOND), Room::No);
        assert_eq!(pace.room(SECOND + SECOND / 3), Room::OnlyToHighest);
        assert_eq!(pace.room(2 * SECOND), Room::Ample);
    }

    #[test]
    fn waits_leave_half_of_the_room_to_instructions() {
        let mut pace = Pace::new(50);
        for spent in 0..50 {
            assert_eq!(pace.room(SECOND) == Room::Ample, spent < 25, "{spent}");
            pace.spend(SECOND);
        }
        assert_ne!(Pace::new(2).room(SECOND), Room::Ample, "no room for a change and back");
    }

    #[test]
    fn at_the_lowest_rate_a_change_still_leaves_room_to_undo_it() {
        let mut pace = Pace::new(1);
        assert_eq!(pace.room(SECOND), Room::Enough);
        pace.spend(SECOND);
        assert_eq!(pace.room(SECOND), Room::OnlyToHighest);
    }

    proptest! {
        #[test]
        fn no_stretch_of_time_sees_more_changes_than_a_burst_and_the_rate(
            rate in 1..2000u32, waits in prop::collection::vec(0..SECOND / 20, 1..2000),
        ) {
            let mut pace = Pace::new(rate);
            let (mut now, mut changes) = (SECOND, 0u64);
            for wait in waits {
                now += wait;
                if pace.room(now) != Room::No {
                    pace.spend(now);
                    changes += 1;
                }
            }
            let allowed = u64::from(rate.max(2)) + (now - SECOND) / (SECOND / u64::from(rate)) + 1;
            prop_assert!(changes <= allowed, "{changes} > {allowed}");
        }
    }
}

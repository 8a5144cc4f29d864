//! When which limits on a GPU's clock hold: the past moments that matter, now, and what is already
//! scheduled.
//!
//! A lock takes effect some time after its call, so that several can be under way at once. The list
//! is short and bounded: a caller that sets clocks faster than they settle replaces the last of its
//! own changes, as it would overwrite a request that the hardware had not looked at yet.

use crate::clock_table::ClockRange;
use crate::state::snapshot::{WordReader, WordWriter};
use crate::units::{Mhz, Milliwatts, MonotonicNs};

/// Limits that a timeline can hold.
const CAPACITY: usize = 32;

/// What limits the clock from some moment on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockLimits {
    /// From when.
    pub from: MonotonicNs,
    /// The lock, as it was asked for.
    pub lock: Option<ClockRange>,
    /// The power cap; `None` is the board's default, which never slows the work.
    pub power_cap: Option<Milliwatts>,
}

/// Limits by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeline {
    entries: [ClockLimits; CAPACITY],
    /// At least 1: there are always limits in force.
    len: usize,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { entries: [ClockLimits::default(); CAPACITY], len: 1 }
    }
}

impl Timeline {
    fn entries(&self) -> &[ClockLimits] {
        &self.entries[..self.len]
    }

    /// What limits the clock at a time.
    pub fn at(&self, time: MonotonicNs) -> ClockLimits {
        let holds = self.entries().iter().rev().find(|entry| entry.from <= time);
        *holds.unwrap_or(&self.entries[0])
    }

    /// What will limit it when all that is scheduled has happened.
    pub fn last(&self) -> ClockLimits {
        self.entries[self.len - 1]
    }

    /// The next change after a time.
    pub fn next_change(&self, time: MonotonicNs) -> Option<MonotonicNs> {
        self.entries().iter().map(|entry| entry.from).find(|&from| from > time)
    }

    /// Schedules another lock, or none, for a time that is not before anything scheduled yet.
    /// History up to `settled` may be forgotten.
    pub fn schedule_lock(
        &mut self,
        from: MonotonicNs,
        lock: Option<ClockRange>,
        settled: MonotonicNs,
    ) {
        let last = self.last();
        if last.lock == lock {
            return;
        }
        self.push(ClockLimits { from: from.max(last.from), lock, ..last }, settled);
    }

    /// Puts another power cap in force now, and into everything scheduled.
    pub fn set_power_cap(&mut self, now: MonotonicNs, power_cap: Option<Milliwatts>) {
        let current = ClockLimits { from: now, power_cap, ..self.at(now) };
        let mut renewed = Self { entries: self.entries, len: 0 };
        let past = self.entries().iter().filter(|entry| entry.from < now);
        let scheduled = self.entries().iter().filter(|entry| entry.from > now);
        let room = CAPACITY - 1 - scheduled.clone().count();
        let forgotten = past.clone().count().saturating_sub(room);
        for entry in past.skip(forgotten).copied() {
            renewed.append(entry);
        }
        renewed.append(current);
        for entry in scheduled.copied() {
            renewed.append(ClockLimits { power_cap, ..entry });
        }
        *self = renewed;
    }

    /// Appends where there is room for sure.
    fn append(&mut self, entry: ClockLimits) {
        self.entries[self.len] = entry;
        self.len += 1;
    }

    fn push(&mut self, entry: ClockLimits, settled: MonotonicNs) {
        if self.len == CAPACITY {
            if self.entries[1].from <= settled {
                self.entries.copy_within(1.., 0);
                self.len -= 1;
            } else {
                self.entries[CAPACITY - 1] = entry;
                return;
            }
        }
        self.append(entry);
    }

    pub(crate) fn write(&self, words: &mut WordWriter) {
        words.put(self.len as u64);
        for entry in self.entries {
            let lock = entry.lock.unwrap_or(ClockRange { min: Mhz(0), max: Mhz(0) });
            words.put(entry.from.0);
            words.put_pair(lock.min.0, lock.max.0);
            // No cap is 0 mW: a cap of nothing at all cannot be asked for.
            words.put(u64::from(entry.power_cap.map_or(0, |cap| cap.0)));
        }
    }

    pub(crate) fn read(words: &mut WordReader<'_>) -> Self {
        let len = (words.take() as usize).clamp(1, CAPACITY);
        let entries = std::array::from_fn(|_| {
            let from = MonotonicNs(words.take());
            let (min, max) = words.take_pair();
            let cap = words.take() as u32;
            ClockLimits {
                from,
                lock: (max != 0).then_some(ClockRange { min: Mhz(min), max: Mhz(max) }),
                power_cap: (cap != 0).then_some(Milliwatts(cap)),
            }
        });
        Self { entries, len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(mhz: u32) -> Option<ClockRange> {
        Some(ClockRange::exactly(Mhz(mhz)))
    }

    fn locked_at(timeline: &Timeline, ns: u64) -> Option<u32> {
        timeline.at(MonotonicNs(ns)).lock.map(|range| range.max.0)
    }

    #[test]
    fn several_locks_can_be_under_way_and_each_takes_effect_in_its_time() {
        let mut timeline = Timeline::default();
        timeline.schedule_lock(MonotonicNs(100), lock(900), MonotonicNs(0));
        timeline.schedule_lock(MonotonicNs(110), lock(1000), MonotonicNs(0));
        timeline.schedule_lock(MonotonicNs(120), None, MonotonicNs(0));
        assert_eq!(
            [99, 100, 110, 119, 120].map(|ns| locked_at(&timeline, ns)),
            [None, Some(900), Some(1000), Some(1000), None]
        );
        assert_eq!(timeline.next_change(MonotonicNs(100)), Some(MonotonicNs(110)));
    }

    #[test]
    fn the_same_lock_again_changes_nothing() {
        let mut timeline = Timeline::default();
        timeline.schedule_lock(MonotonicNs(100), lock(900), MonotonicNs(0));
        let before = timeline;
        timeline.schedule_lock(MonotonicNs(110), lock(900), MonotonicNs(0));
        assert_eq!(timeline, before);
    }

    #[test]
    fn who_sets_faster_than_clocks_settle_gets_the_newest_in_the_end() {
        let mut timeline = Timeline::default();
        for n in 0..10_000 {
            let mhz = 900 + n % 100;
            timeline.schedule_lock(MonotonicNs(15_000 + u64::from(n)), lock(mhz), MonotonicNs(0));
        }
        assert_eq!(locked_at(&timeline, 1_000_000), Some(999));
        assert_eq!(locked_at(&timeline, 14_999), None);
    }

    #[test]
    fn a_power_cap_holds_at_once_and_through_scheduled_locks() {
        let mut timeline = Timeline::default();
        timeline.schedule_lock(MonotonicNs(100), lock(900), MonotonicNs(0));
        timeline.set_power_cap(MonotonicNs(50), Some(Milliwatts(250_000)));
        let cap = |ns| timeline.at(MonotonicNs(ns)).power_cap;
        assert_eq!([cap(49), cap(50), cap(100)], [None, Some(Milliwatts(250_000)), cap(50)]);
        assert_eq!(locked_at(&timeline, 100), Some(900));
    }

    #[test]
    fn a_full_timeline_still_takes_a_power_cap() {
        let mut timeline = Timeline::default();
        for n in 0..40 {
            timeline.schedule_lock(MonotonicNs(n), lock(900 + n as u32), MonotonicNs(n));
        }
        timeline.set_power_cap(MonotonicNs(50), Some(Milliwatts(1)));
        assert_eq!(timeline.at(MonotonicNs(50)).power_cap, Some(Milliwatts(1)));
        assert_eq!(locked_at(&timeline, 50), Some(939));
    }

    #[test]
    fn it_is_the_same_after_a_way_through_shared_memory() {
        let mut timeline = Timeline::default();
        timeline.schedule_lock(MonotonicNs(100), lock(900), MonotonicNs(0));
        timeline.set_power_cap(MonotonicNs(120), Some(Milliwatts(7)));
        let mut words = WordWriter::new();
        timeline.write(&mut words);
        assert_eq!(Timeline::read(&mut WordReader::new(&words.finish())), timeline);
    }
}

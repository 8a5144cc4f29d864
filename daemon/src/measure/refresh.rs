//! Finds the times at which the energy counter changes, with as few reads as possible. Pure.
//!
//! The driver does not report when it refreshes the counter. A change lies between the last read
//! that returned the old value and the first that returned the new one. If the counter is regular,
//! its rhythm gives the time in between; otherwise the middle is used, so that late reads do not
//! shift all times in one direction. If the two reads are far apart, because the thread slept too
//! long, and there is no rhythm, the reading is discarded: the next one covers its time as well.

use super::curve::Knot;
use super::rhythm::Rhythm;

/// A change is known precisely enough when the reads around it are at most this far apart.
const FINE_NS: u64 = 1_000_000;

/// Time between reads while the rhythm of the counter is not known.
const SEARCH_NS: u64 = 500_000;

/// Time between reads around an expected change.
const EXPECT_NS: u64 = 200_000;

/// How long before an expected change to start reading. The dither varies it: if every change came
/// equally long after a read, all times would be too late, or all too early.
const MARGIN_NS: u64 = 600_000;
const DITHER_NS: u64 = 300_000;
/// Each dither differs from the last by this share: multiples of the golden ratio fill the range
/// evenly.
const DITHER_STEP: f64 = 0.618_033_988_749_895;

/// How long after an expected change to continue reading.
const OVERDUE_NS: u64 = 2_000_000;

/// After this many imprecise changes in a row, the rhythm is searched for again, and a less precise
/// change is accepted once: over such a long time a small error matters little.
const MOST_MISSED: u32 = 8;
const COARSE_NS: u64 = 8_000_000;

/// The state of one counter's refreshing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refresh {
    /// The newest reading, and the last time at which it was certainly current.
    newest: Option<(f64, u64)>,
    rhythm: Rhythm,
    dither: f64,
    missed: u32,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Look {
    /// The counter has not changed.
    Same,
    /// It has changed, at an unknown time.
    Changed,
    /// It has changed, at this time.
    Refreshed(Knot),
}

impl Refresh {
    /// Takes a reading that was requested at `asked_ns` and had arrived by `got_ns`.
    pub(crate) fn looked(&mut self, asked_ns: u64, got_ns: u64, energy_j: f64) -> Look {
        let Some((former_j, same_ns)) = self.newest.replace((energy_j, asked_ns)) else {
            return Look::Same;
        };
        let known_ns = self.rhythm.before(asked_ns, got_ns).filter(|known_ns| *known_ns > same_ns);
        if former_j == energy_j {
            if known_ns.is_some_and(|known_ns| known_ns > same_ns.saturating_add(FINE_NS)) {
                // It should have changed. There is no rhythm, or it is no longer this one.
                self.rhythm = Rhythm::default();
            }
            return Look::Same;
        }
        let enclosed_ns = got_ns.saturating_sub(same_ns);
        if enclosed_ns <= FINE_NS {
            self.missed = 0;
            self.dither = (self.dither + DITHER_STEP).fract();
            let at_ns = self.rhythm.learn(same_ns, got_ns);
            return Look::Refreshed(Knot { at_ns, energy_j });
        }
        self.rhythm.pass();
        if let Some(at_ns) = known_ns {
            return Look::Refreshed(Knot { at_ns, energy_j });
        }
        self.missed = self.missed.saturating_add(1);
        if self.missed < MOST_MISSED {
            return Look::Changed;
        }
        self.rhythm = Rhythm::default();
        if enclosed_ns > COARSE_NS {
            return Look::Changed;
        }
        self.missed = 0;
        Look::Refreshed(Knot { at_ns: same_ns.midpoint(got_ns), energy_j })
    }

    /// When to read next.
    #[must_use]
    pub(crate) fn look_at_ns(&self, now_ns: u64) -> u64 {
        let Some((changed_ns, period_ns)) = self.rhythm.last_and_period_ns() else {
            return now_ns.saturating_add(SEARCH_NS);
        };
        let passed_ns = now_ns.saturating_sub(changed_ns);
        let at_step = passed_ns.saturating_sub(OVERDUE_NS).saturating_add(1);
        let expected = at_step.checked_next_multiple_of(period_ns).unwrap_or(at_step);
        let margin_ns = MARGIN_NS.saturating_add((self.dither * DITHER_NS as f64) as u64);
        let begin_ns = changed_ns.saturating_add(expected.saturating_sub(margin_ns));
        begin_ns.max(now_ns.saturating_add(EXPECT_NS))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// Looks for a while at a counter that changes at these times, each time so much later than
    /// asked for. Returns the looks, and how far off each change was placed.
    fn watch(changes_ns: &[u64], late_ns: impl Fn(u64) -> u64) -> (u64, Vec<i64>) {
        let mut refresh = Refresh::default();
        let (mut now_ns, mut looks, mut off_ns) = (1000 * MS, 0, Vec::new());
        while now_ns < changes_ns[changes_ns.len() - 1] {
            let count = changes_ns.partition_point(|change_ns| *change_ns <= now_ns);
            if let Look::Refreshed(knot) = refresh.looked(now_ns, now_ns + 10_000, count as f64) {
                assert_eq!(knot.energy_j, count as f64);
                off_ns.push(knot.at_ns as i64 - changes_ns[count - 1] as i64);
            }
            now_ns = refresh.look_at_ns(now_ns + 10_000) + late_ns(looks);
            looks += 1;
        }
        (looks, off_ns)
    }

    fn regular(period_ns: u64) -> Vec<u64> {
        (1..=200).map(|number| 1000 * MS + number * period_ns).collect()
    }

    fn a_little_late(look: u64) -> u64 {
        50_000 + look * 7919 % 30_000
    }

    #[test]
    fn few_looks_find_every_refresh_of_a_regular_counter_and_soon_to_a_few_microseconds() {
        for period_ms in [10, 20, 25, 100] {
            let (looks, off_ns) = watch(&regular(period_ms * MS), a_little_late);
            assert!(off_ns.len() >= 197, "{period_ms}: {}", off_ns.len());
            assert!(looks <= 6 * 200 + 400, "{looks} looks");
            let soon = &off_ns[50..];
            assert!(soon.iter().all(|off| off.unsigned_abs() < 50_000), "{period_ms}: {soon:?}");
        }
    }

    #[test]
    fn a_counter_without_a_rhythm_is_placed_where_two_looks_enclose_its_change() {
        let irregular: Vec<_> =
            regular(20 * MS).iter().map(|at_ns| at_ns + at_ns / MS * 7919 % 1500 * 1000).collect();
        let (_, off_ns) = watch(&irregular, a_little_late);
        assert!(off_ns.len() >= 150, "{}", off_ns.len());
        assert!(off_ns.iter().all(|off| off.unsigned_abs() <= FINE_NS), "{off_ns:?}");
        assert!((off_ns.iter().sum::<i64>() / off_ns.len() as i64).abs() < 50_000, "{off_ns:?}");
    }

    #[test]
    fn a_rhythm_that_changes_is_learned_anew() {
        let (first, mut changes) = (regular(20 * MS), regular(20 * MS));
        changes
            .extend(regular(33 * MS).iter().map(|at_ns| at_ns - 1000 * MS + first[199] + 7 * MS));
        let (_, off_ns) = watch(&changes, a_little_late);
        assert!(off_ns.len() >= 390, "{}", off_ns.len());
        let (worst, last) = (off_ns.iter().map(|off| off.abs()).max(), &off_ns[300..]);
        assert!(worst.unwrap() <= FINE_NS as i64, "{off_ns:?}");
        assert!(last.iter().all(|off| off.unsigned_abs() < 50_000), "{last:?}");
    }

    #[test]
    fn a_thread_that_always_sleeps_too_long_still_reads_something() {
        let (_, off_ns) = watch(&regular(20 * MS), |_| 5 * MS);
        assert!(off_ns.len() >= 20, "{}", off_ns.len());
        assert!(off_ns.iter().all(|off| off.unsigned_abs() <= COARSE_NS / 2), "{off_ns:?}");
    }

    #[test]
    fn a_thread_that_sleeps_too_long_at_times_knows_the_rhythm_and_misses_little() {
        let late_ns = |look| if look % 11 == 0 { 7 * MS } else { 60_000 };
        let (_, off_ns) = watch(&regular(20 * MS), late_ns);
        assert!(off_ns.len() > 150, "{} {off_ns:?}", off_ns.len());
        let fine = off_ns.iter().filter(|off| off.unsigned_abs() <= FINE_NS / 2).count();
        assert!(fine + 4 >= off_ns.len(), "{off_ns:?}");
    }

    proptest! {
        #[test]
        fn no_refresh_is_placed_further_off_than_half_of_what_encloses_it(
            period_ns in MS..200 * MS, late_ns in prop::collection::vec(0..3 * MS, 1..50)
        ) {
            let late_ns = |look| late_ns[look as usize % late_ns.len()];
            let (_, off_ns) = watch(&regular(period_ns), late_ns);
            prop_assert!(off_ns.iter().all(|off| off.unsigned_abs() <= COARSE_NS / 2));
            let wide = off_ns.iter().filter(|off| off.unsigned_abs() > FINE_NS / 2 + 10_000).count();
            prop_assert!(wide <= 1000 / MOST_MISSED as usize, "{wide} of {}", off_ns.len());
        }
    }
}

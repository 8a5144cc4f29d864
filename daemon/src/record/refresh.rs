//! When the energy counter changes, found by looking at it as seldom as possible. Pure.
//!
//! The driver does not say when it refreshes the counter. A change lies between the last look that found
//! the old reading and the first that found the new one, and is taken to be in the middle of the two, so
//! that looking late does not shift all times one way. Where the two are far apart, because the thread
//! slept too long, the reading is not used: the next one covers its time as well.

use crate::record::curve::Knot;

/// A change is known well enough when two looks so far apart enclose it.
const FINE_NS: u64 = 1_000_000;

/// How often to look while the rhythm of the counter is not known.
const SEARCH_NS: u64 = 500_000;

/// How often to look around the time at which a change is expected.
const EXPECT_NS: u64 = 200_000;

/// How long before that to begin.
const MARGIN_NS: u64 = 700_000;

/// How long after that to go on.
const OVERDUE_NS: u64 = 2_000_000;

/// After so many changes in a row that were not well enough known, the rhythm is searched for again, and
/// less is good enough for once: over so long a time, being off by a little matters little.
const MOST_MISSED: u32 = 8;
const COARSE_NS: u64 = 8_000_000;

/// What is known of the refreshing of one counter.
#[derive(Clone, Debug, Default)]
pub struct Refresh {
    /// The newest reading, and the last time at which it was certainly still that.
    newest: Option<(f64, u64)>,
    /// The last change that is known well enough.
    changed_ns: Option<u64>,
    period_ns: Option<u64>,
    missed: u32,
}

/// What a look has brought.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Look {
    /// The counter has not changed.
    Same,
    /// It has, at some time.
    Changed,
    /// It has, at this time.
    Refreshed(Knot),
}

impl Refresh {
    /// Takes in a reading that was asked for at `asked_ns` and had come by `got_ns`.
    pub fn looked(&mut self, asked_ns: u64, got_ns: u64, energy_j: f64) -> Look {
        let Some((former_j, same_ns)) = self.newest.replace((energy_j, asked_ns)) else {
            return Look::Same;
        };
        if former_j == energy_j {
            return Look::Same;
        }
        let at_ns = same_ns.midpoint(got_ns);
        let enclosed_ns = got_ns.saturating_sub(same_ns);
        if enclosed_ns <= FINE_NS {
            self.learn(at_ns);
            return Look::Refreshed(Knot { at_ns, energy_j });
        }
        self.missed += 1;
        if self.missed < MOST_MISSED {
            return Look::Changed;
        }
        (self.changed_ns, self.period_ns) = (None, None);
        if enclosed_ns > COARSE_NS {
            return Look::Changed;
        }
        self.missed = 0;
        Look::Refreshed(Knot { at_ns, energy_j })
    }

    fn learn(&mut self, at_ns: u64) {
        self.missed = 0;
        let Some(changed_ns) = self.changed_ns.replace(at_ns) else { return };
        let passed_ns = at_ns.saturating_sub(changed_ns).max(1);
        self.period_ns = Some(match self.period_ns {
            Some(period_ns) if passed_ns > period_ns / 2 => {
                // Some changes in between may have been missed.
                let periods = (passed_ns + period_ns / 2) / period_ns;
                (7 * period_ns + passed_ns / periods) / 8
            }
            _ => passed_ns,
        });
    }

    /// When to look next.
    #[must_use]
    pub fn look_at_ns(&self, now_ns: u64) -> u64 {
        let Some((changed_ns, period_ns)) = self.changed_ns.zip(self.period_ns) else {
            return now_ns + SEARCH_NS;
        };
        let passed_ns = now_ns.saturating_sub(changed_ns);
        let expected = (passed_ns.saturating_sub(OVERDUE_NS) / period_ns + 1) * period_ns;
        let begin_ns = changed_ns + expected.saturating_sub(MARGIN_NS);
        begin_ns.max(now_ns + EXPECT_NS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// Looks for a second at a counter of that rhythm, each time so much later than asked for. Returns
    /// the looks, and how far off each refresh was placed.
    fn watch(period_ns: u64, late_ns: impl Fn(u64) -> u64) -> (u64, Vec<i64>) {
        let mut refresh = Refresh::default();
        let (mut now_ns, mut looks, mut off_ns) = (1000 * MS, 0, Vec::new());
        while now_ns < 2000 * MS {
            let count = now_ns / period_ns;
            if let Look::Refreshed(knot) = refresh.looked(now_ns, now_ns + 10_000, count as f64) {
                assert_eq!(knot.energy_j, count as f64);
                off_ns.push(knot.at_ns as i64 - (count * period_ns) as i64);
            }
            now_ns = refresh.look_at_ns(now_ns + 10_000) + late_ns(looks);
            looks += 1;
        }
        (looks, off_ns)
    }

    #[test]
    fn few_looks_find_nearly_every_refresh_of_a_regular_counter() {
        for period_ms in [10, 20, 25, 100] {
            let (looks, off_ns) = watch(period_ms * MS, |look| 50_000 + look * 7919 % 30_000);
            let refreshes = 1000 / period_ms;
            assert!(off_ns.len() as u64 + 2 >= refreshes, "{period_ms}: {}", off_ns.len());
            assert!(looks <= 8 * refreshes + 400, "{looks} looks for {refreshes} refreshes");
            let mean = off_ns.iter().sum::<i64>() / off_ns.len() as i64;
            assert!(mean.abs() < 100_000, "{mean} ns");
        }
    }

    #[test]
    fn a_thread_that_always_sleeps_too_long_still_reads_something() {
        let (_, off_ns) = watch(20 * MS, |_| 5 * MS);
        assert!(off_ns.len() >= 5, "{}", off_ns.len());
        assert!(off_ns.iter().all(|off| off.unsigned_abs() <= COARSE_NS / 2), "{off_ns:?}");
    }

    #[test]
    fn a_thread_that_sleeps_too_long_at_times_misses_readings_and_misplaces_none() {
        let (_, off_ns) = watch(20 * MS, |look| if look % 5 == 0 { 7 * MS } else { 60_000 });
        assert!(off_ns.len() > 5, "{}", off_ns.len());
        let fine = off_ns.iter().filter(|off| off.unsigned_abs() <= FINE_NS / 2).count();
        assert!(fine + 4 >= off_ns.len(), "{off_ns:?}");
    }

    proptest! {
        #[test]
        fn no_refresh_is_placed_further_off_than_half_of_what_encloses_it(
            period_ns in MS..200 * MS, late_ns in prop::collection::vec(0..3 * MS, 1..50)
        ) {
            let (_, off_ns) = watch(period_ns, |look| late_ns[look as usize % late_ns.len()]);
            prop_assert!(off_ns.iter().all(|off| off.unsigned_abs() <= COARSE_NS / 2));
            let wide = off_ns.iter().filter(|off| off.unsigned_abs() > FINE_NS / 2 + 10_000).count();
            prop_assert!(wide <= 1000 / MOST_MISSED as usize, "{wide} of {}", off_ns.len());
        }
    }
}

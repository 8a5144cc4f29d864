//! Finds the times at which the energy counter changes, with as few reads as possible. Pure.
//!
//! The driver does not report when it refreshes the counter. A change lies between the last read
//! that returned the old value and the first that returned the new one. If the counter is regular,
//! its rhythm gives the time in between; otherwise the middle is used, so that late reads do not
//! shift all times in one direction. If the two reads are far apart, because the thread slept too
//! long or too much was read already, and there is no rhythm, the reading is discarded: the next one
//! covers its time as well, until that time is so long that the error matters little.

use std::mem;

use super::rhythm::Rhythm;

/// A change is known precisely enough when the reads around it are at most this far apart, or this part
/// of the time since the change before, up to the roughest. What four reads take is added: a read takes
/// 3 ms on an H100, and up to 11 ms near a change.
const FINE_NS: u64 = 1_000_000;
const FINE_PART: u64 = 20;
const ROUGHEST_NS: u64 = 5_000_000;

/// Time between reads while the rhythm of the counter is not known.
const SEARCH_NS: u64 = 500_000;

/// Time between reads around an expected change.
const EXPECT_NS: u64 = 200_000;

/// How long before an expected change to start reading. The dither varies it: if every change came
/// equally long after a read, all times would be too late, or all too early.
const MARGIN_NS: u64 = 600_000;
const DITHER_NS: u64 = 300_000;
/// A change that came before the first read doubles the margin for the next, up to this many times.
const MOST_DOUBLED: u32 = 3;
/// Each dither differs from the last by this share: multiples of the golden ratio fill the range
/// evenly.
const DITHER_STEP: f64 = 0.618_033_988_749_895;

/// How long after an expected change to continue reading.
const OVERDUE_NS: u64 = 2_000_000;

/// After this many imprecise changes in a row, the rhythm is searched for again, and a less precise
/// change is accepted once: within this time, or within this part of the time since the last one.
const MOST_MISSED: u32 = 8;
const COARSE_NS: u64 = 8_000_000;
const COARSE_PART: u64 = 32;

/// While the rhythm is known, one read is enough, this long after the time at which an expected change
/// has certainly been, and only one change in this many is enclosed, to confirm the rhythm.
const AFTER_NS: u64 = 200_000;
const CONFIRMED_EVERY: u32 = 8;

/// How far reads for one change may overdraw the budget of the GPU's readers: enough to learn a
/// rhythm without a pause, which would hide how many changes there were.
const CREDIT_NS: u64 = 45_000_000_000;

/// While the rhythm is known, a read pauses for this many times its own price at most: so the reads
/// that have found the rhythm are paid back.
const PAYS_BACK: u64 = 2;

/// A reading of the counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Knot {
    /// When the counter changed to it (`CLOCK_MONOTONIC`, ns).
    pub at_ns: u64,
    /// What it showed, in joules.
    pub energy_j: f64,
}

/// The state of one counter's refreshing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refresh {
    /// The newest reading, and the last time at which it was certainly current.
    newest: Option<(f64, u64)>,
    /// When the last change was whose time is known; before that, the first reading.
    placed_ns: u64,
    /// When the last change was seen.
    changed_ns: u64,
    rhythm: Rhythm,
    dither: f64,
    /// How long a read takes, without the time by which one took much longer than the one before.
    read_ns: u64,
    missed: u32,
    /// The last read was to find a change, and did not.
    is_looking: bool,
    /// Changes since the last one that two reads enclosed.
    unconfirmed: u32,
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
    /// Begins anew after a pause, with the rhythm that was known before it, still to be confirmed.
    pub(crate) fn resume(&mut self) {
        let known = Some(mem::take(&mut self.rhythm));
        let rhythm = known.filter(Rhythm::is_trusted).unwrap_or_default();
        *self = Self { rhythm, unconfirmed: CONFIRMED_EVERY, ..Self::default() };
    }

    /// Takes a reading that was requested at `asked_ns` and had arrived by `got_ns`.
    pub(crate) fn looked(&mut self, asked_ns: u64, got_ns: u64, energy_j: f64) -> Look {
        let most_ns = self.read_ns.saturating_add(self.read_ns / 4).saturating_add(FINE_NS);
        self.read_ns = got_ns.saturating_sub(asked_ns).min(most_ns);
        let Some((former_j, same_ns)) = self.newest.replace((energy_j, asked_ns)) else {
            (self.placed_ns, self.changed_ns) = (asked_ns, asked_ns);
            return Look::Same;
        };
        let known_ns = self.rhythm.before(asked_ns, got_ns).filter(|known_ns| *known_ns > same_ns);
        self.is_looking = former_j == energy_j;
        if self.is_looking {
            if known_ns.is_some_and(|known_ns| known_ns > same_ns.saturating_add(FINE_NS)) {
                // It should have changed. There is no rhythm, or it is no longer this one.
                self.rhythm = Rhythm::default();
            }
            return Look::Same;
        }
        let enclosed_ns = got_ns.saturating_sub(same_ns);
        let unchanged_ns = same_ns.saturating_sub(self.changed_ns);
        self.changed_ns = got_ns;
        if enclosed_ns <= fine_ns(unchanged_ns).saturating_add(self.read_ns.saturating_mul(4)) {
            (self.missed, self.unconfirmed) = (0, 0);
            self.dither = (self.dither + DITHER_STEP).fract();
            let at_ns = self.rhythm.learn(same_ns, got_ns);
            return self.placed(at_ns, energy_j);
        }
        self.rhythm.pass();
        self.unconfirmed = self.unconfirmed.saturating_add(1);
        if let Some(at_ns) = known_ns {
            return self.placed(at_ns, energy_j);
        }
        self.missed = self.missed.saturating_add(1);
        let most_ns = self
            .rhythm
            .last_and_period_ns()
            .map_or(COARSE_NS, |(_, period_ns)| period_ns.saturating_add(period_ns / 2));
        let hides_several = enclosed_ns > most_ns && !self.rhythm.is_trusted();
        if hides_several || self.missed >= MOST_MISSED {
            self.rhythm = Rhythm::default();
        }
        let at_ns = same_ns.midpoint(got_ns);
        let coarse_ns = COARSE_NS.max(at_ns.saturating_sub(self.placed_ns) / COARSE_PART);
        if self.missed < MOST_MISSED || enclosed_ns > coarse_ns {
            return Look::Changed;
        }
        self.missed = 0;
        self.placed(at_ns, energy_j)
    }

    fn placed(&mut self, at_ns: u64, energy_j: f64) -> Look {
        self.placed_ns = at_ns;
        Look::Refreshed(Knot { at_ns, energy_j })
    }

    /// When to read next, if the readers of the GPU owe it a pause, so much of it for the last read.
    pub(crate) fn look_at_ns(&self, now_ns: u64, owed_ns: u64, price_ns: u64) -> u64 {
        let is_trusted = self.rhythm.is_trusted();
        let credit_ns = if self.is_looking || !is_trusted { CREDIT_NS } else { 0 };
        let longest_ns = if is_trusted { price_ns.saturating_mul(PAYS_BACK) } else { u64::MAX };
        let now_ns = now_ns.saturating_add(owed_ns.saturating_sub(credit_ns).min(longest_ns));
        let Some((changed_ns, period_ns)) = self.rhythm.last_and_period_ns() else {
            return now_ns.saturating_add(SEARCH_NS);
        };
        let passed_ns = now_ns.saturating_sub(changed_ns);
        if is_trusted && self.unconfirmed < CONFIRMED_EVERY {
            let next_ns = passed_ns.saturating_add(1).checked_next_multiple_of(period_ns);
            let after_ns = AFTER_NS.saturating_add(self.rhythm.near_ns() as u64);
            return changed_ns
                .saturating_add(next_ns.unwrap_or(passed_ns))
                .saturating_add(after_ns);
        }
        let reads_ns = self.read_ns.saturating_mul(2);
        let at_step =
            passed_ns.saturating_sub(reads_ns.saturating_add(OVERDUE_NS)).saturating_add(1);
        let expected = at_step.checked_next_multiple_of(period_ns).unwrap_or(at_step);
        let margin_ns = MARGIN_NS.saturating_add((self.dither * DITHER_NS as f64) as u64);
        let margin_ns = (margin_ns << self.missed.min(MOST_DOUBLED)).saturating_add(reads_ns);
        let begin_ns = changed_ns.saturating_add(expected.saturating_sub(margin_ns));
        begin_ns.max(now_ns.saturating_add(EXPECT_NS))
    }
}

/// How close the reads around a change must be, after this time without one.
fn fine_ns(unchanged_ns: u64) -> u64 {
    (unchanged_ns / FINE_PART).clamp(FINE_NS, ROUGHEST_NS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// Looks for a while at a counter that changes at these times, each time so much later than
    /// asked for. Returns the looks, and how far off each change was placed.
    fn watch(changes_ns: &[u64], late_ns: impl Fn(u64) -> u64) -> (u64, Vec<i64>) {
        watch_with(changes_ns, late_ns, 0)
    }

    /// As [`watch`], where each look has this price, as time in which no other one is paid for.
    fn watch_with(
        changes_ns: &[u64],
        late_ns: impl Fn(u64) -> u64,
        price_ns: u64,
    ) -> (u64, Vec<i64>) {
        let mut refresh = Refresh::default();
        let mut paid_at_ns = 0;
        let (mut now_ns, mut looks, mut off_ns) = (1000 * MS, 0, Vec::new());
        let mut placed_ns = now_ns;
        while now_ns < changes_ns[changes_ns.len() - 1] {
            let count = changes_ns.partition_point(|change_ns| *change_ns <= now_ns);
            if let Look::Refreshed(knot) = refresh.looked(now_ns, now_ns + 10_000, count as f64) {
                assert_eq!(knot.energy_j, count as f64);
                let off = knot.at_ns as i64 - changes_ns[count - 1] as i64;
                let covered_ns = knot.at_ns.saturating_sub(placed_ns);
                let most_off_ns = (COARSE_NS / 2).max(covered_ns / COARSE_PART / 2) + 10_000;
                assert!(off.unsigned_abs() <= most_off_ns, "{off} in {covered_ns}");
                placed_ns = knot.at_ns;
                off_ns.push(off);
            }
            paid_at_ns = paid_at_ns.max(now_ns) + price_ns;
            let owed_ns = paid_at_ns.saturating_sub(now_ns);
            now_ns = refresh.look_at_ns(now_ns + 10_000, owed_ns, price_ns) + late_ns(looks);
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
    fn few_looks_find_every_refresh_of_a_regular_counter_within_a_tenth_of_a_millisecond() {
        for period_ms in [10, 20, 25, 100] {
            let (looks, off_ns) = watch(&regular(period_ms * MS), a_little_late);
            assert!(off_ns.len() >= 197, "{period_ms}: {}", off_ns.len());
            assert!(looks <= 2 * 200 + 500, "{looks} looks");
            let soon = &off_ns[100..];
            assert!(soon.iter().all(|off| off.unsigned_abs() < 100_000), "{period_ms}: {soon:?}");
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
    fn dear_looks_are_made_seldom_and_place_a_change_as_well() {
        for (price_ms, found) in [(5, 100), (20, 30), (80, 1)] {
            let (looks, off_ns) = watch_with(&regular(20 * MS), a_little_late, price_ms * MS);
            let most = (4000 + CREDIT_NS / MS) / price_ms + 10;
            assert!(looks <= most, "{price_ms}: {looks} looks, at most {most}");
            assert!(off_ns.len() >= found, "{price_ms}: {}", off_ns.len());
            let coarse = off_ns.iter().filter(|off| off.unsigned_abs() > FINE_NS).count();
            assert!(coarse <= 1 + off_ns.len() / 8, "{price_ms}: {off_ns:?}");
        }
    }

    /// What reads of an H100's counter took, in us, 37 ms apart (`sim/facts/nvidia-h100.json`): those near a
    /// change of the counter take longer.
    const SLOW_READS_US: [u64; 27] = [
        3152, 3005, 3110, 4659, 3060, 3093, 3132, 6684, 3172, 10_716, 3186, 3398, 3185, 3130, 3256,
        3206, 3122, 3204, 3130, 3268, 3323, 3744, 3219, 4540, 3218, 3056, 3086,
    ];

    #[test]
    fn a_counter_whose_reads_take_milliseconds_is_read_several_times_a_second() {
        // One part of the time in so many, as the keeper allows it.
        const SHARE: u64 = 12;
        let (mut refresh, mut now_ns, mut paid_at_ns) = (Refresh::default(), 1000 * MS, 0);
        let (mut looks, mut off_ns) = (0, Vec::new());
        while now_ns < 121_000 * MS {
            let took_ns = SLOW_READS_US[looks % SLOW_READS_US.len()] * 1000;
            let (asked_ns, got_ns) = (now_ns, now_ns + took_ns);
            // The driver asks the GPU at some time within the call.
            let count = (asked_ns + took_ns / 2) / (100 * MS);
            if let Look::Refreshed(knot) = refresh.looked(asked_ns, got_ns, count as f64) {
                off_ns.push(knot.at_ns as i64 - (count * 100 * MS) as i64);
            }
            paid_at_ns = paid_at_ns.max(asked_ns) + took_ns * SHARE;
            let owed_ns = paid_at_ns.saturating_sub(got_ns);
            now_ns = refresh.look_at_ns(got_ns, owed_ns, took_ns * SHARE).max(got_ns) + 60_000;
            looks += 1;
        }
        assert!(off_ns.len() >= 1000, "{} of 1200 changes", off_ns.len());
        let wide = off_ns.iter().filter(|off| off.unsigned_abs() > 5 * MS).count();
        assert!(wide <= 10, "{wide} of {}: {off_ns:?}", off_ns.len());
    }

    #[test]
    fn a_counter_without_a_rhythm_is_looked_at_within_the_budget() {
        let mut at_ns = 1000 * MS;
        let erratic = (0..1000u64).map(|number| {
            at_ns += 5 * MS + number * 7919 % 31 * MS;
            at_ns
        });
        let erratic: Vec<_> = erratic.collect();
        let (looks, off_ns) = watch_with(&erratic, a_little_late, 2_500_000);
        let seconds = (erratic[erratic.len() - 1] - 1000 * MS) / 1_000_000_000;
        assert!(looks <= (seconds + CREDIT_NS / 1_000_000_000 + 1) * 400, "{looks} in {seconds} s");
        assert!(off_ns.len() >= 100, "{}", off_ns.len());
    }

    #[test]
    fn who_resumes_a_rhythm_does_not_wait_until_everything_is_paid_for() {
        let (mut refresh, mut now_ns, mut paid_at_ns) = (Refresh::default(), 1000 * MS, 0);
        let mut look = |refresh: &mut Refresh| {
            refresh.looked(now_ns, now_ns + 10_000, (now_ns / (20 * MS)) as f64);
            paid_at_ns = now_ns.max(paid_at_ns) + 10 * MS;
            let look_at_ns = refresh.look_at_ns(now_ns + 10_000, paid_at_ns - now_ns, 10 * MS);
            let pause_ns = look_at_ns - mem::replace(&mut now_ns, look_at_ns);
            (pause_ns, paid_at_ns.saturating_sub(look_at_ns))
        };
        while !refresh.rhythm.is_trusted() {
            look(&mut refresh);
        }
        refresh.resume();
        let (pause_ns, owed_ns) = look(&mut refresh);
        assert!(owed_ns > 500 * MS && pause_ns <= 40 * MS, "{pause_ns} ns, {owed_ns} ns owed");
    }

    #[test]
    fn a_slow_counter_is_learned_by_a_thread_that_is_a_little_late_each_time() {
        let late_ns = |look| look * 7919 % 23 * MS / 10;
        let (looks, off_ns) = watch_with(&regular(100 * MS), late_ns, 10 * MS);
        assert!(looks <= 7000 && off_ns.len() >= 60, "{looks} looks: {off_ns:?}");
        let coarse = off_ns.iter().filter(|off| off.unsigned_abs() > ROUGHEST_NS / 2).count();
        assert!(coarse <= off_ns.len() / 8, "{off_ns:?}");
    }

    #[test]
    fn two_changes_with_a_pause_between_them_are_no_rhythm() {
        let change_at = |refresh: &mut Refresh, at_ns: u64| {
            let energy_j = refresh.newest.map_or(0.0, |(energy_j, _)| energy_j);
            refresh.looked(at_ns - MS / 2, at_ns - MS / 2, energy_j);
            refresh.looked(at_ns, at_ns, energy_j + 1.0);
        };
        let mut refresh = Refresh::default();
        change_at(&mut refresh, 1000 * MS);
        let mut resumed = refresh.clone();
        resumed.resume();
        change_at(&mut resumed, 2400 * MS);
        assert!(resumed.look_at_ns(2400 * MS, 0, 0) <= 2401 * MS, "after a resumption");
        refresh.looked(2390 * MS, 2390 * MS, 7.0);
        change_at(&mut refresh, 2400 * MS);
        assert!(refresh.look_at_ns(2400 * MS, 0, 0) <= 2401 * MS, "after a late look");
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
        assert!(last.iter().all(|off| off.unsigned_abs() < 100_000), "{last:?}");
    }

    #[test]
    fn a_thread_that_always_sleeps_too_long_still_reads_something() {
        for (late_ms, found) in [(5, 20), (15, 5), (90, 1)] {
            let (_, off_ns) = watch(&regular(20 * MS), |_| late_ms * MS);
            assert!(off_ns.len() >= found, "{late_ms}: {}", off_ns.len());
        }
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
            let fine_ns = fine_ns(period_ns) / 2 + 10_000;
            let wide = off_ns.iter().filter(|off| off.unsigned_abs() > fine_ns).count();
            prop_assert!(wide <= 1000 / MOST_MISSED as usize, "{wide} of {}", off_ns.len());
        }
    }
}

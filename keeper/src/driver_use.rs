//! What a GPU's driver is asked, and how long its readers owe it a pause. It only counts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pfo_vocabulary::DriverUse;

use crate::published::now_ns;

const SECOND_NS: u64 = 1_000_000_000;

/// All readers of a GPU together make this many calls a second.
const READS_PER_SECOND: u64 = 400;

/// They spend one part in this many of the time in the driver, as they see it: a call that waits for a
/// processor seems long, too. An H100's energy counter takes 3 ms to read, and reads without a pause delay
/// neither kernels nor launches (docs/tested-on.md).
const READING_SHARE: u64 = 12;

/// No pause is longer, however long a call took.
const LONGEST_PAUSE_NS: u64 = 60 * SECOND_NS;

/// Rates are averages over about this time.
const AVERAGED_NS: f64 = 5e9;

/// The calls for one GPU.
#[derive(Clone, Debug, Default)]
pub struct Asked(Arc<Mutex<Account>>);

#[derive(Debug, Default)]
struct Account {
    /// When everything that was read is paid for.
    paid_at_ns: u64,
    /// What a call takes, without the time that its thread was kept from returning.
    call_ns: u64,
    /// Reads, the time in them, changes, the time in them; the older, the less they count.
    counted: [f64; 4],
    counted_at_ns: u64,
}

impl Asked {
    /// Reads something with this many calls.
    pub(crate) fn read<T>(&self, calls: u64, read: impl FnOnce() -> T) -> T {
        let began_ns = now_ns();
        let result = read();
        self.account().reads(calls, began_ns, now_ns());
        result
    }

    /// Counts a call that set a clock.
    pub(crate) fn changed(&self, took_ns: u64) {
        self.account().count(now_ns(), [0.0, 0.0, 1.0, took_ns as f64]);
    }

    /// When a reader that can wait may read again (`CLOCK_MONOTONIC`, ns).
    #[must_use]
    pub fn paid_at_ns(&self) -> u64 {
        self.account().paid_at_ns
    }

    /// How much the driver was asked lately.
    #[must_use]
    pub fn lately(&self) -> DriverUse {
        self.account().lately(now_ns())
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Account {
    fn reads(&mut self, calls: u64, began_ns: u64, ended_ns: u64) {
        let each_ns = ended_ns.saturating_sub(began_ns).checked_div(calls).unwrap_or(0);
        let longer_ns = (self.call_ns / 2).saturating_add(1000);
        self.call_ns = each_ns.min(self.call_ns.saturating_add(longer_ns));
        let dear_ns = self.call_ns.saturating_mul(READING_SHARE).max(SECOND_NS / READS_PER_SECOND);
        let paid_ns = self.paid_at_ns.max(began_ns).saturating_add(dear_ns.saturating_mul(calls));
        self.paid_at_ns = paid_ns.min(ended_ns.saturating_add(LONGEST_PAUSE_NS));
        let in_driver_ns = self.call_ns.saturating_mul(calls);
        self.count(ended_ns, [calls as f64, in_driver_ns as f64, 0.0, 0.0]);
    }

    fn count(&mut self, now_ns: u64, more: [f64; 4]) {
        let passed_ns = now_ns.saturating_sub(self.counted_at_ns) as f64;
        let left = (-passed_ns / AVERAGED_NS).exp();
        self.counted_at_ns = now_ns;
        self.counted.iter_mut().zip(more).for_each(|(sum, more)| *sum = *sum * left + more);
    }

    fn lately(&mut self, now_ns: u64) -> DriverUse {
        self.count(now_ns, [0.0; 4]);
        let [reads, reading_ns, changes, changing_ns] = self.counted.map(|sum| sum / AVERAGED_NS);
        DriverUse {
            reads_per_s: reads * 1e9,
            reading_share: reading_ns,
            changes_per_s: changes * 1e9,
            changing_share: changing_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn reads_are_paid_for_by_their_number_and_by_the_time_that_they_take() {
        let mut account = Account::default();
        account.reads(1, SECOND_NS, SECOND_NS + 1000);
        assert_eq!(account.paid_at_ns, SECOND_NS + SECOND_NS / READS_PER_SECOND);
        account.call_ns = MS;
        account.reads(4, SECOND_NS + MS, SECOND_NS + 5 * MS);
        let both_ns = SECOND_NS / READS_PER_SECOND + 4 * READING_SHARE * MS;
        assert_eq!(account.paid_at_ns, SECOND_NS + both_ns);
        account.reads(1, 9 * SECOND_NS, 9 * SECOND_NS);
        assert_eq!(account.paid_at_ns, 9 * SECOND_NS + SECOND_NS / READS_PER_SECOND, "no savings");
    }

    #[test]
    fn a_driver_that_took_forever_is_asked_again() {
        let mut account = Account { call_ns: u64::MAX, ..Account::default() };
        account.reads(1, 1, u64::MAX - LONGEST_PAUSE_NS);
        assert_eq!(account.paid_at_ns, u64::MAX);
        let mut account = Account::default();
        account.reads(u64::MAX, SECOND_NS, 2 * SECOND_NS);
        assert_eq!(account.paid_at_ns, 2 * SECOND_NS + LONGEST_PAUSE_NS);
    }

    #[test]
    fn a_thread_that_gives_way_does_not_make_its_calls_dear_and_a_slow_driver_does() {
        let price_ns = |often: u64| {
            let mut account = Account::default();
            for call in 0..200 {
                let took_ns = if call % often == often - 1 { 5 * MS } else { 20_000 };
                account.reads(1, (call + 1) * SECOND_NS, (call + 1) * SECOND_NS + took_ns);
            }
            account.paid_at_ns - 200 * SECOND_NS
        };
        assert!(price_ns(10) <= 2 * SECOND_NS / READS_PER_SECOND, "{} ns", price_ns(10));
        assert!(price_ns(1) >= READING_SHARE * 4 * MS, "{} ns", price_ns(1));
    }

    #[test]
    fn rates_are_averages_over_the_last_seconds() {
        let mut account = Account { call_ns: MS, ..Account::default() };
        for call in 0..6000 {
            account.reads(1, call * 10 * MS, call * 10 * MS + MS);
            account.count(call * 10 * MS + MS, [0.0, 0.0, 0.1, 5e4]);
        }
        let rates = account.lately(60 * SECOND_NS);
        let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.01;
        assert!(near(rates.reads_per_s, 100.0) && near(rates.reading_share, 0.1), "{rates:?}");
        assert!(near(rates.changes_per_s, 10.0) && near(rates.changing_share, 0.005), "{rates:?}");
        assert!(account.lately(120 * SECOND_NS).reads_per_s < 0.01, "a minute without a call");
    }
}

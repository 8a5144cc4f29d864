//! How long a GPU takes to run at another clock.

use serde::{Deserialize, Serialize};

use pfo_vocabulary::Mhz;

/// The most clocks for which times are given: more than any GPU has.
const MOST_CLOCKS: usize = 1024;

/// The longest time, in microseconds.
const LONGEST_US: u32 = 10_000_000;

/// How long after it was asked for one clock is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleTime {
    /// The SM clock.
    pub mhz: Mhz,
    /// Microseconds from the beginning of the set call.
    pub us: u32,
}

/// How long after they were asked for clocks are in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<SettleTime>")]
pub struct SettleTimes(Vec<SettleTime>);

/// Why numbers are no times of clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettleTimesError {
    /// Of no clock, or of more than any GPU has.
    #[error("settle times are given for 1 to {MOST_CLOCKS} clocks, not for {0}")]
    Clocks(usize),
    /// A clock that no GPU has, or that is not above the one before it.
    #[error("the settle time of {0} is given where a higher clock, of at most {max}, is due", max = Mhz::MAX)]
    Clock(Mhz),
    /// A time that no clock takes.
    #[error("a clock of {0} is said to settle for {1} µs; that takes at most {LONGEST_US} µs")]
    Time(Mhz, u32),
}

impl SettleTimes {
    /// The times of these clocks, which must rise.
    ///
    /// # Errors
    /// The first number that cannot be true.
    pub fn new(times: Vec<SettleTime>) -> Result<Self, SettleTimesError> {
        if !(1..=MOST_CLOCKS).contains(&times.len()) {
            return Err(SettleTimesError::Clocks(times.len()));
        }
        let mut before = Mhz(0);
        for SettleTime { mhz, us } in &times {
            if *mhz <= before || !mhz.is_plausible() {
                return Err(SettleTimesError::Clock(*mhz));
            }
            if *us > LONGEST_US {
                return Err(SettleTimesError::Time(*mhz, *us));
            }
            before = *mhz;
        }
        Ok(Self(times))
    }

    /// The same time for every clock, of at most ten seconds.
    #[must_use]
    pub fn always(ns: u64) -> Self {
        let us = u32::try_from(ns / 1000).unwrap_or(u32::MAX).min(LONGEST_US);
        Self(vec![SettleTime { mhz: Mhz(1), us }])
    }

    /// Nanoseconds until a clock is in force: those of the nearest clock that is known.
    #[must_use]
    pub fn ns_to(&self, clock: Mhz) -> u64 {
        let nearest = self.0.iter().min_by_key(|time| time.mhz.0.abs_diff(clock.0));
        nearest.map_or(0, |time| u64::from(time.us).saturating_mul(1000))
    }

    /// The longest of the times, in nanoseconds.
    #[must_use]
    pub fn longest_ns(&self) -> u64 {
        self.0.iter().map(|time| u64::from(time.us).saturating_mul(1000)).max().unwrap_or(0)
    }
}

impl TryFrom<Vec<SettleTime>> for SettleTimes {
    type Error = SettleTimesError;

    fn try_from(times: Vec<SettleTime>) -> Result<Self, SettleTimesError> {
        Self::new(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;

    fn decoded(times: &[(u32, u32)]) -> Result<SettleTimes, String> {
        let times: Vec<_> =
            times.iter().map(|&(mhz, us)| SettleTime { mhz: Mhz(mhz), us }).collect();
        let mut bytes = Vec::new();
        codec::append(&times, &mut bytes).unwrap();
        codec::decode(&bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn a_clock_that_is_not_known_takes_as_long_as_the_nearest_one() {
        let times = decoded(&[(600, 25_000), (900, 12_000), (1410, 9_000)]).unwrap();
        let ms = |mhz| times.ns_to(Mhz(mhz)) / 1_000_000;
        assert_eq!([210, 600, 745, 755, 1410, 1980].map(ms), [25, 25, 25, 12, 9, 9]);
        assert_eq!(times.longest_ns(), 25_000_000);
    }

    #[test]
    fn one_time_for_all_is_bounded_like_any_other() {
        assert_eq!(SettleTimes::always(15_000_000).ns_to(Mhz(1410)), 15_000_000);
        assert_eq!(SettleTimes::always(u64::MAX).ns_to(Mhz(210)), 10_000_000_000);
    }

    #[test]
    fn numbers_that_cannot_be_are_refused_where_they_are_decoded() {
        let many: Vec<_> = (1..=1025).map(|mhz| (mhz, 1)).collect();
        assert!(decoded(&many[..1024]).is_ok());
        let cases: [(&[(u32, u32)], &str); 6] = [
            (&[], "not for 0"),
            (&many, "not for 1025"),
            (&[(900, 1), (900, 2)], "settle time of 900 MHz"),
            (&[(0, 1)], "settle time of 0 MHz"),
            (&[(900, 1), (10_001, 2)], "of at most 10000 MHz"),
            (&[(900, 10_000_001)], "10000001 µs; that takes at most 10000000 µs"),
        ];
        for (times, part) in cases {
            let error = decoded(times).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}

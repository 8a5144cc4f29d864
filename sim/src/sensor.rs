//! When the energy counter looks: always, or for a part of the time, and then it takes what it sees
//! for the whole.

use crate::units::{MonotonicNs, Picojoules};

/// A sensor that looks at the beginning of every period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sensor {
    /// For how long, in ns.
    pub looks_ns: u64,
    /// Out of how long, in ns.
    pub period_ns: u64,
}

impl Sensor {
    /// One that never looks away.
    pub const ALWAYS: Self = Self { looks_ns: 1, period_ns: 1 };

    /// The next time after this one at which it begins or ends to look, if it ever does.
    pub(crate) fn next_change(self, time: MonotonicNs) -> Option<MonotonicNs> {
        if self.looks_ns >= self.period_ns {
            return None;
        }
        let into = time.0 % self.period_ns;
        let next = if into < self.looks_ns { self.looks_ns } else { self.period_ns };
        Some(MonotonicNs(time.0 - into + next))
    }

    /// What it makes of an energy that is drawn from a time on, until no later than its next change.
    pub(crate) fn counts(self, energy: Picojoules, from: MonotonicNs) -> Picojoules {
        match self {
            Self { looks_ns, period_ns } if looks_ns >= period_ns => energy,
            Self { looks_ns, period_ns } if from.0 % period_ns < looks_ns => {
                Picojoules(energy.0 * u128::from(period_ns) / u128::from(looks_ns.max(1)))
            }
            _ => Picojoules(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_time_sensor_takes_what_it_sees_for_all() {
        let sensor = Sensor { looks_ns: 25, period_ns: 100 };
        let energy = Picojoules(100);
        assert_eq!(sensor.counts(energy, MonotonicNs(200)), Picojoules(400));
        assert_eq!(sensor.counts(energy, MonotonicNs(225)), Picojoules(0));
        assert_eq!(sensor.next_change(MonotonicNs(200)), Some(MonotonicNs(225)));
        assert_eq!(sensor.next_change(MonotonicNs(225)), Some(MonotonicNs(300)));
        assert_eq!(Sensor::ALWAYS.counts(energy, MonotonicNs(7)), energy);
        assert_eq!(Sensor::ALWAYS.next_change(MonotonicNs(7)), None);
    }
}

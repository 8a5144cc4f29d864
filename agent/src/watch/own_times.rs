//! What a rank's instructions took and should have taken, added up by kind, and by clock. Pure.

use std::collections::BTreeMap;

use pfo_protocol::{Instruction, Mhz};

use crate::watch::stage_times::KINDS;

/// Sums over instructions of one kind, in nanoseconds. The peer reports the times, and they may be
/// anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// What they took.
    pub(crate) took_ns: u64,
    /// What they should have taken.
    pub(crate) should_ns: u64,
}

impl Taken {
    /// What came after an earlier reading.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            took_ns: self.took_ns.wrapping_sub(earlier.took_ns),
            should_ns: self.should_ns.wrapping_sub(earlier.should_ns),
        }
    }

    /// The share by which they took longer, if there were any.
    pub(crate) fn excess(self) -> Option<f64> {
        (self.should_ns > 0).then(|| self.took_ns as f64 / self.should_ns as f64 - 1.0)
    }
}

/// The sums of every kind at each requested clock. They have as many entries as the profile has
/// rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockTimes(BTreeMap<(Instruction, Mhz), Taken>);

impl ClockTimes {
    pub(crate) fn add(&mut self, instruction: Instruction, clock: Mhz, taken: Taken) {
        let sum = self.0.entry((instruction, clock)).or_default();
        sum.took_ns = sum.took_ns.wrapping_add(taken.took_ns);
        sum.should_ns = sum.should_ns.wrapping_add(taken.should_ns);
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        other.0.iter().for_each(|(&(kind, clock), &taken)| self.add(kind, clock, taken));
    }

    /// What came after an earlier reading.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let since = self.0.iter().map(|(of, taken)| {
            let before = earlier.0.get(of).copied().unwrap_or_default();
            (*of, taken.since(before))
        });
        Self(since.filter(|(_, taken)| taken.should_ns > 0).collect())
    }

    /// The sums of a kind by rising clock.
    pub(crate) fn of(&self, instruction: Instruction) -> impl Iterator<Item = (Mhz, Taken)> {
        let all = (instruction, Mhz(0))..=(instruction, Mhz(u32::MAX));
        self.0.range(all).map(|((_, clock), taken)| (*clock, *taken))
    }

    /// The share by which all of them took longer, if there were any.
    pub(crate) fn excess(&self) -> Option<f64> {
        let sum = self.0.values().fold(Taken::default(), |sum, taken| Taken {
            took_ns: sum.took_ns.saturating_add(taken.took_ns),
            should_ns: sum.should_ns.saturating_add(taken.should_ns),
        });
        sum.excess()
    }
}

/// The sums of every kind, by its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnTimes([Taken; KINDS]);

impl OwnTimes {
    pub(crate) fn add(&mut self, instruction: Instruction, took_ns: u64, should_ns: u64) {
        let sum = &mut self.0[instruction as usize];
        sum.took_ns = sum.took_ns.wrapping_add(took_ns);
        sum.should_ns = sum.should_ns.wrapping_add(should_ns);
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            sum.took_ns = sum.took_ns.wrapping_add(more.took_ns);
            sum.should_ns = sum.should_ns.wrapping_add(more.should_ns);
        }
    }

    /// What came after an earlier reading.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|kind| self.0[kind].since(earlier.0[kind])))
    }

    /// The sums over all kinds.
    pub(crate) fn total(&self) -> Taken {
        self.0.iter().fold(Taken::default(), |sum, taken| Taken {
            took_ns: sum.took_ns.saturating_add(taken.took_ns),
            should_ns: sum.should_ns.saturating_add(taken.should_ns),
        })
    }

    /// The sums of the kinds that there were.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = (Instruction, Taken)> {
        let kinds = Instruction::ALL.into_iter().zip(self.0);
        kinds.filter(|(_, taken)| taken.should_ns > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_since_is_known_by_kind_and_together() {
        let mut times = OwnTimes::default();
        times.add(Instruction::Forward, 500, 100);
        let earlier = times;
        times.add(Instruction::Forward, 110, 100);
        times.add(Instruction::Backward, 240, 200);
        let since = times.since(&earlier);
        let excess = |taken: Taken| (100.0 * taken.excess().unwrap()).round();
        let kinds: Vec<_> = since.kinds().map(|(kind, taken)| (kind, excess(taken))).collect();
        assert_eq!(kinds, [(Instruction::Forward, 10.0), (Instruction::Backward, 20.0)]);
        assert_eq!(excess(since.total()), 17.0);
        assert_eq!(Taken::default().excess(), None);
    }

    #[test]
    fn times_that_cannot_be_true_do_no_harm() {
        let mut times = OwnTimes::default();
        times.add(Instruction::Load, u64::MAX, 1);
        times.add(Instruction::Load, u64::MAX, 1);
        times.add(Instruction::Other, u64::MAX, u64::MAX);
        assert!(times.total().excess().is_some());
        assert!(OwnTimes::default().since(&times).total().excess().is_some());
    }
}

//! When a new clock was in force, from what the instructions around the change took. Pure.
//!
//! An instruction that ran at one clock for a part of its time and at another one for the rest took
//! a time between those that it takes at each of them. With the two known, that gives the part: of
//! `d`, which is `t0` at the former clock and `t1` at the new one, `(1 - d/t1) / (1/t0 - 1/t1)` was
//! at the former one. A change is in force at one moment. It is in the instruction before, if pfod
//! asked ahead, or in the one after; the other one has all of its time at its own clock.

use std::collections::{BTreeMap, VecDeque};

use pfo_protocol::{Instruction, Mhz, TapRecord};

use crate::watch::StageTimes;

/// The instruction before a change certainly runs at its own clock if that was requested this long
/// before it began.
const SURELY_SETTLED_NS: u64 = 100_000_000;

/// A change in a pause between two instructions that is longer is seen in neither of them.
const LONGEST_PAUSE_NS: u64 = 1_000_000;

/// Times at two clocks that differ by less do not tell the clocks apart.
const LEAST_DIFFERENCE: f64 = 0.04;

/// How many instructions make a typical time, at least, and of how many of the last it is the mean.
const LEAST_TYPICAL: u32 = 3;
const TYPICAL_OF: u32 = 50;

/// Kinds of instructions and clocks of which typical times are known.
const MOST_TYPICAL: usize = 1024;

/// No clock takes longer.
const LONGEST_SETTLE_NS: f64 = 2e9;

/// A change that was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Change {
    /// The new clock.
    pub(crate) to: Mhz,
    /// Nanoseconds from the set call until it was in force. It scatters around the truth, and may be
    /// negative.
    pub(crate) settle_ns: f64,
}

#[derive(Clone, Copy, Debug)]
struct Ran {
    instruction: Instruction,
    began_ns: u64,
    ended_ns: u64,
    clock: Mhz,
    asked_ns: u64,
}

/// Looks for changes among the instructions of one rank.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    last: VecDeque<Ran>,
    typical: Typical,
}

/// What instructions take now that are at one clock for sure: a profile is from another time, when
/// the GPU was cooler or its neighbours busier.
#[derive(Debug, Default)]
struct Typical(BTreeMap<(Instruction, Mhz), (f64, u32)>);

impl Typical {
    fn learn(&mut self, ran: &Ran) {
        if self.0.len() >= MOST_TYPICAL && !self.0.contains_key(&(ran.instruction, ran.clock)) {
            return;
        }
        let (mean_ns, count) = self.0.entry((ran.instruction, ran.clock)).or_default();
        *count = count.saturating_add(1).min(TYPICAL_OF);
        *mean_ns += (took_ns(ran) - *mean_ns) / f64::from(*count);
    }

    fn known(&self, instruction: Instruction, clock: Mhz) -> Option<f64> {
        let known = self.0.get(&(instruction, clock)).filter(|(_, count)| *count >= LEAST_TYPICAL);
        known.map(|(mean_ns, _)| *mean_ns)
    }

    /// What an instruction takes at a clock: as it was seen, or as it was profiled, by as much longer
    /// as it takes at the clock beside.
    fn ns(
        &self,
        times: &StageTimes,
        instruction: Instruction,
        [clock, beside]: [Mhz; 2],
    ) -> Option<f64> {
        if let Some(seen_ns) = self.known(instruction, clock) {
            return Some(seen_ns);
        }
        let profiled_ns = |clock| times.at(instruction, clock).map(|ns| ns as f64);
        let beside_ns = self.known(instruction, beside).zip(profiled_ns(beside));
        let longer = beside_ns.map_or(1.0, |(seen_ns, profiled_ns)| seen_ns / profiled_ns);
        Some(profiled_ns(clock)? * longer)
    }
}

impl Changes {
    /// Takes what came next; `times` are those of the rank's stage.
    pub(crate) fn take(&mut self, record: &TapRecord, times: &StageTimes) -> Option<Change> {
        let &TapRecord::Ran { unit, began_ns, ended_ns, asked, locked, astray } = record else {
            return None;
        };
        let in_force = asked.zip(locked).filter(|(asked, (clock, _))| asked == clock && !astray);
        let Some((clock, (_, asked_ns))) = in_force else {
            self.last.clear();
            return None;
        };
        let instruction = unit.instruction;
        self.last.push_back(Ran { instruction, began_ns, ended_ns, clock, asked_ns });
        if self.last.len() > 3 {
            self.last.pop_front();
        }
        let [before, after, next] = self.last.make_contiguous() else { return None };
        if after.is_sure() && after.is_alone(next) {
            self.typical.learn(after);
        }
        between(before, after, next, |ran, clocks| self.typical.ns(times, ran.instruction, clocks))
    }
}

impl Ran {
    /// Whether its clock was in force when it began.
    fn is_sure(&self) -> bool {
        self.asked_ns.saturating_add(SURELY_SETTLED_NS) <= self.began_ns
    }

    /// Whether the clock of the next one was in force only after it ended.
    fn is_alone(&self, next: &Self) -> bool {
        next.asked_ns == self.asked_ns || next.asked_ns >= self.ended_ns
    }
}

/// The change between two instructions, if one can be seen; `next` is what ran after them. `time_ns`
/// is what one of them takes at the first of two clocks.
fn between(
    before: &Ran,
    after: &Ran,
    next: &Ran,
    time_ns: impl Fn(&Ran, [Mhz; 2]) -> Option<f64>,
) -> Option<Change> {
    let (from, to) = (before.clock, after.clock);
    let pause_ns = after.began_ns.checked_sub(before.ended_ns)?;
    if from == to || !before.is_sure() || !after.is_alone(next) || pause_ns > LONGEST_PAUSE_NS {
        return None;
    }
    let at_other_clock_ns = |ran: &Ran, other: Mhz| {
        let own_ns = time_ns(ran, [ran.clock, other])?;
        let other_ns = time_ns(ran, [other, ran.clock])?;
        let differs = (other_ns / own_ns - 1.0).abs() >= LEAST_DIFFERENCE;
        let part_ns = (1.0 - took_ns(ran) / own_ns) / (1.0 / other_ns - 1.0 / own_ns);
        (differs && part_ns.is_finite()).then_some(part_ns)
    };
    let early_ns = at_other_clock_ns(before, to)?;
    let late_ns = at_other_clock_ns(after, from)?;
    // A change that takes longer than the instruction after it shows in the one after that, too.
    let later_ns = match after.asked_ns == next.asked_ns && late_ns > 0.8 * took_ns(after) {
        true => at_other_clock_ns(next, from)?,
        false => 0.0,
    };
    let asked_ns = after.asked_ns as f64 - before.ended_ns as f64;
    let settle_ns = late_ns + later_ns - early_ns - asked_ns;
    (settle_ns.abs() <= LONGEST_SETTLE_NS).then_some(Change { to, settle_ns })
}

fn took_ns(ran: &Ran) -> f64 {
    ran.ended_ns.saturating_sub(ran.began_ns) as f64
}

#[cfg(test)]
mod tests {
    use pfo_planner::{Measurement, Profile};
    use pfo_protocol::{Stage, Unit};
    use proptest::prelude::*;

    use super::*;

    const MS: f64 = 1e6;
    /// What takes 40 ms at the high clock takes 60 ms at the low one.
    const CLOCKS: [(u32, f64); 2] = [(1400, 40.0), (700, 60.0)];

    fn times() -> StageTimes {
        let rows = CLOCKS.map(|(mhz, ms)| {
            let row = Measurement { frequency: Mhz(mhz), time_s: ms / 1e3, energy_j: 1.0 };
            (Stage(0), Instruction::Forward, row)
        });
        StageTimes::of(&Profile::from_measurements(rows).unwrap()).swap_remove(0)
    }

    /// Runs groups of four instructions at each clock in turn, where the clock of a group is asked
    /// for `ahead_ms` before the group before it ends and settles `settle_ms` later. Times have a
    /// relative error in turn. Returns every change that was found, in milliseconds.
    fn found(ahead_ms: f64, settle_ms: f64, error: f64) -> Vec<(u32, f64)> {
        let (times, mut changes) = (times(), Changes::default());
        let (mut now, mut found) = (1e9, Vec::new());
        let (mut clock, mut asked) = (0, 0.0);
        for group in 0..40 {
            let (next, mut next_asked) = ((group + 1) % 2, f64::INFINITY);
            for number in 0..4 {
                let exact = |mut at: f64| {
                    // Of the work that is left, each stretch does what its clock allows.
                    let settled = asked + settle_ms * MS;
                    let mut work = 1.0;
                    let (own, other) = (CLOCKS[clock].1 * MS, CLOCKS[1 - clock].1 * MS);
                    if at < settled && group > 0 {
                        let part = (settled - at).min(other);
                        work -= part / other;
                        at += part;
                    }
                    at + work.max(0.0) * own
                };
                let began = now;
                let mut ended = exact(began);
                if number == 3 {
                    next_asked = ended - ahead_ms * MS;
                    let next_settled = next_asked + settle_ms * MS;
                    if next_settled < ended {
                        let (own, other) = (CLOCKS[clock].1, CLOCKS[1 - clock].1);
                        ended = next_settled + (ended - next_settled) * other / own;
                    }
                }
                let noise = [1.0 + error, 1.0 - error][(group / 2 + number) % 2];
                let told = began + (ended - began) * noise;
                let mhz = Mhz(CLOCKS[clock].0);
                let record = TapRecord::Ran {
                    unit: Unit::new(Instruction::Forward, 0),
                    began_ns: began as u64,
                    ended_ns: told as u64,
                    asked: Some(mhz),
                    locked: Some((mhz, asked as u64)),
                    astray: false,
                };
                let change = changes.take(&record, &times);
                found.extend(change.map(|change| (change.to.0, change.settle_ns / MS)));
                now = told;
            }
            (clock, asked) = (next, next_asked);
        }
        found
    }

    #[test]
    fn a_change_is_seen_in_the_instruction_before_or_after_it() {
        for (ahead_ms, settle_ms) in [(0.0, 23.0), (15.0, 23.0), (15.0, 9.0), (20.0, 20.0)] {
            let found = found(ahead_ms, settle_ms, 0.0);
            assert!(found.len() >= 30, "{} changes", found.len());
            for (to, ms) in found {
                assert!((ms - settle_ms).abs() < 0.1, "{ahead_ms} {settle_ms}: {to} {ms}");
            }
        }
    }

    #[test]
    fn a_change_that_takes_longer_than_an_instruction_is_seen_in_two() {
        for (to, ms) in found(0.0, 75.0, 0.0) {
            assert!((ms - 75.0).abs() < 0.1, "{to} {ms}");
        }
    }

    #[test]
    fn noise_scatters_what_is_found_and_does_not_shift_it() {
        let found = found(0.0, 10.0, 0.01);
        let mean = found.iter().map(|(_, ms)| ms).sum::<f64>() / found.len() as f64;
        assert!((mean - 10.0).abs() < 1.0, "{mean}");
    }

    proptest! {
        #[test]
        fn no_times_of_a_peer_do_harm(
            ran in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()), 0..50),
        ) {
            let (times, mut changes) = (times(), Changes::default());
            for (began_ns, ended_ns, asked_ns, high) in ran {
                let clock = Mhz(CLOCKS[usize::from(high)].0);
                let record = TapRecord::Ran {
                    unit: Unit::new(Instruction::Forward, 0),
                    began_ns,
                    ended_ns,
                    asked: Some(clock),
                    locked: Some((clock, asked_ns)),
                    astray: false,
                };
                let change = changes.take(&record, &times);
                prop_assert!(change.is_none_or(|change| change.settle_ns.abs() <= LONGEST_SETTLE_NS));
            }
        }
    }
}

//! What the own times of the ranks say about the profile: which instructions are slow at every clock,
//! and which a limit holds back. Pure.
//!
//! A GPU that a limit holds back takes what was profiled at the clocks that it reaches, and no less
//! at any clock above. If what was measured at several clocks fits that better than one multiple of
//! all profiled times, the time follows for which the limit holds. So it does if only the highest
//! clock was measured, where there is no time to get back. Otherwise a multiple is the better guess:
//! the plan for it may ask for higher clocks, and what these take says more.

use std::collections::{BTreeMap, VecDeque};

use pfo_planner::{Condition, Conditions, Measurement, Profile};
use pfo_protocol::{Instruction, Mhz, Rank, SessionId, Stage};

use crate::straggler::SlowStages;
use crate::watch::own_times::{ClockTimes, Taken};
use crate::watch::rank_reading::RankReading;

/// A share by which times may differ from the profile without saying anything.
const LEAST: f64 = 0.01;

/// A limit has to explain what was measured this much better than a multiple.
const BETTER: f64 = 0.5;

/// Multiples beyond this are no instructions of the profile any more.
const MOST: f64 = 100.0;

/// Looks that are kept of a rank whose steps take long.
const MOST_LOOKS: usize = 64;

/// The newest steps of a job's ranks.
#[derive(Debug, Default)]
pub(crate) struct RecentTimes(BTreeMap<Rank, Recent>);

#[derive(Debug)]
struct Recent {
    stage: Stage,
    /// The session and the swap of all looks.
    of: (SessionId, u64),
    /// The step and the sums at each look, oldest first.
    looks: VecDeque<(u64, ClockTimes)>,
    /// What was measured under the swap before.
    before: ClockTimes,
}

impl Recent {
    /// What was measured since the oldest look.
    fn times(&self) -> ClockTimes {
        let ends = self.looks.front().zip(self.looks.back());
        ends.map(|(first, last)| last.1.since(&first.1)).unwrap_or_default()
    }

    /// The same with what the swap before says about other clocks, if it was as slow then.
    fn more_times(&self) -> ClockTimes {
        let mut times = self.times();
        let is_slow = |times: &ClockTimes| times.excess().is_some_and(|excess| excess > LEAST);
        if is_slow(&times) && is_slow(&self.before) {
            times.add_all(&self.before);
        }
        times
    }
}

impl RecentTimes {
    /// Adds what the ranks have done since the last look, and forgets what is older than some steps.
    pub(crate) fn look(
        &mut self,
        readings: &[RankReading],
        steps: impl Fn(Rank) -> u32,
        clocks: impl Fn(&RankReading) -> ClockTimes,
    ) {
        self.0.retain(|rank, _| readings.iter().any(|reading| reading.rank == *rank));
        for reading in readings {
            let of = (reading.session, reading.swap);
            let begun =
                |before| Recent { stage: reading.stage, of, looks: VecDeque::new(), before };
            let recent = self.0.entry(reading.rank).or_insert_with(|| begun(ClockTimes::default()));
            if recent.of != of {
                *recent = begun(recent.times());
            }
            recent.looks.push_back((reading.step, clocks(reading)));
            let steps = steps(reading.rank);
            // Of the looks at one step, the first one is where the steps after it begin.
            let is_old = |looks: &VecDeque<(u64, ClockTimes)>| {
                let after =
                    |place| looks.get(place).map(|(step, _)| step.saturating_add(u64::from(steps)));
                let are_passed = after(0) < Some(reading.step)
                    && after(1).is_some_and(|next| next <= reading.step);
                looks.len() > MOST_LOOKS || are_passed
            };
            while is_old(&recent.looks) {
                recent.looks.pop_front();
            }
        }
    }

    /// The stages that take less than was profiled by more than a share, each with the (negative)
    /// share by which they take longer.
    pub(super) fn faster_stages(&self, share: f64) -> SlowStages {
        let stages = self.slowest().into_iter().map(|(stage, (excess, _))| (stage, excess));
        stages.filter(|(_, excess)| *excess < -share).collect()
    }

    /// The conditions of every stage, by its slowest rank on this node.
    pub(crate) fn conditions(&self, profile: &Profile) -> Conditions {
        let of_stage = |(stage, (_, times)): (Stage, (f64, ClockTimes))| {
            Instruction::ALL.into_iter().filter_map(move |kind| {
                let measured: Vec<_> = times.of(kind).collect();
                Some(((stage, kind), condition(profile.table(stage, kind), &measured)?))
            })
        };
        self.slowest().into_iter().flat_map(of_stage).collect()
    }

    /// The newest steps of each stage's slowest rank on this node, and the share by which its
    /// instructions took longer.
    fn slowest(&self) -> BTreeMap<Stage, (f64, ClockTimes)> {
        let mut slowest: BTreeMap<Stage, (f64, ClockTimes)> = BTreeMap::new();
        for recent in self.0.values() {
            let Some(excess) = recent.times().excess() else { continue };
            let known = slowest.get(&recent.stage);
            if known.is_none_or(|(known, _)| *known < excess) {
                slowest.insert(recent.stage, (excess, recent.more_times()));
            }
        }
        slowest
    }
}

/// The condition of an instruction, by what it took at each clock; none if it is as profiled.
fn condition(table: &[Measurement], measured: &[(Mhz, Taken)]) -> Option<Condition> {
    let (took, should) = measured.iter().fold((0.0, 0.0), |(took, should), (_, taken)| {
        (took + taken.took_ns as f64, should + taken.should_ns as f64)
    });
    let factor = took / should;
    if !(1.0 / MOST..MOST).contains(&factor) || (factor - 1.0).abs() < LEAST {
        return None;
    }
    let time_s = |clock: Mhz| {
        let place = table.binary_search_by_key(&clock, |row| row.frequency).ok()?;
        Some(table[place].time_s)
    };
    // What an instruction took at each clock, what it should have taken, and how much that weighs.
    let times = measured.iter().map(|&(clock, taken)| {
        let should_s = time_s(clock)?;
        Some([should_s * (1.0 + taken.excess()?), should_s, taken.should_ns as f64 / should_s])
    });
    let times: Vec<[f64; 3]> = times.collect::<Option<_>>()?;
    let distance = |expected_s: &dyn Fn(f64) -> f64| {
        let distance =
            |[took_s, should_s, weight]: [f64; 3]| weight * (took_s - expected_s(should_s)).abs();
        times.iter().copied().map(distance).sum::<f64>()
    };
    let slowed = distance(&|should_s| factor * should_s);
    let held =
        times.iter().map(|&[took_s, ..]| (distance(&|should_s| should_s.max(took_s)), took_s));
    let (held, held_s) = held.min_by(|a, b| a.0.total_cmp(&b.0))?;
    let is_at_highest = measured.len() == 1 && measured.last()?.0 == table.last()?.frequency;
    match factor > 1.0 && (held < BETTER * slowed || is_at_highest) {
        true => Some(Condition::Held(held_s)),
        false => Some(Condition::Slowed(factor)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::own_times::OwnTimes;

    /// Half of the time at 1400 MHz depends on the clock.
    fn table() -> Vec<Measurement> {
        let row =
            |mhz: u32| Measurement { frequency: Mhz(mhz), time_s: time_s(mhz), energy_j: 10.0 };
        (7..=14).map(|clock| row(100 * clock)).collect()
    }

    /// What was measured at some clocks, if it took this multiple of the profiled time.
    fn measured(clocks: &[u32], factor: impl Fn(u32) -> f64) -> Vec<(Mhz, Taken)> {
        let taken = |&clock: &u32| {
            let should_ns = 1_000_000;
            let took_ns = (factor(clock) * should_ns as f64) as u64;
            (Mhz(clock), Taken { took_ns, should_ns })
        };
        clocks.iter().map(taken).collect()
    }

    fn reading() -> RankReading {
        RankReading {
            rank: Rank(0),
            stage: Stage(0),
            session: SessionId(1),
            swap: 1,
            step: 0,
            own_times: OwnTimes::default(),
            window: None,
        }
    }

    fn time_s(clock: u32) -> f64 {
        0.05 + 70.0 / f64::from(clock)
    }

    fn held_at(held: u32) -> impl Fn(u32) -> f64 {
        move |clock| time_s(clock.min(held)) / time_s(clock)
    }

    #[test]
    fn one_multiple_at_every_clock_is_a_slow_gpu() {
        for factor in [0.8, 1.15, 2.0] {
            let found = condition(&table(), &measured(&[900, 1200, 1400], |_| factor));
            let Some(Condition::Slowed(found)) = found else { panic!("{found:?}") };
            assert!((found - factor).abs() < 1e-3, "{found}");
        }
        assert_eq!(condition(&table(), &measured(&[900, 1400], |_| 1.005)), None);
    }

    #[test]
    fn a_gpu_that_is_slow_only_above_a_clock_is_held_there_also_below_all_that_were_profiled() {
        for held in [400, 800, 1000, 1200] {
            let found = condition(&table(), &measured(&[700, 900, 1100, 1400], held_at(held)));
            let Some(Condition::Held(found)) = found else { panic!("{held}: {found:?}") };
            assert!((found / time_s(held) - 1.0).abs() < 1e-3, "{held}: {found}");
        }
    }

    #[test]
    fn what_was_measured_at_one_clock_says_of_a_limit_only_that_there_is_no_higher_one() {
        let found = condition(&table(), &measured(&[1300], held_at(1000)));
        assert!(matches!(found, Some(Condition::Slowed(_))), "{found:?}");
        let found = condition(&table(), &measured(&[1400], held_at(1000)));
        assert!(matches!(found, Some(Condition::Held(_))), "{found:?}");
    }

    #[test]
    fn what_a_swap_shows_about_other_clocks_is_not_forgotten_while_the_rank_is_slow() {
        let profile = Profile::from_measurements(
            table().into_iter().map(|row| (Stage(0), Instruction::Forward, row)),
        );
        let profile = profile.unwrap();
        let mut reading = reading();
        let (mut recent, mut sums) = (RecentTimes::default(), ClockTimes::default());
        let mut look = |swap, clock: u32| {
            for _ in 0..6 {
                (reading.swap, reading.step) = (swap, reading.step + 1);
                for (clock, taken) in measured(&[clock], held_at(800)) {
                    sums.add(Instruction::Forward, clock, taken);
                }
                recent.look(&[reading], |_| 3, |_| sums.clone());
            }
            recent.conditions(&profile)[&(Stage(0), Instruction::Forward)]
        };
        assert!(matches!(look(1, 1200), Condition::Slowed(_)));
        assert!(matches!(look(2, 1300), Condition::Held(_)));
    }

    #[test]
    fn the_last_step_counts_from_its_first_look_on() {
        let mut reading = reading();
        let (mut recent, mut sums) = (RecentTimes::default(), ClockTimes::default());
        // The first half of a step takes twice its time, the second half what it should.
        for (step, factor) in [(1, 1), (1, 1), (2, 2), (2, 1), (3, 1)] {
            reading.step = step;
            recent.look(&[reading], |_| 1, |_| sums.clone());
            let (took_ns, should_ns) = (factor * 1_000_000, 1_000_000);
            sums.add(Instruction::Forward, Mhz(1000), Taken { took_ns, should_ns });
        }
        let (excess, _) = recent.slowest()[&Stage(0)];
        assert!((excess - 0.5).abs() < 1e-12, "{excess}");
    }

    #[test]
    fn times_that_cannot_be_true_are_no_condition() {
        for factor in [0.0, 1e-9, 1e9] {
            assert_eq!(condition(&table(), &measured(&[1000, 1400], |_| factor)), None);
        }
        assert_eq!(condition(&table(), &[]), None);
    }
}

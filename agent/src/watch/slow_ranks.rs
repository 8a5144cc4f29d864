//! Which ranks of a job are slow by themselves: their instructions take longer than profiled at the
//! requested clocks, step after step, as when heat or a power limit holds a GPU back.

use std::collections::{BTreeMap, BTreeSet};

use pfo_protocol::Rank;

use crate::straggler::SlowStages;
use crate::watch::deviation::{Deviation, Limit, Turn};
use crate::watch::rank_reading::RankReading;

/// Steps in a row before a rank is slow whose GPU a power limit holds, as the driver says: the reason is known,
/// and a controller may move that limit every few seconds.
const STEPS_UNDER_A_LIMIT: u32 = 1;

/// The ranks of a job on this node.
#[derive(Debug, Default)]
pub(crate) struct SlowRanks {
    seen: BTreeMap<Rank, RankReading>,
    deviations: BTreeMap<Rank, Deviation>,
    /// Those whose GPU a power limit has held since they seemed to be slow.
    limited: BTreeSet<Rank>,
}

impl SlowRanks {
    /// Continues from stages that an earlier agent found slow.
    pub(crate) fn again(readings: &[RankReading], found: &SlowStages) -> Self {
        let known = |reading: &RankReading| {
            Some((reading.rank, Deviation::begun(*found.get(&reading.stage)?)))
        };
        Self { deviations: readings.iter().filter_map(known).collect(), ..Self::default() }
    }

    /// Adds what the ranks have done since the last look. Returns the turns, each with its rank.
    pub(crate) fn look(&mut self, readings: &[RankReading], limit: Limit) -> Vec<(Rank, Turn)> {
        let is_there = |rank: &Rank| readings.iter().any(|reading| reading.rank == *rank);
        self.seen.retain(|rank, _| is_there(rank));
        self.deviations.retain(|rank, _| is_there(rank));
        self.limited.retain(is_there);
        readings.iter().filter_map(|now| Some((now.rank, self.look_at(now, limit)?))).collect()
    }

    fn look_at(&mut self, now: &RankReading, limit: Limit) -> Option<Turn> {
        let went_on = |before: &&RankReading| {
            (before.session, before.swap) == (now.session, now.swap) && before.step <= now.step
        };
        let Some(before) = self.seen.get(&now.rank).filter(went_on) else {
            self.seen.insert(now.rank, *now);
            return None;
        };
        let steps = u32::try_from(now.step.saturating_sub(before.step)).unwrap_or(u32::MAX);
        let excess = now.own_times.since(&before.own_times).total().excess();
        let excess = excess.filter(|_| steps > 0)?;
        self.seen.insert(now.rank, *now);
        let limit = Limit { steps: self.steps_of(now.rank, limit), ..limit };
        let turn = self.deviations.entry(now.rank).or_default().observe(steps, excess, limit);
        if turn == Some(Turn::Over) {
            self.limited.remove(&now.rank);
        }
        turn
    }

    /// Whether its last steps say of a rank that it may be slow, or slow otherwise than is known.
    pub(crate) fn may_turn(&self) -> bool {
        self.deviations.values().any(Deviation::may_turn)
    }

    /// Takes note that a power limit holds the GPU of a rank. That of one that is not slow is as when it was
    /// profiled.
    pub(crate) fn note_limit(&mut self, rank: Rank) {
        let known = self.deviations.get(&rank);
        if known.is_some_and(|known| known.may_turn() || known.share().is_some()) {
            self.limited.insert(rank);
        }
    }

    /// Whether there are slow ranks, and power limits hold all of them.
    pub(crate) fn are_limited(&self) -> bool {
        let slow = self.ranks();
        !slow.is_empty() && slow.keys().all(|rank| self.limited.contains(rank))
    }

    /// The steps in a row that say something of a rank.
    pub(crate) fn steps_of(&self, rank: Rank, limit: Limit) -> u32 {
        match self.limited.contains(&rank) {
            true => limit.steps.min(STEPS_UNDER_A_LIMIT),
            false => limit.steps,
        }
    }

    /// Every slow rank and the share by which it is.
    pub(crate) fn ranks(&self) -> BTreeMap<Rank, f64> {
        let slow = self.deviations.iter();
        slow.filter_map(|(rank, deviation)| Some((*rank, deviation.share()?))).collect()
    }

    /// Their stages, each with the share of its slowest rank.
    pub(crate) fn stages(&self) -> SlowStages {
        let mut stages = SlowStages::new();
        for (rank, share) in self.ranks() {
            if let Some(reading) = self.seen.get(&rank) {
                let slowest = stages.entry(reading.stage).or_insert(share);
                *slowest = slowest.max(share);
            }
        }
        stages
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{Instruction, SessionId, Stage};

    use super::*;
    use crate::watch::own_times::OwnTimes;

    const LIMIT: Limit = Limit { share: 0.05, steps: 3 };

    /// A rank that takes `percent` of its time in each step.
    struct Played {
        reading: RankReading,
    }

    impl Played {
        fn new(rank: u32, stage: u16) -> Self {
            let own_times = OwnTimes::default();
            let reading = RankReading {
                rank: Rank(rank),
                stage: Stage(stage),
                session: SessionId(1),
                swap: 1,
                step: 0,
                own_times,
                window: None,
            };
            Self { reading }
        }

        fn steps(&mut self, steps: u64, percent: u64) -> RankReading {
            self.reading.step += steps;
            self.reading.own_times.add(Instruction::Forward, steps * percent, steps * 100);
            self.reading
        }
    }

    #[test]
    fn a_rank_is_slow_after_some_steps_and_its_stage_with_it() {
        let (mut fast, mut slow) = (Played::new(0, 0), Played::new(1, 1));
        let mut ranks = SlowRanks::default();
        let mut look = |steps, percent| {
            ranks.look(&[fast.steps(steps, 101), slow.steps(steps, percent)], LIMIT)
        };
        assert_eq!(look(1, 100), []);
        assert_eq!(look(1, 150), []);
        assert_eq!(look(2, 150), []);
        assert_eq!(look(1, 150), [(Rank(1), Turn::Begun(0.5))]);
        assert_eq!(look(9, 150), []);
        assert_eq!(ranks.stages(), SlowStages::from([(Stage(1), 0.5)]));
        ranks.look(&[fast.steps(3, 100), slow.steps(3, 100)], LIMIT);
        let over = ranks.look(&[fast.steps(3, 100), slow.steps(3, 100)], LIMIT);
        assert_eq!((over, ranks.stages()), (vec![(Rank(1), Turn::Over)], SlowStages::new()));
    }

    #[test]
    fn a_rank_under_a_power_limit_is_slow_at_its_second_slow_step_and_not_slow_as_soon() {
        let mut rank = Played::new(0, 0);
        let mut ranks = SlowRanks::default();
        let mut look = |percent, is_limited| {
            if is_limited {
                ranks.note_limit(Rank(0));
            }
            let turns = ranks.look(&[rank.steps(1, percent)], LIMIT);
            (turns.into_iter().map(|(_, turn)| turn).next(), ranks.may_turn())
        };
        // As it was profiled, a limit held it, too.
        assert_eq!([look(100, true), look(101, true)], [(None, false); 2]);
        assert_eq!(look(150, false), (None, true));
        assert_eq!(look(150, true), (Some(Turn::Begun(0.5)), false));
        // The limit moves again.
        assert_eq!(look(200, false), (None, true));
        assert_eq!(look(200, false), (Some(Turn::Changed(1.0)), false));
        assert_eq!([look(100, false), look(100, false)], [(None, true), (Some(Turn::Over), false)]);
        // What comes later has another reason.
        assert_eq!([look(150, false), look(150, false)], [(None, true); 2]);
    }

    #[test]
    fn the_steps_around_a_swap_speak_for_nothing() {
        let mut rank = Played::new(0, 0);
        let mut ranks = SlowRanks::default();
        for swap in 1..20 {
            rank.reading.swap = swap;
            assert_eq!(ranks.look(&[rank.steps(9, 200)], LIMIT), []);
        }
    }

    #[test]
    fn a_stage_that_was_slow_already_stays_so_until_its_rank_is_not() {
        let mut rank = Played::new(0, 2);
        let found = SlowStages::from([(Stage(2), 0.4)]);
        let mut ranks = SlowRanks::again(&[rank.reading], &found);
        assert_eq!(ranks.look(&[rank.steps(1, 140)], LIMIT), []);
        assert_eq!(ranks.stages(), found);
        assert_eq!(ranks.look(&[rank.steps(3, 100)], LIMIT), []);
        assert_eq!(ranks.look(&[rank.steps(3, 100)], LIMIT), [(Rank(0), Turn::Over)]);
    }

    #[test]
    fn a_rank_that_is_gone_is_not_slow_any_more() {
        let mut rank = Played::new(0, 0);
        let mut ranks = SlowRanks::default();
        ranks.look(&[rank.steps(1, 100)], LIMIT);
        ranks.look(&[rank.steps(5, 200)], LIMIT);
        ranks.look(&[rank.steps(5, 200)], LIMIT);
        assert_eq!(ranks.ranks().len(), 1);
        ranks.look(&[], LIMIT);
        assert_eq!(ranks.ranks().len(), 0);
    }
}

//! Stages that do not run as they were profiled: what this node says of its own, and what all nodes say
//! together.

use std::collections::BTreeMap;

use pfo_fleet::{Pace, Shared, SlowStage, View};
use pfo_planner::{Condition, Conditions};
use pfo_protocol::Stage;
use pfo_service::lock;

use super::parts::Fleet;
use crate::job::JobKey;
use crate::straggler::SlowStages;

/// Millionths in one, and nanoseconds in a second.
const MILLION: f64 = 1e6;
const NANO: f64 = 1e9;

/// The slow stages of a whole job.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AllSlow {
    /// The share of each, in millionths.
    pub(crate) stages: BTreeMap<Stage, i32>,
    /// How their instructions run beside the profile.
    pub(crate) conditions: Conditions,
}

impl AllSlow {
    /// The shares.
    pub(crate) fn shares(&self) -> SlowStages {
        self.stages.iter().map(|(stage, ppm)| (*stage, f64::from(*ppm) / MILLION)).collect()
    }

    /// Those of a job all of which is on one node.
    pub(crate) fn of_node(stages: &SlowStages, conditions: &Conditions) -> Self {
        let stages = stages.iter().map(|(stage, share)| (*stage, ppm_of(*share)));
        Self { stages: stages.collect(), conditions: conditions.clone() }
    }

    fn of(shared: &Shared) -> Self {
        let mut slowest: BTreeMap<Stage, &SlowStage> = BTreeMap::new();
        for member in shared.members.values() {
            // A node speaks for the stages that are there.
            let is_there =
                |slow: &&SlowStage| member.places.iter().any(|place| place.stage == slow.stage);
            for slow in member.slow.iter().filter(is_there) {
                let known = slowest.entry(slow.stage).or_insert(slow);
                if known.share_ppm < slow.share_ppm {
                    *known = slow;
                }
            }
        }
        let condition = |pace: Pace| match pace {
            Pace::Slowed(ppm) => Condition::Slowed(f64::from(ppm) / MILLION),
            Pace::Held(ns) => Condition::Held(ns as f64 / NANO),
        };
        let is_possible = |pace: &Pace| !matches!(pace, Pace::Slowed(0) | Pace::Held(0));
        let conditions = slowest.values().flat_map(|slow| {
            let kinds = slow.kinds.iter().filter(|(_, pace)| is_possible(pace));
            kinds.map(|(kind, pace)| ((slow.stage, *kind), condition(*pace)))
        });
        Self {
            conditions: conditions.collect(),
            stages: slowest.into_iter().map(|(stage, slow)| (stage, slow.share_ppm)).collect(),
        }
    }
}

fn ppm_of(share: f64) -> i32 {
    (share.clamp(-1.0, 1000.0) * MILLION) as i32
}

/// What a node says of its stages.
fn said(stages: &SlowStages, conditions: &Conditions) -> Vec<SlowStage> {
    let pace = |condition: &Condition| match condition {
        Condition::Slowed(factor) => Pace::Slowed((factor * MILLION) as u32),
        Condition::Held(time_s) => Pace::Held((time_s * NANO) as u64),
    };
    let slow = |(&stage, &share): (&Stage, &f64)| {
        let kinds = conditions.iter().filter(|((of, _), _)| *of == stage);
        let kinds = kinds.map(|((_, kind), condition)| (*kind, pace(condition))).collect();
        SlowStage { stage, share_ppm: ppm_of(share), kinds }
    };
    stages.iter().map(slow).collect()
}

impl Fleet {
    /// Takes note of which stages of a job on this node do not run as they were profiled: the other nodes
    /// hear of it when these change.
    pub(crate) fn note_slow(&self, key: &JobKey, stages: &SlowStages, conditions: &Conditions) {
        let mut slow = lock(&self.slow);
        if slow.get(key).is_some_and(|(known, _)| known == stages) {
            return;
        }
        if stages.is_empty() {
            slow.remove(key);
        } else {
            slow.insert(key.clone(), (stages.clone(), said(stages, conditions)));
        }
    }

    /// The slow stages of all of a job; none if this node does not see all of it.
    pub(crate) async fn all_slow(&self, key: &JobKey) -> Option<AllSlow> {
        let shown = self.show(key, View::Part).await?;
        let is_whole = shown.view == View::Whole && shown.away.is_none();
        shown.shared.as_ref().filter(|_| is_whole).map(AllSlow::of)
    }
}

#[cfg(test)]
mod tests {
    use pfo_fleet::{Change, Degrees, Gpus, Member, Place};
    use pfo_protocol::{DpRank, Instruction, Rank, TpRank};

    use super::*;

    fn member(stage: u16, dp: u32, slow: Vec<SlowStage>) -> Member {
        let rank = Rank(u32::from(stage) * 2 + dp);
        let place = Place { rank, stage: Stage(stage), dp: DpRank(dp), tp: TpRank(0) };
        let (degrees, gpus) = (Degrees { pp: 2, dp: 2, tp: 1 }, Gpus::default());
        Member { degrees, places: vec![place], gpus, measures: false, slow }
    }

    #[test]
    fn a_stage_is_as_slow_as_its_slowest_replica_and_no_node_speaks_for_another() {
        let slowed = |factor| {
            Conditions::from([((Stage(1), Instruction::Forward), Condition::Slowed(factor))])
        };
        let of = |share, factor| said(&SlowStages::from([(Stage(1), share)]), &slowed(factor));
        let mut shared = Shared::default();
        for (name, member) in [
            ("a", member(0, 0, of(9.0, 10.0))),
            ("b", member(1, 0, of(0.25, 1.25))),
            ("c", member(1, 1, of(0.5, 1.5))),
        ] {
            shared.apply(Change::Member(name.parse().unwrap(), Some(member)));
        }
        let all = AllSlow::of(&shared);
        assert_eq!(all.stages, BTreeMap::from([(Stage(1), 500_000)]));
        assert_eq!(all.shares(), SlowStages::from([(Stage(1), 0.5)]));
        assert_eq!(all.conditions, slowed(1.5));
    }

    #[test]
    fn what_cannot_be_measured_is_no_condition() {
        let kinds = vec![(Instruction::Forward, Pace::Held(0)), (Instruction::Load, Pace::Held(5))];
        let slow = vec![SlowStage { stage: Stage(0), share_ppm: 1, kinds }];
        let mut shared = Shared::default();
        let change = Change::Member("a".parse().unwrap(), Some(member(0, 0, slow)));
        shared.apply(change);
        let held = Condition::Held(5e-9);
        let load = Conditions::from([((Stage(0), Instruction::Load), held)]);
        assert_eq!(AllSlow::of(&shared).conditions, load);
    }
}

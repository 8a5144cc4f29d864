//! Replicas of a job of one stage, which wait for the slowest of them at the end of every step: the slow
//! ones keep their clocks, so that it shows when they are not slow any more, and the others take the
//! plan that is as slow as they are. Pure.

use std::collections::{BTreeMap, BTreeSet};

use pfo_planner::{Conditions, Straggler};
use pfo_protocol::{ClockTable, DpRank, JobView, Rank, Refusal, Stage};

use crate::straggler::SlowStages;
use crate::straggler::frontier::{JobFrontier, slowed, wrong};
use crate::straggler::replan::WORTH;
use crate::straggler::table::{Labelled, does_not_fit};

/// The replicas of a job of one stage, some of which are slow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    slow: BTreeSet<DpRank>,
    degree: u32,
}

impl Replicas {
    /// Those of a job all of whose ranks are on this node, if some of them are slow and others are not.
    pub(crate) fn of(job: &JobView, slow: &BTreeMap<Rank, f64>) -> Option<Self> {
        let degree = job.ranks.first()?.position.dp_degree;
        let is_whole = job.ranks.first()?.position.ranks() == job.ranks.len() as u64;
        let is_slow = |rank: &Rank| slow.get(rank).is_some_and(|share| *share > 0.0);
        let positions = job.ranks.iter().map(|rank| &rank.position);
        let slow = positions.filter(|at| is_slow(&at.rank)).map(|at| at.dp_rank);
        let slow: BTreeSet<_> = slow.collect();
        let some_wait = !slow.is_empty() && slow.len() < degree as usize;
        (job.pp_degree == 1 && is_whole && some_wait).then_some(Self { slow, degree })
    }
}

impl JobFrontier {
    /// The plan of a job some of whose replicas are slow by themselves, with a row for each replica. None
    /// if the others cannot slow down, or that would not be worth a swap.
    ///
    /// # Errors
    /// If the job's plan has other instructions, or clocks that were not profiled.
    pub(crate) fn plan_for_slow_replicas(
        &self,
        own: &ClockTable,
        replicas: &Replicas,
        (slow, conditions): (&SlowStages, &Conditions),
    ) -> Result<Option<(Straggler, Labelled)>, Refusal> {
        let under = match conditions.is_empty() {
            true => slowed(self.profile(), slow)?,
            false => self.profile().under(conditions).map_err(wrong)?,
        };
        let lasts_s = self.time_s(&under, &self.own(own)?)?;
        // Rounded down: nobody waits for those that waited.
        let factor = (1e3 * lasts_s / self.fastest_s()).floor() / 1e3;
        let straggler = Straggler::new(factor.max(1.0)).map_err(wrong)?;
        let others = self.plan_for(straggler)?;
        // Joules of a replica that waits for the slow ones.
        let energy_j = |table: &ClockTable| {
            let point = self.point_of(Some(table))?;
            let waits_s = lasts_s - point.iteration_time_s;
            Ok::<_, Refusal>(point.iteration_energy_j + self.p2p_power().of(Stage(0)).0 * waits_s)
        };
        let (before_j, after_j) = (energy_j(own)?, energy_j(&others.table)?);
        if before_j - after_j < WORTH * before_j {
            return Ok(None);
        }
        let row = |replica| match replicas.slow.contains(&DpRank(replica)) {
            true => own.stages().first(),
            false => others.table.stages().first(),
        };
        let rows = (0..replicas.degree).filter_map(row).cloned().collect();
        // What a plan predicts holds for one row.
        let table = ClockTable::new(own.num_microbatches(), None, rows);
        let table = table.map_err(|error| does_not_fit(error.to_string()))?;
        let label = self.label_with(&format!(" at {straggler}, for the fast replicas"));
        Ok(Some((straggler, Labelled { label, table })))
    }
}

#[cfg(test)]
mod tests {
    use pfo_planner::Condition;
    use pfo_protocol::Instruction;

    use super::*;
    use crate::straggler::frontier::tests::{frontier_of, job};

    fn frontier() -> JobFrontier {
        JobFrontier::read("f".into(), &frontier_of(1, 2), 1 << 20).unwrap()
    }

    /// A job of four replicas on one node.
    fn replicas() -> JobView {
        let mut job = job(1);
        let first = job.ranks[0].clone();
        job.ranks = (0..4)
            .map(|number| {
                let mut rank = first.clone();
                (rank.position.rank, rank.position.dp_rank) = (Rank(number), DpRank(number));
                rank.position.dp_degree = 4;
                rank
            })
            .collect();
        job
    }

    /// The clocks of each replica, if replica 2 is under a condition.
    fn clocks(condition: Condition, share: f64) -> Option<Vec<Vec<u32>>> {
        let frontier = frontier();
        let own = frontier.plan_for(Straggler::NONE).unwrap().table;
        let some = Replicas::of(&replicas(), &[(Rank(2), share)].into()).unwrap();
        let kinds = [Instruction::Forward, Instruction::Backward];
        let conditions = kinds.map(|kind| ((Stage(0), kind), condition)).into();
        let slow = SlowStages::from([(Stage(0), share)]);
        let found = frontier.plan_for_slow_replicas(&own, &some, (&slow, &conditions)).unwrap();
        let stages = found?.1.table.into_stages().into_iter();
        Some(stages.map(|row| row.iter().map(|unit| unit.mhz.0).collect()).collect())
    }

    #[test]
    fn the_others_are_as_slow_as_the_slow_replica_which_keeps_its_clocks() {
        for condition in [Condition::Slowed(1.5), Condition::Held(1.5)] {
            let (own, slow) = (vec![1410; 4], vec![900; 4]);
            let expected = vec![slow.clone(), slow.clone(), own, slow];
            assert_eq!(clocks(condition, 0.5).unwrap(), expected, "{condition:?}");
        }
    }

    #[test]
    fn the_others_never_take_longer_than_the_slow_replica() {
        for factor in [1.1, 1.19, 1.21, 1.3, 1.45] {
            let time_s = |clock: &u32| match clock {
                900 => 1.5,
                1200 => 1.2,
                _ => 1.0,
            };
            let Some(clocks) = clocks(Condition::Slowed(factor), factor - 1.0) else { continue };
            let takes_s: f64 = clocks[0].iter().map(time_s).sum();
            assert!(takes_s <= 4.0 * factor + 1e-9, "{factor}: {takes_s} s");
        }
    }

    #[test]
    fn replicas_that_cannot_slow_down_keep_their_plan() {
        assert_eq!(clocks(Condition::Slowed(1.02), 0.02), None);
    }

    #[test]
    fn only_jobs_of_one_stage_on_one_node_have_replicas_that_wait_for_a_slow_one() {
        let slow = BTreeMap::from([(Rank(2), 0.3)]);
        assert!(Replicas::of(&replicas(), &slow).is_some());
        assert_eq!(Replicas::of(&replicas(), &BTreeMap::new()), None);
        let all = (0..4).map(|rank| (Rank(rank), 0.3)).collect();
        assert_eq!(Replicas::of(&replicas(), &all), None);
        assert_eq!(Replicas::of(&job(4), &slow), None);
        let mut elsewhere = replicas();
        elsewhere.ranks.pop();
        assert_eq!(Replicas::of(&elsewhere, &slow), None);
    }
}

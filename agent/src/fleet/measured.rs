//! What a step of the whole job takes: every node writes what its `pfod` has measured into the store,
//! and the agent that is asked adds it up.

use std::collections::BTreeMap;
use std::time::Duration;

use pfo_fleet::{Node, Shared};
use pfo_protocol::{FleetStep, JobView};
use pfo_store::{Measured, Shown, Store, StoreError};
use tokio::time::{Instant, sleep, timeout_at};

use super::parts::Fleet;
use super::swap::id_of;
use crate::job::JobKey;
use crate::pfod::PfodError;

/// How often a node writes what it has measured.
const RHYTHM: Duration = Duration::from_secs(10);

/// How long the store may take to show what was measured of all jobs.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);

impl Fleet {
    /// Writes what was measured of this node's jobs, for as long as the agent runs.
    pub(super) async fn tell_measured(&self, store: &impl Store) {
        loop {
            match self.try_tell_measured(store).await {
                Ok(written) => self.note_written(written),
                Err(why) => tracing::debug!("cannot ask what was measured: {why}"),
            }
            sleep(RHYTHM).await;
        }
    }

    /// What became of the last write; an error if `pfod` does not say what to write.
    async fn try_tell_measured(
        &self,
        store: &impl Store,
    ) -> Result<Result<(), StoreError>, PfodError> {
        let mut taken = Vec::new();
        for key in self.jobs() {
            let shared = self.show(&key).await.and_then(|shown| shown.shared);
            taken.extend(shared.map(|shared| (key, taken_by(&shared, self.node()))));
        }
        // Asked after that: what `pfod` shows is of this swap or, if it was too late, of a later one,
        // which is committed already, so that nobody takes it for this one's.
        let jobs = self.questions.jobs().await?;
        for (key, swap) in taken {
            let job = jobs.iter().find(|job| JobKey::of(job) == key);
            if let Some(measured) = job.and_then(|job| measured_of(job, swap)) {
                let written = store.measure(&id_of(&key), &measured).await;
                if written.is_err() {
                    return Ok(written);
                }
            }
        }
        Ok(Ok(()))
    }

    /// What a step of the whole job takes, if the store says it by then.
    pub(super) async fn step(&self, key: &JobKey, shown: &Shown, by: Instant) -> Option<FleetStep> {
        let (shared, store) = (shown.shared.as_ref()?, self.store_now().ok()?);
        if shown.away.is_some() {
            return None;
        }
        let measured = timeout_at(by, store.measured(&id_of(key))).await.ok()?.ok()?;
        whole(shared, &measured)
    }
}

/// The number of the newest swap that a node has taken up.
fn taken_by(shared: &Shared, node: &Node) -> u64 {
    let report = shared.reports.get(node);
    report.and_then(|report| report.took).map_or(0, |took| took.number)
}

/// What was measured of all ranks of a job on this node; none before each of them has run a whole
/// step.
fn measured_of(job: &JobView, swap: u64) -> Option<Measured> {
    let mut measured = Measured { swap, ranks: job.ranks.len(), time_s: 0.0, energy_j: Some(0.0) };
    for rank in &job.ranks {
        let window = rank.window.filter(|window| window.steps > 0)?;
        let steps = window.steps as f64;
        measured.time_s = measured.time_s.max(window.time_s / steps);
        let energy_j = window.energy_j.map(|energy_j| energy_j / steps);
        measured.energy_j = measured.energy_j.zip(energy_j).map(|(sum, energy_j)| sum + energy_j);
    }
    (measured.ranks > 0).then_some(measured)
}

/// Adds up what the nodes have measured. None if one of them has yet to, or has not measured all of
/// its ranks under the swap that the whole job runs.
fn whole(shared: &Shared, measured: &BTreeMap<Node, Measured>) -> Option<FleetStep> {
    let swap = shared.committed().next().map_or(0, |(number, _)| number);
    if swap > 0 && !shared.behind().is_empty() {
        return None;
    }
    let mut step = FleetStep { time_s: 0.0, energy_j: Some(0.0) };
    for (node, member) in &shared.members {
        let is_whole = |one: &&Measured| one.swap == swap && one.ranks == member.places.len();
        let Measured { time_s, energy_j, .. } = measured.get(node).filter(is_whole)?;
        step.time_s = step.time_s.max(*time_s);
        step.energy_j = step.energy_j.zip(*energy_j).map(|(sum, energy_j)| sum + energy_j);
    }
    (!shared.members.is_empty()).then_some(step)
}

#[cfg(test)]
mod tests {
    use pfo_fleet::{
        Change, Decision, Degrees, Gpus, Member, Place, Proposal, Report, Run, Took, completeness,
    };
    use pfo_protocol::{DpRank, Rank, RankWindow, Stage, TpRank, Uid};

    use super::*;
    use crate::straggler::tests::job as example_job;

    fn node(name: &str) -> Node {
        name.parse().unwrap()
    }

    /// Nodes `a` and `b` with a stage each.
    fn two_nodes() -> Shared {
        let mut shared = Shared::default();
        for (stage, name) in (0..).zip(["a", "b"]) {
            let rank = Rank(stage.into());
            let place = Place { rank, stage: Stage(stage), dp: DpRank(0), tp: TpRank(0) };
            let degrees = Degrees { pp: 2, dp: 1, tp: 1 };
            let (places, gpus) = (vec![place], Gpus::default());
            let member = Member { degrees, places, gpus, measures: false };
            shared.apply(Change::Member(node(name), Some(member)));
        }
        assert_eq!(completeness(&shared.members), Ok(()));
        shared
    }

    fn measured(swap: u64, time_s: f64, energy_j: f64) -> Measured {
        Measured { swap, ranks: 1, time_s, energy_j: Some(energy_j) }
    }

    #[test]
    fn a_step_takes_the_time_of_the_slowest_node_and_the_energy_of_all() {
        let mut each = BTreeMap::from([(node("a"), measured(0, 1.5, 300.0))]);
        assert_eq!(whole(&two_nodes(), &each), None, "node b has measured nothing");
        each.insert(node("b"), measured(0, 1.25, 200.0));
        let step = FleetStep { time_s: 1.5, energy_j: Some(500.0) };
        assert_eq!(whole(&two_nodes(), &each), Some(step));
        each.insert(node("b"), Measured { energy_j: None, ..measured(0, 1.25, 0.0) });
        assert_eq!(whole(&two_nodes(), &each), Some(FleetStep { energy_j: None, ..step }));
        each.insert(node("b"), Measured { ranks: 0, ..measured(0, 1.25, 0.0) });
        assert_eq!(whole(&two_nodes(), &each), None, "a rank of node b has run no step");
    }

    #[test]
    fn what_was_measured_under_another_swap_is_not_added() {
        let mut shared = two_nodes();
        let proposal = Proposal {
            run: Run::DefaultClocks,
            step: 10,
            members: ["a", "b"].map(node).into(),
            proposed_at: 3,
            by_uid: Uid(1000),
            by_node: node("a"),
            trial: None,
        };
        shared.apply(Change::Proposal(1, proposal));
        let old = ["a", "b"].map(|name| (node(name), measured(0, 1.5, 300.0))).into();
        let new: BTreeMap<_, _> =
            ["a", "b"].map(|name| (node(name), measured(1, 1.0, 200.0))).into();
        assert!(whole(&shared, &old).is_some());
        shared.apply(Change::Decision(1, Decision::Commit));
        assert_eq!(whole(&shared, &old), None);
        let report = Report { took: Some(Took { number: 1, step: 10 }), late: None };
        shared.apply(Change::Report(node("a"), report.clone()));
        assert_eq!(whole(&shared, &new), None, "node b has yet to change");
        shared.apply(Change::Report(node("b"), report));
        let step = FleetStep { time_s: 1.0, energy_j: Some(400.0) };
        assert_eq!(whole(&shared, &new), Some(step));
        assert_eq!(taken_by(&shared, &node("b")), 1);
    }

    #[test]
    fn a_node_has_measured_a_job_when_all_of_its_ranks_there_have_run_a_step() {
        let mut job = example_job(2);
        let window = |time_s, energy_j| Some(RankWindow { steps: 4, time_s, energy_j });
        job.ranks[0].window = window(6.0, Some(800.0));
        assert_eq!(measured_of(&job, 3), None);
        job.ranks[1].window = window(5.0, Some(400.0));
        let both = Measured { swap: 3, ranks: 2, time_s: 1.5, energy_j: Some(300.0) };
        assert_eq!(measured_of(&job, 3), Some(both));
        job.ranks[1].window = window(5.0, None);
        assert_eq!(measured_of(&job, 3), Some(Measured { energy_j: None, ..both }));
        job.ranks.clear();
        assert_eq!(measured_of(&job, 3), None);
    }
}

//! Which replicas of a job of one stage are slow while it runs no plan, and nothing is known but what the
//! others take: all run the same, and wait for the slowest.
//!
//! A replica may wait inside of an instruction, as where gradients are added up while the last backward
//! runs. So the instruction speaks for all ranks in which one differs most from the others: in another one,
//! the others may take longer because they wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use pfo_protocol::{
    DaemonMessage, Instruction, JobSelector, JobView, Rank, RankView, Request, Response, SessionId,
    TapBatch, TapRecord,
};
use pfo_service::lock;
use tokio::task::AbortHandle;

use crate::job::JobKey;
use crate::pfod::{Pfod, PfodError, unexpected};
use crate::watch::deviation::Limit;
use crate::watch::own_times::OwnTimes;
use crate::watch::rank_reading::RankReading;
use crate::watch::report;
use crate::watch::slow_ranks::SlowRanks;

/// How many instructions of a kind there were, and the nanoseconds that they took.
type Sum = (u64, u64);

/// What the ranks of a job have run.
type Sums = BTreeMap<(Rank, Instruction), Sum>;

/// Whether a job has replicas of one stage on this node, and runs no plan.
pub(super) fn is_compared(job: &JobView) -> bool {
    let is_watched = job.plan.is_none() && job.measured_by.is_none();
    let are_replicas = job.ranks.iter().all(|rank| rank.position.dp_degree > 1);
    job.pp_degree == 1 && job.ranks.len() > 1 && are_replicas && is_watched
}

/// The replicas of a job that is compared, until this is dropped.
#[derive(Debug)]
pub(super) struct ReplicaTimes {
    ranks: BTreeSet<(Rank, SessionId)>,
    sums: Arc<Mutex<Sums>>,
    /// Those at the last look.
    before: Sums,
    own: BTreeMap<Rank, OwnTimes>,
    slow: SlowRanks,
    task: AbortHandle,
}

impl Drop for ReplicaTimes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ReplicaTimes {
    pub(super) fn open(pfod: &Pfod, job: &JobView) -> Self {
        let sums = Arc::<Mutex<Sums>>::default();
        let tap = tap(pfod.clone(), JobKey::of(job).selector(), Arc::clone(&sums));
        let task = tokio::spawn(async move {
            if let Err(why) = tap.await {
                tracing::debug!("a tap of replicas ended: {why}");
            }
        });
        let (ranks, task) = (ranks_of(job), task.abort_handle());
        let (before, own, slow) = Default::default();
        Self { ranks, sums, before, own, slow, task }
    }

    /// Whether it still compares the ranks of a job.
    pub(super) fn is_of(&self, job: &JobView) -> bool {
        !self.task.is_finished() && self.ranks == ranks_of(job)
    }

    /// Compares what the ranks have run since the last look.
    pub(super) fn look(&mut self, job: &JobView, limit: Limit) {
        let now = lock(&self.sums).clone();
        let since = now.iter().map(|(of, &(count, took_ns))| {
            let before = self.before.get(of).copied().unwrap_or_default();
            (*of, (count.saturating_sub(before.0), took_ns.saturating_sub(before.1)))
        });
        for (rank, (kind, took_ns, should_ns)) in beside_others(&since.collect()) {
            self.own.entry(rank).or_default().add(kind, took_ns, should_ns);
        }
        self.before = now;
        let reading = |rank: &RankView| {
            let own = self.own.get(&rank.position.rank).copied().unwrap_or_default();
            RankReading::of(rank, own)
        };
        let readings: Vec<_> = job.ranks.iter().filter_map(reading).collect();
        for (rank, turn) in self.slow.look(&readings, limit) {
            report::slow_replica(job, rank, turn);
        }
    }

    /// The slow ranks, each with the share by which it takes longer than the others.
    pub(super) fn slow(&self) -> BTreeMap<Rank, f64> {
        self.slow.ranks()
    }
}

fn ranks_of(job: &JobView) -> BTreeSet<(Rank, SessionId)> {
    job.ranks.iter().map(|rank| (rank.position.rank, rank.session)).collect()
}

async fn tap(pfod: Pfod, job: JobSelector, sums: Arc<Mutex<Sums>>) -> Result<(), PfodError> {
    let mut connection = pfod.connect().await?;
    match connection.ask(Request::Tap { job, counters: false }).await? {
        Response::Tapped(_) => {}
        other => return Err(unexpected(&other)),
    }
    loop {
        let TapBatch { rank, records, .. } = match connection.next().await? {
            DaemonMessage::Tap(batch) => batch,
            other => return Err(unexpected(&other)),
        };
        let mut sums = lock(&sums);
        for record in &records {
            if let &TapRecord::Ran { unit, began_ns, ended_ns, astray: false, .. } = record
                && !unit.instruction.is_fixed()
            {
                let (count, took_ns) = sums.entry((rank, unit.instruction)).or_default();
                *count = count.saturating_add(1);
                *took_ns = took_ns.saturating_add(ended_ns.saturating_sub(began_ns));
            }
        }
    }
}

/// The kind of instruction in which some rank differs most from the others: for each rank what its instructions
/// of that kind took, and what they would have taken as those of the typical rank.
fn beside_others(since: &Sums) -> BTreeMap<Rank, (Instruction, u64, u64)> {
    let mean_ns = |&(count, took_ns): &Sum| took_ns.checked_div(count);
    let mut means: BTreeMap<Instruction, Vec<u64>> = BTreeMap::new();
    for ((_, kind), sum) in since {
        means.entry(*kind).or_default().extend(mean_ns(sum));
    }
    let (mut most, mut of_kinds) = (None, BTreeMap::<_, BTreeMap<_, _>>::new());
    for (&(rank, kind), sum) in since {
        let Some(kinds) = means.get_mut(&kind).filter(|means| means.len() > 1) else { continue };
        kinds.sort_unstable();
        // The lower one of two: of two replicas, the slower one is slow.
        let Some(&typical_ns) = kinds.get(kinds.len().saturating_sub(1) / 2) else { continue };
        let (count, took_ns) = *sum;
        let should_ns = typical_ns.saturating_mul(count);
        if count == 0 {
            continue;
        }
        let share = took_ns as f64 / should_ns.max(1) as f64;
        if most.is_none_or(|(known, _)| known < share) {
            most = Some((share, kind));
        }
        of_kinds.entry(kind).or_default().insert(rank, (kind, took_ns, should_ns));
    }
    most.and_then(|(_, kind)| of_kinds.remove(&kind)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What four ranks took, each by the percent of forward and backward.
    fn took(percent: [[u64; 2]; 4]) -> BTreeMap<Rank, f64> {
        let kinds = [Instruction::Forward, Instruction::Backward];
        let of_rank = |(rank, percent): (u32, [u64; 2])| {
            kinds
                .into_iter()
                .zip(percent)
                .map(move |(kind, percent)| ((Rank(rank), kind), (10, 10 * percent * 1000)))
        };
        let since = (0..).zip(percent).flat_map(of_rank).collect();
        let found = beside_others(&since).into_iter();
        found.map(|(rank, (_, took, should))| (rank, took as f64 / should as f64)).collect()
    }

    #[test]
    fn a_replica_that_takes_longer_than_the_others_is_slow_by_as_much() {
        let shares = took([[100, 200], [100, 200], [130, 260], [100, 200]]);
        let expected = [1.0, 1.0, 1.3, 1.0];
        assert_eq!(shares.into_values().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn replicas_that_wait_inside_of_a_backward_do_not_hide_the_slow_one() {
        let shares = took([[100, 260], [100, 260], [130, 260], [100, 260]]);
        assert_eq!(shares.into_values().collect::<Vec<_>>(), [1.0, 1.0, 1.3, 1.0]);
    }

    #[test]
    fn a_replica_that_waits_for_the_slow_one_is_not_slow() {
        // Of two, whose waits lie in the backward: both take as long in all.
        let kinds = [Instruction::Forward, Instruction::Backward];
        let of_rank = |rank: u32, took: [u64; 2]| {
            kinds
                .into_iter()
                .zip(took)
                .map(move |(kind, took)| ((Rank(rank), kind), (10, 10 * took)))
        };
        let since = of_rank(0, [100, 290]).chain(of_rank(1, [130, 260])).collect();
        let found: Vec<_> = beside_others(&since).into_values().collect();
        let forward = Instruction::Forward;
        assert_eq!(found, [(forward, 1000, 1000), (forward, 1300, 1000)]);
    }

    #[test]
    fn of_two_paces_the_faster_one_is_what_a_replica_should_take() {
        let shares = took([[100, 200], [130, 260], [130, 260], [100, 200]]);
        assert_eq!(shares.into_values().collect::<Vec<_>>(), [1.0, 1.3, 1.3, 1.0]);
    }

    #[test]
    fn a_rank_alone_or_without_instructions_is_compared_with_nobody() {
        let forward = |rank| (Rank(rank), Instruction::Forward);
        assert!(beside_others(&[(forward(0), (3, 300))].into()).is_empty());
        let idle = [(forward(0), (3, 300)), (forward(1), (0, 0))];
        assert!(beside_others(&idle.into()).is_empty());
    }
}

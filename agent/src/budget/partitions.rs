//! In which partition of a scheduler jobs are. The scheduler says it of GPUs and their user, and never the
//! job itself, which would choose the one with the most weight.

use std::collections::BTreeMap;

use pfo_protocol::{GpuUuid, JobView, PartitionName, Refusal, RefusalCode, Uid};
use serde::{Deserialize, Serialize};

/// GPUs of which something is said, at most: more than a node has.
const MOST_GPUS: usize = 1024;

/// A GPU that a scheduler has given to a job in a partition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Partitioned {
    gpu: GpuUuid,
    uid: Uid,
    partition: PartitionName,
}

/// What schedulers have said, by GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Partitions(BTreeMap<GpuUuid, (Uid, PartitionName)>);

impl Partitions {
    pub(super) fn of(gpus: Vec<Partitioned>) -> Self {
        let of_gpu = |of: Partitioned| (of.gpu, (of.uid, of.partition));
        Self(gpus.into_iter().take(MOST_GPUS).map(of_gpu).collect())
    }

    pub(super) fn all(&self) -> Vec<Partitioned> {
        let of_gpu = |(gpu, (uid, partition)): (&GpuUuid, &(Uid, PartitionName))| Partitioned {
            gpu: gpu.clone(),
            uid: *uid,
            partition: partition.clone(),
        };
        self.0.iter().map(of_gpu).collect()
    }

    /// A job of a user begins on GPUs. It is the newest there.
    ///
    /// # Errors
    /// If there are too many.
    pub(super) fn begin(
        &mut self,
        uid: Uid,
        gpus: Vec<GpuUuid>,
        partition: &PartitionName,
    ) -> Result<(), Refusal> {
        self.0.extend(gpus.into_iter().map(|gpu| (gpu, (uid, partition.clone()))));
        if self.0.len() <= MOST_GPUS {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalCode::LimitReached,
            format!("the partitions of {MOST_GPUS} GPUs are known already"),
            "end some with `pfoctl budget partition --end`, as the epilog of the scheduler does",
        ))
    }

    /// A job of a user has ended. An epilog that comes late takes nothing from another user's job.
    pub(super) fn end(&mut self, uid: Uid, gpus: &[GpuUuid]) {
        self.0.retain(|gpu, (of, _)| *of != uid || !gpus.contains(gpu));
    }

    /// The partition of a job: that of all of its GPUs here, as GPUs of its user.
    pub(super) fn of_job(&self, job: &JobView) -> Option<&PartitionName> {
        let mut partitions = job.ranks.iter().map(|rank| {
            let (uid, partition) = self.0.get(&rank.gpu_uuid)?;
            (*uid == job.uid).then_some(partition)
        });
        let first = partitions.next()??;
        partitions.all(|other| other == Some(first)).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::straggler::tests::job as example_job;

    fn gpus(names: &[&str]) -> Vec<GpuUuid> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    fn name(name: &str) -> PartitionName {
        name.parse().unwrap()
    }

    fn said(all: &[(u32, &[&str], &str)]) -> Partitions {
        let mut partitions = Partitions::default();
        for (uid, names, partition) in all {
            partitions.begin(Uid(*uid), gpus(names), &name(partition)).unwrap();
        }
        partitions
    }

    /// A job of user 5 with a rank on each of these.
    fn job(names: &[&str]) -> JobView {
        let mut job = JobView { uid: Uid(5), ..example_job(1) };
        let rank = job.ranks[0].clone();
        let rank = |gpu_uuid| pfo_protocol::RankView { gpu_uuid, ..rank.clone() };
        job.ranks = gpus(names).into_iter().map(rank).collect();
        job
    }

    #[test]
    fn a_job_is_in_the_partition_of_all_its_gpus_and_of_no_other_user() {
        let said = said(&[(5, &["a", "b"], "big"), (5, &["c"], "small"), (6, &["d"], "big")]);
        assert_eq!(said.of_job(&job(&["a", "b"])), Some(&name("big")));
        assert_eq!(said.of_job(&job(&["c"])), Some(&name("small")));
        for none in [&["a", "c"][..], &["a", "x"], &["x", "a"], &["d"], &["a", "d"], &[]] {
            assert_eq!(said.of_job(&job(none)), None, "{none:?}");
        }
    }

    #[test]
    fn a_job_that_says_another_scheduler_id_stays_in_its_partition() {
        let said = said(&[(5, &["a"], "small"), (5, &["b"], "big")]);
        let mut claims = job(&["a"]);
        claims.ranks[0].run = Some("78.0".into());
        claims.job = "78".parse().unwrap();
        assert_eq!(said.of_job(&claims), Some(&name("small")));
    }

    #[test]
    fn a_prolog_that_runs_twice_changes_nothing_and_a_requeued_job_may_be_in_another_partition() {
        let mut once = said(&[(5, &["a"], "big")]);
        assert_eq!(once, said(&[(5, &["a"], "big"), (5, &["a"], "big")]));
        once.begin(Uid(5), gpus(&["a"]), &name("small")).unwrap();
        assert_eq!(once.of_job(&job(&["a"])), Some(&name("small")));
    }

    #[test]
    fn an_epilog_ends_what_was_said_of_its_user_alone() {
        let mut partitions = said(&[(5, &["a", "b"], "big"), (6, &["c"], "big")]);
        let before = partitions.clone();
        partitions.end(Uid(7), &gpus(&["a", "x"]));
        partitions.end(Uid(5), &gpus(&["c"]));
        assert_eq!(partitions, before, "there was no prolog of these");
        partitions.end(Uid(5), &gpus(&["a"]));
        assert_eq!(partitions.of_job(&job(&["a"])), None);
        assert_eq!(partitions.of_job(&job(&["b"])), Some(&name("big")));
    }

    #[test]
    fn the_partitions_of_more_gpus_than_a_node_has_are_refused() {
        let many = |count: usize| (0..count).map(|gpu| format!("GPU-{gpu}").parse().unwrap());
        let mut partitions = Partitions::default();
        assert!(partitions.begin(Uid(5), many(MOST_GPUS).collect(), &name("p")).is_ok());
        assert!(partitions.begin(Uid(6), many(MOST_GPUS).collect(), &name("q")).is_ok());
        assert_eq!(Partitions::of(partitions.all()), partitions);
        let refusal = partitions.begin(Uid(5), gpus(&["one-more"]), &name("p")).unwrap_err();
        assert!(refusal.message.contains("1024 GPUs"), "{refusal}");
    }
}

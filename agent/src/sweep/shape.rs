//! How a job divides its model among GPUs: what a sweep must find again after a
//! pause, and what its profile is stored under.

use std::collections::BTreeSet;

use pfo_fleet::Member;
use pfo_protocol::{JobName, JobView, Mhz, ProfileKey, Rank, RankView, Uid};
use serde::{Deserialize, Serialize};

use crate::fleet::Members;
use crate::profile::stored_key;

/// All ranks of a job that this node can steer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JobShape {
    pp_degree: u32,
    dp_degree: u32,
    tp_degree: u32,
    num_microbatches: u32,
    /// Each rank and the model of its GPU, by rank.
    ranks: Vec<(Rank, String)>,
}

impl JobShape {
    /// The shape of a job. None before its ranks on this node are known to run the same number of
    /// microbatches.
    pub(crate) fn of(job: &JobView, members: &Members) -> Option<Self> {
        let mut microbatches = job.ranks.iter().map(|rank| rank.num_microbatches);
        let num_microbatches = microbatches.next()??;
        if microbatches.any(|other| other != Some(num_microbatches)) {
            return None;
        }
        let of_node = |member: &Member| {
            let ranks = member.places.iter().map(|place| place.rank);
            ranks.zip(member.gpus.models.iter().cloned()).collect::<Vec<_>>()
        };
        let mut ranks: Vec<_> = members.values().flat_map(of_node).collect();
        ranks.sort();
        let position = &job.ranks.first()?.position;
        Some(Self {
            pp_degree: position.pp_degree,
            dp_degree: position.dp_degree,
            tp_degree: position.tp_degree,
            num_microbatches,
            ranks,
        })
    }

    /// What a profile of this is stored under.
    pub(crate) fn key(&self, uid: Uid, model: JobName) -> ProfileKey {
        stored_key(&ProfileKey { uid, model, gpus: self.gpus(), partition: self.partition() })
    }

    fn gpus(&self) -> String {
        let mut runs: Vec<(usize, &str)> = Vec::new();
        for (_, model) in &self.ranks {
            match runs.last_mut() {
                Some((count, last)) if last == model => *count = count.saturating_add(1),
                _ => runs.push((1, model)),
            }
        }
        match &runs[..] {
            [(_, model)] => (*model).to_owned(),
            runs => {
                let runs = runs.iter().map(|(count, model)| format!("{count}x{model}"));
                runs.collect::<Vec<_>>().join("+")
            }
        }
    }

    /// Whether the model and the step are divided in the same way: ranks that come later change nothing
    /// about that.
    pub(crate) fn is_divided_as(&self, other: &Self) -> bool {
        let degrees = |shape: &Self| {
            let Self { pp_degree, dp_degree, tp_degree, num_microbatches, .. } = *shape;
            (pp_degree, dp_degree, tp_degree, num_microbatches)
        };
        degrees(self) == degrees(other)
    }

    /// How the model is divided, as in the name of its profile.
    pub(crate) fn partition(&self) -> String {
        let Self { pp_degree, dp_degree, tp_degree, num_microbatches, .. } = self;
        let all = u64::from(*pp_degree)
            .saturating_mul(u64::from(*dp_degree))
            .saturating_mul(u64::from(*tp_degree));
        let mut partition =
            ProfileKey::partition_of(*pp_degree, *dp_degree, *tp_degree, *num_microbatches);
        // The other ranks are on other nodes.
        if (self.ranks.len() as u64) < all {
            let ranks: Vec<_> = self.ranks.iter().map(|(rank, _)| rank.to_string()).collect();
            partition += &format!("-ranks{}", ranks.join("."));
        }
        partition
    }
}

/// The clocks that every rank of a job may have.
pub(crate) fn allowed_clocks(job: &JobView) -> BTreeSet<Mhz> {
    let clocks = |rank: &RankView| rank.sm_clocks.iter().copied().collect::<BTreeSet<_>>();
    let mut each = job.ranks.iter().map(clocks);
    let first = each.next().unwrap_or_default();
    each.fold(first, |common, other| &common & &other)
}

/// The clocks that every rank of a whole job may have.
pub(crate) fn allowed_on_all(members: &Members) -> BTreeSet<Mhz> {
    let clocks = |member: &Member| member.gpus.clocks.iter().copied().collect::<BTreeSet<_>>();
    let each = members.values().map(clocks);
    each.reduce(|common, other| &common & &other).unwrap_or_default()
}

#[cfg(test)]
pub(crate) fn example() -> JobShape {
    JobShape {
        pp_degree: 2,
        dp_degree: 1,
        tp_degree: 1,
        num_microbatches: 8,
        ranks: vec![(Rank(0), "NVIDIA A100".into()), (Rank(1), "NVIDIA A100".into())],
    }
}

#[cfg(test)]
mod tests {
    use pfo_fleet::{Degrees, Gpus, Place};
    use pfo_protocol::{DpRank, Stage, TpRank};

    use super::*;
    use crate::straggler::tests::job as example_job;

    fn key(shape: &JobShape) -> (String, String) {
        let key = shape.key(Uid(7), "gpt".parse().unwrap());
        (key.gpus, key.partition)
    }

    #[test]
    fn a_key_names_what_changes_a_profile() {
        let shape = example();
        assert_eq!(key(&shape), ("NVIDIA-A100".into(), "pp2-dp1-tp1-mb8".into()));
        let mixed = JobShape { ranks: vec![(Rank(0), "A".into()), (Rank(1), "B".into())], ..shape };
        assert_eq!(key(&mixed).0, "1xA+1xB");
    }

    #[test]
    fn a_whole_job_has_the_ranks_of_all_nodes_and_the_clocks_that_all_of_them_may_have() {
        let member = |rank: u32, clocks: &[u32]| Member {
            degrees: Degrees { pp: 2, dp: 1, tp: 1 },
            places: vec![Place {
                rank: Rank(rank),
                stage: Stage(rank as u16),
                dp: DpRank(0),
                tp: TpRank(0),
            }],
            gpus: Gpus {
                models: vec![format!("A{rank}")],
                clocks: clocks.iter().copied().map(Mhz).collect(),
            },
            measures: false,
            slow: Vec::new(),
        };
        let (one, other) = (member(1, &[900, 1200]), member(0, &[600, 1200, 1500]));
        let members = [("a", one), ("b", other)];
        let members = members.map(|(name, member)| (name.parse().unwrap(), member)).into();
        let mut job = example_job(2);
        job.ranks.iter_mut().for_each(|rank| rank.num_microbatches = Some(8));
        job.ranks.truncate(1);
        let shape = JobShape::of(&job, &members).unwrap();
        assert_eq!(key(&shape), ("1xA0+1xA1".into(), "pp2-dp1-tp1-mb8".into()));
        assert_eq!(allowed_on_all(&members), BTreeSet::from([Mhz(1200)]));
    }

    #[test]
    fn degrees_that_no_job_can_have_are_no_overflow() {
        let shape =
            JobShape { pp_degree: u32::MAX, dp_degree: u32::MAX, tp_degree: u32::MAX, ..example() };
        assert!(key(&shape).1.ends_with("-ranks0.1"));
    }

    #[test]
    fn a_part_of_a_job_is_not_taken_for_another_part_or_the_whole() {
        let keys = [vec![0, 1], vec![0], vec![1]].map(|ranks: Vec<u32>| {
            let ranks = ranks.into_iter().map(|rank| (Rank(rank), "A".into())).collect();
            key(&JobShape { ranks, ..example() })
        });
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), 3, "{keys:?}");
        assert_eq!(keys[2].1, "pp2-dp1-tp1-mb8-ranks1");
    }
}

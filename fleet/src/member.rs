//! Who takes part in a job, and whether all of its ranks are there.

use std::collections::BTreeMap;

use pfo_vocabulary::{DpRank, Mhz, Rank, Stage, TpRank};
use serde::{Deserialize, Serialize};

use crate::node::Node;
use crate::standing::SlowStage;

/// A node's part in a job, which its agent keeps in the store under a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The sizes of the job, as its ranks on this node say.
    pub degrees: Degrees,
    /// Its ranks on this node.
    pub places: Vec<Place>,
    /// The GPUs of these.
    #[serde(default)]
    pub gpus: Gpus,
    /// Whether somebody at this node runs trials of the whole job.
    #[serde(default)]
    pub measures: bool,
    /// The stages on this node that do not run as they were profiled, if that is watched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow: Vec<SlowStage>,
}

/// The GPUs of a job's ranks on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpus {
    /// The model of each, in the order of the ranks.
    pub models: Vec<String>,
    /// The SM clocks that every one of them may have, rising.
    pub clocks: Vec<Mhz>,
}

/// The sizes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Degrees {
    /// Pipeline stages.
    pub pp: u32,
    /// Data-parallel replicas.
    pub dp: u32,
    /// Tensor-parallel shards.
    pub tp: u32,
}

impl Degrees {
    /// The ranks of the job.
    #[must_use]
    pub fn ranks(self) -> u64 {
        [self.pp, self.dp, self.tp].into_iter().map(u64::from).fold(1, u64::saturating_mul)
    }
}

/// Where a rank stands in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The global rank.
    pub rank: Rank,
    /// The pipeline stage.
    pub stage: Stage,
    /// The data-parallel replica.
    pub dp: DpRank,
    /// The tensor-parallel shard.
    pub tp: TpRank,
}

/// Why a job cannot be changed as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Incomplete {
    /// No node takes part.
    #[error("no node has a rank of the job")]
    Nobody,
    /// Nodes disagree about the sizes of the job.
    #[error("node {0} says pp {pp}, dp {dp}, tp {tp}, and node {2} something else",
        pp = .1.pp, dp = .1.dp, tp = .1.tp)]
    Sizes(Node, Degrees, Node),
    /// Two nodes have the same rank: one of them is another job's, or an earlier run's.
    #[error("nodes {1} and {2} both have rank {0}")]
    Twice(Rank, Node, Node),
    /// Ranks are missing.
    #[error(
        "{present} of {all} ranks are there, on {nodes} nodes; the others have no session, or \
        their nodes no agent in the fleet"
    )]
    Missing {
        /// The ranks that are there.
        present: u64,
        /// The ranks of the job.
        all: u64,
        /// The nodes that take part.
        nodes: usize,
    },
}

/// Checks that the members cover every rank of the job once.
///
/// # Errors
/// The first reason why not.
pub fn completeness(members: &BTreeMap<Node, Member>) -> Result<(), Incomplete> {
    let (first, one) = members.first_key_value().ok_or(Incomplete::Nobody)?;
    let mut owners = BTreeMap::new();
    for (node, member) in members {
        if member.degrees != one.degrees {
            return Err(Incomplete::Sizes(first.clone(), one.degrees, node.clone()));
        }
        for place in &member.places {
            if let Some(other) = owners.insert((place.stage, place.dp, place.tp), node) {
                return Err(Incomplete::Twice(place.rank, other.clone(), node.clone()));
            }
        }
    }
    let (present, all) = (owners.len() as u64, one.degrees.ranks());
    if present == all {
        Ok(())
    } else {
        Err(Incomplete::Missing { present, all, nodes: members.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(stages: impl IntoIterator<Item = u16>) -> Member {
        let place = |stage: u16| Place {
            rank: Rank(stage.into()),
            stage: Stage(stage),
            dp: DpRank(0),
            tp: TpRank(0),
        };
        let places = stages.into_iter().map(place).collect();
        let degrees = Degrees { pp: 4, dp: 1, tp: 1 };
        Member { degrees, places, gpus: Gpus::default(), measures: false, slow: Vec::new() }
    }

    fn of(members: &[(&str, Member)]) -> Result<(), String> {
        let members = members.iter().map(|(node, member)| (node.parse().unwrap(), member.clone()));
        completeness(&members.collect()).map_err(|why| why.to_string())
    }

    #[test]
    fn a_job_is_complete_when_every_rank_is_there_once() {
        assert_eq!(of(&[("a", member(0..2)), ("b", member(2..4))]), Ok(()));
        assert_eq!(of(&[]).unwrap_err(), "no node has a rank of the job");
        let missing = of(&[("a", member(0..2)), ("b", member(2..3))]).unwrap_err();
        assert!(missing.starts_with("3 of 4 ranks are there, on 2 nodes"), "{missing}");
        let twice = of(&[("a", member(0..3)), ("b", member(2..4))]).unwrap_err();
        assert_eq!(twice, "nodes a and b both have rank 2");
        let mut other = member(2..4);
        other.degrees.dp = 2;
        let sizes = of(&[("a", member(0..2)), ("b", other)]).unwrap_err();
        assert_eq!(sizes, "node a says pp 4, dp 1, tp 1, and node b something else");
    }
}

//! What the agents of a fleet tell each other about its power budgets. What comes from the store is checked
//! where it is decoded.

use std::collections::{BTreeMap, BTreeSet};

use pfo_budget::Point;
use pfo_fleet::{Digest, Node};
use pfo_protocol::{
    BudgetFileTrouble, BudgetScope, BudgetStatus, BudgetSteering, BudgetedJob, JobName,
    PartitionName, Uid,
};
use pfo_store::digest_of;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::job::JobKey;

/// The largest watts, seconds and weights that a record may contain.
const MOST: f64 = 1e12;

/// What one node draws, for the budgets of the fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::budget) struct NodeDraw {
    /// Another one each time: a node that says nothing new is silent.
    pub(in crate::budget) number: u64,
    /// Seconds until it says so again.
    pub(in crate::budget) every_s: u32,
    /// The number of the blueprint that it has carried out.
    pub(in crate::budget) blueprint: u64,
    /// What it draws beside these jobs, with the site's share of all of its GPUs, in watts.
    pub(in crate::budget) base_w: f64,
    /// The site's share of one GPU, in watts.
    pub(in crate::budget) site_w: f64,
    /// What it draws at most with every GPU at its power limit, if that is known, in watts.
    pub(in crate::budget) limits_w: Option<f64>,
    /// The jobs that count for a budget of the fleet.
    pub(in crate::budget) jobs: Vec<JobDraw>,
    /// What is wrong with the files of budgets that were set at the node.
    #[serde(default)]
    pub(in crate::budget) files: Vec<(BudgetScope, BudgetFileTrouble)>,
    /// What it does not obey, if so.
    #[serde(default)]
    pub(in crate::budget) disobeys: Option<String>,
    /// What it does not know of the power of its GPUs.
    #[serde(default)]
    pub(in crate::budget) unread: Option<String>,
}

/// A job, as far as it is on one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::budget) struct JobDraw {
    pub(in crate::budget) uid: Uid,
    pub(in crate::budget) job: JobName,
    /// The partition that it is in, as the node's scheduler says.
    #[serde(default)]
    pub(in crate::budget) partition: Option<PartitionName>,
    pub(in crate::budget) scope: BudgetScope,
    /// Its ranks on the node, and all of them.
    pub(in crate::budget) ranks: u32,
    pub(in crate::budget) all: u32,
    pub(in crate::budget) weight: Option<f64>,
    pub(in crate::budget) slowest: Option<f64>,
    /// What it draws, and what it drew before power limits held it, in watts.
    pub(in crate::budget) drawn_w: f64,
    pub(in crate::budget) free_w: f64,
    /// What its counters say that it drew since the last time.
    pub(in crate::budget) measured_w: Option<f64>,
    /// The tag of what all its ranks run.
    pub(in crate::budget) running: Option<u32>,
    /// Whether the node knows that. An agent that has just begun does not.
    pub(in crate::budget) is_known: bool,
    pub(in crate::budget) is_held: bool,
    pub(in crate::budget) is_limited: bool,
    /// The curve that the node tells of it.
    pub(in crate::budget) curve: Option<Digest>,
    pub(in crate::budget) problem: Option<String>,
    pub(in crate::budget) given_j: f64,
    pub(in crate::budget) lost_s: f64,
}

/// What jobs can run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::budget) struct Curves(pub(in crate::budget) Vec<JobCurve>);

/// What one job can run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::budget) struct JobCurve {
    pub(in crate::budget) uid: Uid,
    pub(in crate::budget) job: JobName,
    pub(in crate::budget) steering: BudgetSteering,
    /// Seconds, watts and tag of each point.
    pub(in crate::budget) points: Vec<(f64, f64, u32)>,
}

/// Which job runs which point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::budget) struct Blueprint {
    /// One more than that of the one before.
    pub(in crate::budget) number: u64,
    /// Who has decided it.
    pub(in crate::budget) by: Node,
    /// The budgets, with what is drawn.
    pub(in crate::budget) budgets: Vec<BudgetStatus>,
    pub(in crate::budget) jobs: Vec<Given>,
    pub(in crate::budget) nodes: BTreeMap<Node, Share>,
    /// The nodes whose curves the store does not have, though they have said them: it may have lost them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(in crate::budget) lacking: BTreeSet<Node>,
}

/// What one job was given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::budget) struct Given {
    /// The node that has it change: that of the job, or one of those that it is on.
    pub(in crate::budget) by: Option<Node>,
    /// Whether it is on several nodes.
    pub(in crate::budget) is_whole: bool,
    /// The tag of the point that it has to change to.
    pub(in crate::budget) to: Option<u32>,
    /// The tag of what it was ordered last.
    pub(in crate::budget) ordered: Option<u32>,
    /// The power limit of all its GPUs together, in watts, and their number.
    pub(in crate::budget) limit_w: Option<f64>,
    pub(in crate::budget) gpus: u32,
    /// Whether the budget takes something from its jobs.
    pub(in crate::budget) is_bound: bool,
    pub(in crate::budget) shown: BudgetedJob,
}

/// What one node may draw, in watts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::budget) struct Share {
    /// As decided.
    pub(in crate::budget) share_w: f64,
    /// As it was in any blueprint since the last one that the node is known to have carried out.
    pub(in crate::budget) most_w: f64,
}

/// What somebody has written; none if no agent writes that.
pub(in crate::budget) trait Told: DeserializeOwned {
    fn is_sound(&self) -> bool;

    fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().filter(Self::is_sound)
    }
}

fn is_amount(amount: f64) -> bool {
    (0.0..=MOST).contains(&amount)
}

impl Told for NodeDraw {
    fn is_sound(&self) -> bool {
        let own = [self.base_w, self.site_w, self.limits_w.unwrap_or(0.0)];
        own.into_iter().all(is_amount) && self.jobs.iter().all(JobDraw::is_sound)
    }
}

impl JobDraw {
    fn is_sound(&self) -> bool {
        let some = [self.weight, self.measured_w].map(|amount| amount.unwrap_or(0.0));
        let all = [self.drawn_w, self.free_w, self.given_j.abs(), self.lost_s];
        let is_weight = self.weight.is_none_or(|weight| weight > 0.0);
        let is_floor = self.slowest.is_none_or(|slowest| (1.0..=MOST).contains(&slowest));
        let has_ranks = (1..=self.all).contains(&self.ranks) && self.scope.is_of_fleet();
        is_weight && is_floor && has_ranks && some.into_iter().chain(all).all(is_amount)
    }

    pub(in crate::budget) fn key(&self) -> JobKey {
        JobKey { uid: self.uid, name: self.job.clone() }
    }

    pub(in crate::budget) fn is_whole(&self) -> bool {
        self.ranks < self.all
    }
}

impl Told for Curves {
    fn is_sound(&self) -> bool {
        true
    }
}

impl JobCurve {
    pub(in crate::budget) fn digest(&self) -> Digest {
        digest_of(&json(&(&self.steering, &self.points)))
    }

    pub(in crate::budget) fn points(&self) -> impl Iterator<Item = Point> {
        let point = |&(time_s, power_w, tag): &(f64, f64, u32)| Point { time_s, power_w, tag };
        self.points.iter().map(point)
    }
}

impl Told for Blueprint {
    fn is_sound(&self) -> bool {
        let is_share = |share: &Share| is_amount(share.share_w) && is_amount(share.most_w);
        let is_limit = |job: &Given| is_amount(job.limit_w.unwrap_or(0.0)) && job.gpus > 0;
        self.nodes.values().all(is_share) && self.jobs.iter().all(is_limit)
    }
}

impl Blueprint {
    /// What this node is to do with a job.
    pub(in crate::budget) fn given(
        &self,
        me: &Node,
        key: &JobKey,
        is_whole: bool,
    ) -> Option<&Given> {
        let is_it = |given: &&Given| {
            let is_here = given.is_whole || given.by.as_ref() == Some(me);
            given.is_whole == is_whole
                && is_here
                && (given.shown.uid, &given.shown.job) == (key.uid, &key.name)
        };
        self.jobs.iter().find(is_it)
    }
}

pub(in crate::budget) fn json(value: &impl Serialize) -> Vec<u8> {
    // No map in them has keys that are no strings, and nothing else fails.
    serde_json::to_vec(value).unwrap_or_default()
}

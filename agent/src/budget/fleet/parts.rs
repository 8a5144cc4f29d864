//! Jobs of the fleet as their nodes tell of them, and what was given to each.

use std::collections::BTreeMap;
use std::fmt;

use pfo_budget::{Curve, Point, Steering};
use pfo_fleet::Node;
use pfo_protocol::{BudgetScope, BudgetSteering, BudgetedJob, PartitionName};

use crate::budget::decision::{Decided, Draw, Gathered};
use crate::budget::fleet::record::{Blueprint, Given, JobDraw};
use crate::budget::gather::LEAST_W;
use crate::budget::known::OWN;
use crate::budget::report::reason_of;
use crate::job::JobKey;

/// A job of the fleet: jobs of one name that are on one node each are several.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FleetJob {
    pub(super) key: JobKey,
    /// The node of a job that is on one.
    pub(super) node: Option<Node>,
}

impl fmt::Display for FleetJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.key)?;
        self.node.iter().try_for_each(|node| write!(f, " on node {node}"))
    }
}

/// A job with what its nodes say.
pub(super) struct Parts<'a> {
    pub(super) job: FleetJob,
    pub(super) scope: BudgetScope,
    pub(super) partition: Option<PartitionName>,
    /// Those of nodes that are not silent; first of those that say the same of its partition.
    pub(super) live: Vec<(&'a Node, &'a JobDraw)>,
    pub(super) is_complete: bool,
    pub(super) site_w: f64,
    /// What silent nodes say that it draws there, in watts.
    pub(super) silent_w: f64,
    /// The node that has it change, and what it can run.
    pub(super) by: Option<(Node, Curve)>,
}

impl FleetJob {
    pub(super) fn is(&self, given: &Given) -> bool {
        let is_named = (self.key.uid, &self.key.name) == (given.shown.uid, &given.shown.job);
        is_named
            && given.is_whole == self.node.is_none()
            && (given.is_whole || self.node == given.by)
    }
}

impl Parts<'_> {
    /// What it draws on nodes that are not silent, in watts.
    pub(super) fn drawn_w(&self) -> f64 {
        self.live.iter().map(|(_, part)| part.drawn_w).sum()
    }

    fn is_held(&self) -> bool {
        self.live.iter().any(|(_, part)| part.is_held)
    }

    fn is_limited(&self) -> bool {
        self.live.iter().any(|(_, part)| part.is_limited)
    }

    /// The tag of what all of it runs.
    fn running(&self) -> Option<u32> {
        let mut known = self.live.iter().filter(|(_, part)| part.is_known);
        let (_, first) = known.next()?;
        first.running.filter(|_| known.all(|(_, part)| part.running == first.running))
    }

    /// What can be run, if it can be changed at all.
    fn curve(&self) -> Option<&Curve> {
        self.by.as_ref().filter(|_| self.is_complete).map(|(_, curve)| curve)
    }

    fn weight(&self) -> f64 {
        let said = self.live.iter().find_map(|(_, part)| part.weight);
        said.unwrap_or_else(|| f64::from(self.gpus()))
    }

    fn gpus(&self) -> u32 {
        self.live.iter().map(|(_, part)| part.ranks).fold(0_u32, u32::saturating_add).max(1)
    }

    fn slowest(&self) -> Option<f64> {
        self.live.iter().find_map(|(_, part)| part.slowest)
    }

    /// As a decision sees it; none if all of its nodes are silent, which count for it.
    pub(super) fn gathered(&self) -> Option<Gathered<FleetJob>> {
        let (_, first) = self.live.first()?;
        let fixed = || {
            let power_w: f64 = self.live.iter().map(|(_, part)| part.free_w).sum();
            let tag = first.running.unwrap_or(OWN);
            let point = Point { time_s: 1.0, power_w: power_w.max(LEAST_W), tag };
            Curve::steered(Steering::PowerLimits, [point], None).ok()
        };
        let is_fixed = self.curve().is_none();
        let measured = self.live.iter().map(|(_, part)| part.measured_w).sum::<Option<f64>>();
        Some(Gathered {
            key: self.job.clone(),
            curve: self.curve().cloned().or_else(fixed)?,
            weight: self.weight(),
            running: self.running().filter(|_| !self.is_held()),
            measured_w: measured.filter(|_| !is_fixed && !self.is_limited()),
            is_held: self.is_held(),
            has_floor: self.slowest().is_some(),
            is_limited: self.is_limited(),
        })
    }

    pub(super) fn given(
        &self,
        decided: Option<&Decided<FleetJob>>,
        before: Option<&Blueprint>,
    ) -> Given {
        let former = || {
            let former = before?.jobs.iter().find(|given| self.job.is(given))?;
            former.ordered
        };
        let to = decided.and_then(|decided| decided.changes.get(&self.job)).copied();
        let share = decided.and_then(|decided| decided.shares.get(&self.job));
        let share = share.filter(|_| self.curve().is_some());
        let is_tight =
            |decided: &Decided<FleetJob>| decided.price > 0.0 || decided.missing_w.is_some();
        let steering = match (share, self.curve().map(Curve::steering)) {
            _ if self.is_limited() => BudgetSteering::PowerLimits,
            (Some(_), Some(Steering::Plans)) => BudgetSteering::Plans,
            (Some(_), Some(Steering::UniformClocks)) => BudgetSteering::UniformClocks,
            _ => BudgetSteering::Nothing,
        };
        let problem = || self.live.iter().find_map(|(_, part)| part.problem.clone());
        let said_w = |said: fn(&JobDraw) -> f64| self.live.iter().map(|(_, part)| said(part)).sum();
        Given {
            by: self.by.as_ref().map(|(node, _)| node.clone()).or_else(|| self.job.node.clone()),
            is_whole: self.job.node.is_none(),
            to,
            ordered: to.or_else(|| self.running()).or_else(former),
            limit_w: decided.and_then(|decided| decided.limits.get(&self.job)).copied(),
            gpus: self.gpus(),
            is_bound: decided.is_some_and(is_tight),
            shown: BudgetedJob {
                job: self.job.key.name.clone(),
                uid: self.job.key.uid,
                partition: self.partition.clone(),
                scope: self.scope.clone(),
                steering,
                weight: self.weight(),
                slowest: self.slowest(),
                drawn_w: Some(self.drawn_w() + self.silent_w),
                own_w: share.map(|share| share.power_w + share.given_w),
                given_w: share.map_or(0.0, |share| share.given_w),
                lost: share.map_or(0.0, |share| share.lost),
                reason: reason_of(self.is_held(), share),
                next_price: share.and_then(|share| share.next_price),
                given_j: said_w(|part| part.given_j),
                lost_s: said_w(|part| part.lost_s),
                problem: problem(),
            },
        }
    }
}

/// What each node may draw: what its jobs were given, and what is left of the budget in proportion.
pub(super) struct NodeWatts(BTreeMap<Node, f64>);

impl NodeWatts {
    /// What each of them draws beside jobs that a budget steers.
    pub(super) fn of(base_w: impl Iterator<Item = (Node, f64)>) -> Self {
        Self(base_w.collect())
    }

    pub(super) fn add(
        &mut self,
        draw: &Draw<FleetJob>,
        decided: &Decided<FleetJob>,
        own: &[&Parts<'_>],
        shares_rest: bool,
    ) {
        let given_w = |parts: &Parts<'_>| {
            let share = decided.shares.get(&parts.job).map(|share| share.power_w);
            let limit = decided.limits.get(&parts.job).copied();
            share.into_iter().chain(limit).reduce(f64::min).unwrap_or_else(|| parts.drawn_w())
        };
        let all_w: f64 = own.iter().map(|parts| given_w(parts)).sum();
        let room_w = draw.budget_w - draw.base_w;
        let scale = if shares_rest && all_w > 0.0 { (room_w / all_w).max(1.0) } else { 1.0 };
        for parts in own {
            let drawn_w = parts.drawn_w();
            for (node, part) in &parts.live {
                let even = 1.0 / parts.live.len() as f64;
                let share = if drawn_w > 0.0 { part.drawn_w / drawn_w } else { even };
                *self.0.entry((*node).clone()).or_default() += scale * share * given_w(parts);
            }
        }
    }

    pub(super) fn share_w(&self, node: &Node) -> f64 {
        self.0.get(node).copied().unwrap_or(0.0)
    }
}

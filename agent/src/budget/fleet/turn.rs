//! This node's turn at each look: it says what it draws, decides for all if nobody else does, and takes what
//! its jobs were given.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pfo_budget::Controller;
use pfo_protocol::{BudgetScope, GpuName, GpuUuid, Request, Response};
use pfo_service::now_ns;
use pfo_store::{StoreError, Topic};
use tokio::time::{Instant, sleep};

use crate::budget::budgets::BudgetMeans;
use crate::budget::decision::{Draw, decide};
use crate::budget::fleet::decider::Decider;
use crate::budget::fleet::files::Files;
use crate::budget::fleet::link::{Link, Received};
use crate::budget::fleet::record::{Blueprint, Curves, Given, JobCurve, JobDraw, NodeDraw};
use crate::budget::gather::{Member, Node};
use crate::budget::known::Known;
use crate::job::JobKey;

/// The deciding agent counts as silent after this many seconds, or this many of its own intervals, whichever
/// is longer.
const SILENT_S: f64 = 6.0;
const SILENT_TIMES: f64 = 3.0;

/// A node that has not reached the store for so long holds itself to its share.
const CUT_OFF: Duration = Duration::from_secs(8);

/// The most points of a curve that a node publishes.
const MOST_POINTS: usize = 64;

/// The most bytes of all curves that a node publishes.
const MOST_BYTES: usize = 200 * 1024;

/// The shortest time between two decisions, as a share of the time between two looks.
const SOONEST: f64 = 0.8;

/// How often an agent that decides first looks whether every node has said what it draws, and how long after
/// another: a look later is too late for an emergency.
const FIRST_HEARS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// While no node decides, the first three of them try to, and at each further look four times as many.
/// One of them wins; each reads what all nodes say, so it should not be all of them.
const FIRST_DECIDERS: usize = 3;
const MORE_DECIDERS: usize = 4;

/// What this node keeps from one look to the next.
#[derive(Default)]
pub(in crate::budget) struct Turns {
    told: Option<Curves>,
    files: Files,
    decider: Option<Decider>,
    decided: Option<Instant>,
    decided_for: u64,
    /// Looks in a row at which no node decided, and this one left it to others.
    left_to_others: u32,
    /// Holds this node to its share while it is cut off.
    alone: Controller,
    /// The power limit that each GPU has without pfo, if that is known.
    limits_w: BTreeMap<GpuUuid, Option<f64>>,
}

/// What is known at one look.
pub(in crate::budget) struct Look<'a> {
    pub(in crate::budget) means: &'a BudgetMeans,
    pub(in crate::budget) link: &'a Link,
    pub(in crate::budget) node: &'a Node,
    /// Those that count for a budget of the fleet.
    pub(in crate::budget) own: Vec<&'a Member>,
    pub(in crate::budget) known: &'a BTreeMap<JobKey, Known>,
    /// What the node draws beside these, in watts.
    pub(in crate::budget) base_w: f64,
    pub(in crate::budget) elapsed_s: f64,
}

impl Turns {
    /// Says, decides and takes. The blueprint that is in force, if there is one.
    pub(in crate::budget) async fn take(&mut self, look: &Look<'_>) -> Option<Received> {
        if look.link.away().is_none() {
            self.files.reread(look.link).await;
        }
        let curves = self.say_curves(look).await;
        let draw = self.draw(look, &curves).await;
        look.link.say(&draw).await;
        if look.link.away().is_none()
            && let Err(error) = self.decide(look).await
        {
            tracing::debug!("cannot decide for the fleet: {error}");
        }
        look.link.blueprint()
    }

    /// Says what the node draws that obeys no budget of the fleet, and why: it counts for that.
    pub(in crate::budget) async fn disobey(&mut self, look: &Look<'_>) {
        let draw = self.draw(look, &Curves::default()).await;
        look.link.say(&draw).await;
    }

    /// Ends what was decided, when there is no budget any more. Whether it has ended.
    pub(in crate::budget) async fn end(&mut self, link: &Link) -> bool {
        self.decider = None;
        let Some(now) = link.blueprint().filter(|now| !now.blueprint.jobs.is_empty()) else {
            return true;
        };
        if is_due(link, Some(&now), 0.0) {
            let empty = Blueprint {
                number: now.blueprint.number.saturating_add(1),
                by: link.me().clone(),
                budgets: Vec::new(),
                jobs: Vec::new(),
                nodes: BTreeMap::new(),
                lacking: BTreeSet::new(),
            };
            if let Err(error) = link.agree(now.revision, empty).await {
                tracing::debug!("cannot end what was decided for the fleet: {error}");
            }
        }
        false
    }

    async fn say_curves(&mut self, look: &Look<'_>) -> Curves {
        let is_lacking = |blueprint: &Blueprint| blueprint.lacking.contains(look.link.me());
        if look.link.blueprint().is_some_and(|received| is_lacking(&received.blueprint)) {
            self.told = None;
        }
        let told = |member: &&Member| {
            let curve = member.curve.as_ref()?;
            let points = curve.convex(MOST_POINTS).into_iter();
            Some(JobCurve {
                uid: member.key.uid,
                job: member.key.name.clone(),
                steering: member.steering,
                points: points.map(|point| (point.time_s, point.power_w, point.tag)).collect(),
            })
        };
        let mut curves = Curves(look.own.iter().filter_map(told).collect());
        while super::record::json(&curves).len() > MOST_BYTES {
            curves.0.pop();
        }
        if self.told.as_ref() != Some(&curves) && look.link.say_curves(&curves).await {
            self.told = Some(curves);
        }
        self.told.clone().unwrap_or_default()
    }

    async fn draw(&mut self, look: &Look<'_>, Curves(told): &Curves) -> NodeDraw {
        let settings = look.means.settings.now();
        let config = &settings.config.budget;
        let blueprint = look.link.blueprint();
        let job = |member: &&Member| {
            let known = look.known.get(&member.key)?;
            let is_it =
                |curve: &&JobCurve| (curve.uid, &curve.job) == (member.key.uid, &member.key.name);
            let drawn_w = member.drawn_w();
            Some(JobDraw {
                uid: member.key.uid,
                job: member.key.name.clone(),
                partition: member.partition.clone(),
                scope: member.scope.clone(),
                ranks: member.ranks(),
                all: member.all_ranks,
                weight: member.own_weight,
                slowest: member.slowest,
                drawn_w,
                free_w: known.free_w.unwrap_or(drawn_w),
                measured_w: member.measured_w,
                running: known.running(),
                is_known: member.is_known,
                is_held: member.is_held,
                is_limited: member.is_limited,
                curve: told.iter().find(is_it).map(JobCurve::digest),
                problem: known.problem.clone(),
                given_j: known.given_j,
                lost_s: known.lost_s,
            })
        };
        NodeDraw {
            number: now_ns(),
            every_s: config.every_s.get(),
            blueprint: blueprint.map_or(0, |received| received.blueprint.number),
            base_w: look.base_w,
            site_w: f64::from(config.site_w_per_gpu.get()),
            limits_w: self.limits_w(look).await,
            jobs: look.own.iter().filter_map(job).collect(),
            files: self.files.troubles(),
            disobeys: look.link.objection(),
            unread: look.node.unread_of(&BudgetScope::Node, &[]),
        }
    }

    /// What the GPUs of the node draw at most, with the site's share; none if that of one is not known.
    async fn limits_w(&mut self, look: &Look<'_>) -> Option<f64> {
        let site_w = f64::from(look.means.settings.now().config.budget.site_w_per_gpu.get());
        let mut all_w = 0.0;
        for gpu in &look.node.gpus {
            if !self.limits_w.contains_key(&gpu.uuid) {
                let asked = Request::PowerLimits(GpuName::Uuid(gpu.uuid.clone()));
                let limit_w = match look.means.questions.ask(asked).await {
                    Ok(Response::PowerLimits { highest_w, .. }) => Some(f64::from(highest_w)),
                    _ => None,
                };
                self.limits_w.insert(gpu.uuid.clone(), limit_w);
            }
            let own_w = self.limits_w.get(&gpu.uuid).copied().flatten()?;
            all_w += site_w + gpu.power_limit_w.map_or(own_w, f64::from);
        }
        Some(all_w)
    }

    /// Decides, if this is the node that does or the one that does is silent.
    async fn decide(&mut self, look: &Look<'_>) -> Result<(), StoreError> {
        let (link, book) = (look.link, look.link.book());
        if link.revision() == 0 {
            // What there is has not been read yet.
            return Ok(());
        }
        let every_s = f64::from(look.means.settings.now().config.budget.every_s.get());
        let now = link.blueprint();
        if !is_due(link, now.as_ref(), every_s) {
            self.decider = None;
            self.left_to_others = 0;
            return Ok(());
        }
        let since_s = self.decided.map_or(f64::INFINITY, |at| at.elapsed().as_secs_f64());
        if since_s < SOONEST * every_s && self.decided_for == link.revision() {
            return Ok(());
        }
        (self.decided, self.decided_for) = (Some(Instant::now()), link.revision());
        let enrolled = link.enrolled().await?;
        let is_new = self.decider.is_none();
        if is_new && !begins(link.me(), &enrolled, self.left_to_others) {
            self.left_to_others = self.left_to_others.saturating_add(1);
            return Ok(());
        }
        let before = || now.as_ref().map(|now| (*now.blueprint).clone());
        let decider =
            self.decider.get_or_insert_with(|| Decider::after(link.me().clone(), before()));
        let elapsed_s = if is_new { every_s } else { since_s.clamp(1e-3, 60.0) };
        decider.hear(link.said(Topic::Draw).await?, elapsed_s);
        if now.as_ref().is_none_or(|now| now.blueprint.budgets.is_empty()) {
            hear_all(decider, link, &enrolled).await?;
        }
        if !decider.lacking().is_empty() {
            decider.learn(link.said(Topic::Curves).await?);
        }
        let blueprint = decider.decide(&book, &enrolled, elapsed_s);
        let revision = now.map_or(0, |now| now.revision);
        match link.agree(revision, blueprint).await {
            Ok(true) => {
                if is_new {
                    tracing::info!("this node decides for the power budgets of the fleet");
                }
                link.tell_again().await?;
            }
            Ok(false) => {
                tracing::info!("another node decides for the power budgets of the fleet");
                self.decider = None;
            }
            Err(error) => {
                // Its role may not let it decide.
                if is_new || matches!(error, StoreError::Refused(_)) {
                    self.decider = None;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// The power limits of jobs, in watts: those that were decided and, while the node is cut off, those that
    /// hold it to its share.
    pub(in crate::budget) fn limits(
        &mut self,
        look: &Look<'_>,
        blueprint: Option<&Blueprint>,
    ) -> BTreeMap<JobKey, f64> {
        let mut limits = BTreeMap::new();
        for member in &look.own {
            // No node decides that a job with a floor is held below it.
            let decided = blueprint.filter(|_| member.slowest.is_none());
            let given = decided.and_then(|blueprint| given(look.link, blueprint, member));
            if let Some((limit_w, given)) = given.and_then(|given| Some((given.limit_w?, given))) {
                let own = member.gpus.len() as f64 / f64::from(given.gpus);
                limits.insert(member.key.clone(), own.min(1.0) * limit_w);
            }
        }
        let share_w = look.link.share_w().filter(|_| is_cut_off(look.link));
        let Some(share_w) = share_w else {
            self.alone = Controller::new();
            return limits;
        };
        let fixed = |member: &&Member| {
            let known = look.known.get(&member.key)?;
            let mut gathered = member.fixed(known)?;
            gathered.has_floor = false;
            Some(gathered)
        };
        let draw = Draw {
            jobs: look.own.iter().filter_map(fixed).collect(),
            base_w: look.base_w,
            budget_w: share_w,
            elapsed_s: look.elapsed_s,
            is_emergency: false,
        };
        if let Ok(decided) = decide(&mut self.alone, &draw) {
            for (key, held_w) in decided.limits {
                let limit_w = limits.entry(key).or_insert(held_w);
                *limit_w = limit_w.min(held_w);
            }
        }
        limits
    }
}

/// Waits until every node has said what it draws, if that is soon.
async fn hear_all(
    decider: &mut Decider,
    link: &Link,
    enrolled: &BTreeSet<pfo_fleet::Node>,
) -> Result<(), StoreError> {
    for _ in 0..FIRST_HEARS {
        if decider.hears_all(enrolled) {
            break;
        }
        sleep(FIRST_PAUSE).await;
        decider.hear(link.said(Topic::Draw).await?, FIRST_PAUSE.as_secs_f64());
    }
    Ok(())
}

/// What a job of this node was given.
pub(in crate::budget) fn given<'a>(
    link: &Link,
    blueprint: &'a Blueprint,
    member: &Member,
) -> Option<&'a Given> {
    blueprint.given(link.me(), &member.key, member.is_whole())
}

/// Whether this node has to get by without the store.
pub(in crate::budget) fn is_cut_off(link: &Link) -> bool {
    link.away().is_some_and(|away| away > CUT_OFF)
}

/// Whether this node tries to decide, after it has left that to others for this number of looks.
fn begins(me: &pfo_fleet::Node, enrolled: &BTreeSet<pfo_fleet::Node>, left_to_others: u32) -> bool {
    let deciders = FIRST_DECIDERS.saturating_mul(MORE_DECIDERS.saturating_pow(left_to_others));
    enrolled.range(..me).count() < deciders
}

/// Whether it is for this node to decide.
fn is_due(link: &Link, now: Option<&Received>, every_s: f64) -> bool {
    let silent_s = SILENT_S.max(SILENT_TIMES * every_s);
    now.is_none_or(|now| {
        now.blueprint.by == *link.me() || now.at.elapsed().as_secs_f64() > silent_s
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_of_many_nodes_begin_to_decide_and_more_if_none_of_them_does() {
        let node = |number: usize| -> pfo_fleet::Node { format!("n{number:04}").parse().unwrap() };
        let enrolled: BTreeSet<_> = (0..1000).map(node).collect();
        let begin = |looks| enrolled.iter().filter(|me| begins(me, &enrolled, looks)).count();
        assert_eq!([0, 1, 2, 5, 1000].map(begin), [3, 12, 48, 1000, 1000]);
        assert!(begins(&node(7), &BTreeSet::from([node(7), node(9)]), 0));
        assert!(begins(&node(7), &BTreeSet::new(), 0), "the list may be older than the node");
    }
}

//! Decides for all nodes of the fleet: from what they say to one blueprint. Pure but for the time.

use std::collections::{BTreeMap, BTreeSet};

use pfo_budget::{Controller, Curve, Steering};
use pfo_fleet::{Digest, Node};
use pfo_protocol::{BudgetFileTrouble, BudgetScope, BudgetStatus, BudgetSteering};

use crate::budget::book::{Book, Kept};
use crate::budget::decision::{Draw, decide};
use crate::budget::fleet::parts::{FleetJob, NodeWatts, Parts};
use crate::budget::fleet::record::{Blueprint, Curves, Given, JobCurve, NodeDraw, Share};
use crate::budget::followed::Followed;
use crate::budget::job_curve::assumed_below_plans;
use crate::budget::level::Level;
use crate::budget::report::undecided;
use crate::job::JobKey;

/// A node is silent once it has said nothing new for this many seconds, or for this many of its own
/// intervals, whichever is longer.
const SILENT_S: f64 = 10.0;
const SILENT_TIMES: f64 = 3.0;

/// A silent node is trusted to hold its share for this many seconds. After that its agent may be gone.
const TRUSTED_S: f64 = 60.0;

/// Nodes that are named.
const NAMED: usize = 8;

/// What a node has said, and for how long nothing else.
#[derive(Debug)]
struct Heard {
    draw: NodeDraw,
    silent_s: f64,
    /// Whether it was said while this agent has listened. What the store has may be of an earlier budget.
    is_new: bool,
}

impl Heard {
    fn is_silent(&self) -> bool {
        self.silent_s > SILENT_S.max(SILENT_TIMES * f64::from(self.draw.every_s))
    }

    fn drawn_w(&self) -> f64 {
        self.draw.base_w + self.draw.jobs.iter().map(|job| job.drawn_w).sum::<f64>()
    }

    /// The watts that the decision counts for a silent node. For a minute: the larger of its share and of what it
    /// drew last, at most the sum of its power limits. Then: that sum.
    fn counted_w(&self, share: Share) -> f64 {
        let held_w = self.drawn_w().max(share.most_w);
        let is_trusted = self.silent_s <= TRUSTED_S;
        let most_w = |limits_w: f64| if is_trusted { held_w.min(limits_w) } else { limits_w };
        self.draw.limits_w.map_or(held_w, most_w)
    }
}

/// Decides again and again, from what it knows of before.
pub(in crate::budget) struct Decider {
    me: Node,
    followed: BTreeMap<BudgetScope, Followed>,
    heard: BTreeMap<Node, Heard>,
    /// Whether it has heard what the store had at first.
    listens: bool,
    curves: BTreeMap<(Node, JobKey), (Digest, JobCurve)>,
    before: Option<Blueprint>,
    /// Jobs of which what another agent has ordered is to be taken over.
    inherits: bool,
}

impl Decider {
    /// Goes on after a blueprint.
    pub(in crate::budget) fn after(me: Node, before: Option<Blueprint>) -> Self {
        Self {
            me,
            followed: BTreeMap::new(),
            heard: BTreeMap::new(),
            listens: false,
            curves: BTreeMap::new(),
            inherits: before.is_some(),
            before,
        }
    }

    /// Takes what the nodes say.
    pub(in crate::budget) fn hear(&mut self, said: BTreeMap<Node, NodeDraw>, elapsed_s: f64) {
        let mut before = std::mem::take(&mut self.heard);
        for (node, draw) in said {
            let heard = match before.remove(&node) {
                Some(heard) if heard.draw.number == draw.number => {
                    Heard { silent_s: heard.silent_s + elapsed_s, ..heard }
                }
                _ => {
                    let is_new = self.listens || node == self.me;
                    Heard { draw, silent_s: 0.0, is_new }
                }
            };
            self.heard.insert(node, heard);
        }
        self.listens = true;
    }

    /// The nodes that have curves that are not known.
    pub(in crate::budget) fn lacking(&self) -> BTreeSet<Node> {
        let is_unknown = |(node, heard): &(&Node, &Heard)| {
            heard.draw.jobs.iter().any(|job| {
                let known = self.curves.get(&((*node).clone(), job.key()));
                job.curve.is_some_and(|curve| known.is_none_or(|(digest, _)| *digest != curve))
            })
        };
        self.heard.iter().filter(is_unknown).map(|(node, _)| node.clone()).collect()
    }

    /// Takes what jobs can run.
    pub(in crate::budget) fn learn(&mut self, curves: BTreeMap<Node, Curves>) {
        self.curves.clear();
        for (node, Curves(jobs)) in curves {
            for curve in jobs {
                let key = JobKey { uid: curve.uid, name: curve.job.clone() };
                self.curves.insert((node.clone(), key), (curve.digest(), curve));
            }
        }
    }

    /// Decides for all budgets.
    pub(in crate::budget) fn decide(
        &mut self,
        book: &Book,
        enrolled: &BTreeSet<Node>,
        elapsed_s: f64,
    ) -> Blueprint {
        self.follow(book);
        let before = self.before.take();
        let shares = before.as_ref().map(|before| before.nodes.clone()).unwrap_or_default();
        let mut blueprint = Blueprint {
            number: before.as_ref().map_or(0, |before| before.number).saturating_add(1),
            by: self.me.clone(),
            budgets: Vec::new(),
            jobs: Vec::new(),
            nodes: BTreeMap::new(),
            lacking: self.lacking(),
        };
        let mut followed = std::mem::take(&mut self.followed);
        let jobs = self.parts(book, before.as_ref());
        let has_all = followed.contains_key(&BudgetScope::Fleet);
        let mut watts =
            NodeWatts::of(self.heard.iter().map(|(node, heard)| (node.clone(), heard.draw.base_w)));
        for (scope, followed) in &mut followed {
            let own: Vec<&Parts<'_>> = jobs.iter().filter(|job| job.scope == *scope).collect();
            if self.inherits
                && let Some(before) = &before
            {
                inherit(&mut followed.controller, before, &own);
            }
            let base_w = self.base_w(scope, &jobs, &shares);
            let drawn = Drawn { own: &own, base_w, is_all: self.hears_all(enrolled) };
            let draw = draw(followed, &drawn, before.as_ref(), elapsed_s);
            let decided = decide(&mut followed.controller, &draw);
            let mut status = undecided(&book.orders[scope]);
            let drawn_w: f64 = own.iter().map(|job| job.drawn_w()).sum();
            status.budget_w = followed.has_begun().then_some(draw.budget_w);
            status.base_w = base_w;
            status.drawn_w = Some(base_w + drawn_w);
            let problem = decided.as_ref().err().map(ToString::to_string);
            status.problem = problem.or_else(|| self.absent(enrolled, &shares));
            status.file = followed.level.trouble.clone().or(self.trouble(&book.orders[scope]));
            if let Ok(decided) = &decided {
                status.reserve_w = decided.reserve_w;
                status.price = Some(decided.price).filter(|price| price.is_finite());
                status.missing_w = decided.missing_w;
                let shares_rest = *scope == BudgetScope::Fleet || !has_all;
                watts.add(&draw, decided, &own, shares_rest);
            }
            let decided = decided.as_ref().ok();
            blueprint.jobs.extend(own.iter().map(|job| job.given(decided, before.as_ref())));
            blueprint.budgets.push(status);
        }
        self.inherits = false;
        blueprint.nodes = self.shares(&watts, &shares, before.map_or(0, |before| before.number));
        self.followed = followed;
        self.before = Some(blueprint.clone());
        blueprint
    }

    /// What each node may draw from now on. What a silent one has stays.
    fn shares(
        &self,
        watts: &NodeWatts,
        former: &BTreeMap<Node, Share>,
        number: u64,
    ) -> BTreeMap<Node, Share> {
        let share = |(node, heard): (&Node, &Heard)| {
            let share_w = watts.share_w(node);
            let share = match former.get(node) {
                Some(former) if heard.is_silent() => *former,
                Some(former) => {
                    let knows_it = heard.draw.blueprint >= number;
                    let former_w = if knows_it { former.share_w } else { former.most_w };
                    Share { share_w, most_w: share_w.max(former_w) }
                }
                None => Share { share_w, most_w: share_w },
            };
            (node.clone(), share)
        };
        self.heard.iter().map(share).collect()
    }

    fn follow(&mut self, book: &Book) {
        self.followed.retain(|scope, _| book.orders.contains_key(scope));
        for (scope, kept) in book.orders.iter().filter(|(scope, _)| scope.is_of_fleet()) {
            let level = match self.followed.get_mut(scope) {
                Some(followed) if followed.order == kept.order => {
                    if let Some(text) = &kept.text {
                        followed.level.replace(&kept.order, text);
                    }
                    continue;
                }
                _ => Level::kept(&kept.order, kept.text.as_deref()),
            };
            // What cannot be read was refused when it was set.
            let Ok(level) = level else { continue };
            let controller = self.followed.remove(scope).map(|followed| followed.controller);
            let followed = Followed::new(kept.order.clone(), level, controller.unwrap_or_default());
            self.followed.insert(scope.clone(), followed);
        }
    }

    fn parts<'a>(&'a self, book: &Book, before: Option<&Blueprint>) -> Vec<Parts<'a>> {
        let mut jobs: BTreeMap<FleetJob, Parts<'a>> = BTreeMap::new();
        let mut ranks: BTreeMap<FleetJob, (u32, u32)> = BTreeMap::new();
        for (node, heard) in &self.heard {
            for part in &heard.draw.jobs {
                let on = Some(node.clone()).filter(|_| !part.is_whole());
                let job = FleetJob { key: part.key(), node: on };
                let of_job = jobs.entry(job.clone()).or_insert_with(|| Parts {
                    job: job.clone(),
                    scope: part.scope.clone(),
                    partition: None,
                    live: Vec::new(),
                    is_complete: false,
                    site_w: 0.0,
                    silent_w: 0.0,
                    by: None,
                });
                // A node whose prolog failed knows no partition.
                if of_job.partition.is_none() && part.partition.is_some() {
                    of_job.scope.clone_from(&part.scope);
                    of_job.partition.clone_from(&part.partition);
                }
                of_job.site_w += heard.draw.site_w * f64::from(part.ranks);
                if heard.is_silent() {
                    of_job.silent_w += part.drawn_w;
                } else {
                    of_job.live.push((node, part));
                    let (here, all) = ranks.entry(job).or_default();
                    (*here, *all) = (here.saturating_add(part.ranks), part.all);
                }
            }
        }
        for (job, parts) in &mut jobs {
            parts.live.sort_by_key(|(_, part)| part.partition != parts.partition);
            parts.is_complete = ranks.get(job).is_some_and(|(here, all)| here == all);
            let is_emergency =
                book.orders.get(&parts.scope).is_some_and(|kept| kept.order.emergency);
            parts.by = self.steered_by(parts, before, is_emergency);
        }
        jobs.into_values().collect()
    }

    /// The node that has a job change, with what it can run: one that has a frontier before one that has
    /// none, and the one of before.
    fn steered_by(
        &self,
        parts: &Parts<'_>,
        before: Option<&Blueprint>,
        is_emergency: bool,
    ) -> Option<(Node, Curve)> {
        let former = before.and_then(|before| {
            let of = |given: &&Given| parts.job.is(given);
            before.jobs.iter().find(of)?.by.clone()
        });
        let told = parts.live.iter().filter_map(|(node, part)| {
            let (digest, curve) = self.curves.get(&((*node).clone(), part.key()))?;
            let rank = match curve.steering {
                BudgetSteering::Plans => 0,
                _ => 1,
            };
            (part.curve == Some(*digest)).then_some((
                (rank, former.as_ref() != Some(*node), *node),
                part,
                curve,
            ))
        });
        let ((_, _, node), part, curve) = told.min_by_key(|(rank, ..)| *rank)?;
        let steering = match curve.steering {
            BudgetSteering::Plans => Steering::Plans,
            _ => Steering::UniformClocks,
        };
        let slowest = part.slowest.filter(|_| !is_emergency);
        let curve = Curve::steered(steering, curve.points(), slowest).ok()?;
        Some((node.clone(), assumed_below_plans(curve)))
    }

    /// What is drawn beside the jobs of a budget, in watts.
    fn base_w(
        &self,
        scope: &BudgetScope,
        jobs: &[Parts<'_>],
        shares: &BTreeMap<Node, Share>,
    ) -> f64 {
        if *scope != BudgetScope::Fleet {
            let own = jobs.iter().filter(|job| job.scope == *scope);
            return own.map(|job| job.site_w + job.silent_w).sum();
        }
        let others = jobs.iter().filter(|job| job.scope != *scope);
        let others_w: f64 = others.map(Parts::drawn_w).sum();
        let node_w = |(node, heard): (&Node, &Heard)| match heard.is_silent() {
            true => heard.counted_w(shares.get(node).copied().unwrap_or_default()),
            false => heard.draw.base_w,
        };
        others_w + self.heard.iter().map(node_w).sum::<f64>()
    }

    /// What the node where a budget was set says of its file.
    fn trouble(&self, kept: &Kept) -> Option<BudgetFileTrouble> {
        let said = &self.heard.get(kept.by_node.as_ref()?)?.draw.files;
        let (_, trouble) = said.iter().find(|(scope, _)| *scope == kept.order.scope)?;
        Some(trouble.clone())
    }

    /// Whether every node has said what it draws since this agent listens.
    pub(super) fn hears_all(&self, enrolled: &BTreeSet<Node>) -> bool {
        let is_new = |node: &Node| self.heard.get(node).is_some_and(|heard| heard.is_new);
        enrolled.iter().all(is_new)
    }

    /// Which nodes are silent, or say nothing at all, and what they count.
    fn absent(&self, enrolled: &BTreeSet<Node>, shares: &BTreeMap<Node, Share>) -> Option<String> {
        let silent = self.heard.iter().filter(|(_, heard)| heard.is_silent());
        let silent = silent.map(|(node, heard)| {
            let counted_w = heard.counted_w(shares.get(node).copied().unwrap_or_default());
            format!(
                "node {node} has said nothing for {:.0} s and counts for {counted_w:.0} W",
                heard.silent_s
            )
        });
        let unheard = enrolled.iter().filter(|node| !self.heard.contains_key(*node));
        let unheard = unheard.map(|node| format!("node {node} does not say what it draws"));
        let disobeying = self.heard.iter().filter(|(_, heard)| !heard.is_silent());
        let disobeying = disobeying.filter_map(|(node, heard)| {
            Some(format!("node {node} {}", heard.draw.disobeys.as_ref()?))
        });
        let unread = self.heard.iter().filter_map(|(node, heard)| {
            Some(format!("node {node}: {}", heard.draw.unread.as_ref()?))
        });
        let all = silent.chain(unheard).chain(disobeying).chain(unread);
        let mut all: Vec<String> = all.collect();
        let more = all.len().saturating_sub(NAMED);
        all.truncate(NAMED);
        if more > 0 {
            all.push(format!("so do {more} more"));
        }
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// What is drawn for one budget.
struct Drawn<'a> {
    own: &'a [&'a Parts<'a>],
    base_w: f64,
    /// Whether nothing is missing.
    is_all: bool,
}

/// Everything that a decision for one budget follows from.
fn draw(
    followed: &mut Followed,
    &Drawn { own, base_w, is_all }: &Drawn<'_>,
    before: Option<&Blueprint>,
    elapsed_s: f64,
) -> Draw<FleetJob> {
    let drawn_w: f64 = own.iter().map(|job| job.drawn_w()).sum();
    let before_w = before.and_then(|before| budget_before(before, followed));
    let is_all = is_all || before_w.is_some();
    let begins_w = before_w.unwrap_or(base_w + drawn_w);
    Draw {
        jobs: own.iter().filter_map(|job| job.gathered()).collect(),
        base_w,
        budget_w: followed.budget_w(begins_w, is_all, elapsed_s),
        elapsed_s,
        is_emergency: followed.order.emergency,
    }
}

/// What a budget had when another agent decided last.
fn budget_before(before: &Blueprint, followed: &Followed) -> Option<f64> {
    let is_it = |budget: &&BudgetStatus| budget.order == followed.order;
    before.budgets.iter().find(is_it)?.budget_w
}

/// Takes over what another agent has ordered.
fn inherit(controller: &mut Controller, before: &Blueprint, own: &[&Parts<'_>]) {
    for parts in own {
        let given = before.jobs.iter().find(|given| parts.job.is(given));
        let ordered = given.and_then(|given| given.ordered);
        let place = parts.by.as_ref().zip(ordered).and_then(|((_, curve), ordered)| {
            curve.points().iter().position(|point| point.tag == ordered)
        });
        if let Some(place) = place {
            controller.resume(&parts.job.to_string(), place);
        }
    }
}

//! The loop: gather, decide, carry out, and say so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pfo_protocol::{BudgetScope, GpuUuid, JobView, Swapped};
use pfo_service::{blocking, lock};
use tokio::time::{Instant, sleep};

use crate::budget::book::{Book, Slowed};
use crate::budget::budgets::Budgets;
use crate::budget::caps::Caps;
use crate::budget::carry::Change;
use crate::budget::decision::{Decided, Draw, decide};
use crate::budget::fleet::{Link, Look, Turns, Wholes, given, has_first_rank, is_cut_off};
use crate::budget::followed::Followed;
use crate::budget::gather::{LastRead, Member, Node, gather};
use crate::budget::known::{Known, OWN, Ordered};
use crate::budget::level::Level;
use crate::budget::report::{Outcome, Shown};
use crate::fleet::spans_nodes;
use crate::job::JobKey;
use crate::journal;
use crate::pfod::{PfodError, SIGN_OF_LIFE};

/// The shortest time between two looks that is not taken for none, in seconds.
const SHORTEST_S: f64 = 1e-3;

/// How long it is remembered what a job without ranks ran by itself, in seconds: `pfod` or its trainers may be
/// about to come back.
const FORGET_AFTER_S: f64 = 900.0;

/// The points that jobs are to change to, and the power limits of GPUs, in watts.
type Taken = (BTreeMap<JobKey, u32>, BTreeMap<GpuUuid, u32>);

/// What the loop keeps from one look to the next.
#[derive(Default)]
struct Looked {
    known: BTreeMap<JobKey, Known>,
    controllers: BTreeMap<BudgetScope, Followed>,
    /// The jobs that the file names as slowed down, and the swaps that did it.
    written: BTreeMap<JobKey, Option<u64>>,
    caps: Caps,
    last_read: LastRead,
    turns: Turns,
    wholes: Wholes,
    /// The budgets of the fleet for which no job of this node that is on others is slowed down.
    settled: u64,
}

impl Budgets {
    /// Keeps the budgets for as long as the agent runs.
    pub(crate) async fn run(&self) {
        match &self.link {
            Some(link) => {
                tokio::join!(link.follow(&self.changed), self.keep_all());
            }
            None => self.keep_all().await,
        }
    }

    async fn keep_all(&self) {
        let (known, caps) = std::mem::take(&mut *lock(&self.left));
        let mut kept = Looked { known, caps, ..Looked::default() };
        let mut last = Instant::now();
        loop {
            let book = self.all();
            let is_unsettled = |link: &Link| link.revision() != kept.settled;
            let is_slowed = kept.known.values().any(Known::is_slowed)
                || !kept.caps.is_empty()
                || self.link.as_ref().is_some_and(is_unsettled);
            let disobeys = self.link.as_ref().is_some_and(|link| link.disobeys().is_some());
            if book.orders.is_empty() && !is_slowed && !disobeys {
                kept = Looked { settled: kept.settled, ..Looked::default() };
                *lock(&self.shown) = Shown::default();
                lock(&self.bound).clear();
                self.changed.notified().await;
                last = Instant::now();
                continue;
            }
            let elapsed_s = last.elapsed().as_secs_f64().max(SHORTEST_S);
            last = Instant::now();
            if let Err(error) = self.look(&book, &mut kept, elapsed_s).await {
                self.trouble(&book, &error);
            }
            let every_s = self.means.settings.now().config.budget.every_s.get();
            let every = Duration::from_secs(every_s.into());
            let every = if kept.caps.is_empty() { every } else { every.min(SIGN_OF_LIFE) };
            tokio::select! {
                () = sleep(every) => {}
                () = self.changed.notified() => {}
            }
        }
    }

    /// `pfod` does not answer: what was decided stays.
    fn trouble(&self, book: &Book, error: &PfodError) {
        let mut shown = lock(&self.shown);
        for (scope, kept) in &book.orders {
            let undecided = || crate::budget::report::undecided(kept);
            shown.budgets.entry(scope.clone()).or_insert_with(undecided).problem =
                Some(error.to_string());
        }
    }

    async fn look(&self, book: &Book, kept: &mut Looked, elapsed_s: f64) -> Result<(), PfodError> {
        let node = Node::now(&self.means, elapsed_s, &mut kept.last_read).await?;
        let views: BTreeMap<JobKey, &JobView> =
            node.jobs.iter().map(|job| (JobKey::of(job), job)).collect();
        let is_gone =
            |key: &JobKey| views.get(key).is_none_or(|job: &&JobView| job.ranks.is_empty());
        kept.known.retain(|key, known| {
            known.gone_s = if is_gone(key) { known.gone_s + elapsed_s } else { 0.0 };
            known.gone_s == 0.0 || known.is_slowed() && known.gone_s < FORGET_AFTER_S
        });
        let partitions = lock(&self.partitions).clone();
        let ordered = (book, &partitions);
        let members = gather(&self.means, ordered, &node, &mut kept.known, &kept.caps).await;
        self.follow(book, &mut kept.controllers).await;
        let (mut shown, (mut changes, mut caps)) = (Shown::default(), Taken::default());
        if let Some(link) = &self.link {
            (changes, caps) =
                self.look_at_fleet(link, &node, (&members, &views), kept, elapsed_s).await;
        }
        let taken = self.look_at_node(book, &node, &members, kept, elapsed_s, &mut shown);
        changes.extend(taken.0);
        caps.extend(taken.1);
        self.release(&members, &mut kept.known, &views, &mut changes);
        // Power limits hold at once, plans from the next step on.
        if kept.caps.order(caps) {
            self.keep(&kept.known, &kept.caps);
        }
        kept.caps.carry_out(&self.means.questions).await;
        self.carry_out(&views, kept, changes).await;
        let slowed = kept.known.iter().filter(|(_, known)| known.is_slowed());
        let swap = |known: &Known| known.ordered.last().and_then(|last| last.swap);
        let slowed: BTreeMap<_, _> =
            slowed.map(|(key, known)| (key.clone(), swap(known))).collect();
        if slowed != kept.written {
            self.keep(&kept.known, &kept.caps);
            kept.written = slowed;
        }
        for (key, job) in &mut shown.jobs {
            job.problem = kept.known.get(key).and_then(|known| known.problem.clone());
        }
        *lock(&self.shown) = shown;
        Ok(())
    }

    /// The budgets of the node: the points that its jobs are to change to, and the power limits of its GPUs.
    fn look_at_node(
        &self,
        book: &Book,
        node: &Node,
        members: &[Member],
        kept: &mut Looked,
        elapsed_s: f64,
        shown: &mut Shown,
    ) -> Taken {
        let (mut changes, mut caps) = Taken::default();
        for (scope, ordered) in &book.orders {
            let Some(followed) = kept.controllers.get_mut(scope) else { continue };
            let own: Vec<&Member> =
                members.iter().filter(|member| member.scope == *scope).collect();
            let base_w = self.base_w(scope, node, members);
            let draw = draw(followed, &own, &kept.known, base_w, elapsed_s);
            let decided = decide(&mut followed.controller, &draw);
            let (decided, problem) = match &decided {
                Ok(decided) => (Some(decided), node.unread_of(scope, &own)),
                Err(error) => (None, Some(error.to_string())),
            };
            for member in &own {
                let is_given = |of: &&Decided| of.shares.contains_key(&member.key);
                if decided.as_ref().is_some_and(is_given) {
                    self.account(&mut kept.known, member, elapsed_s);
                }
            }
            let file = followed.level.trouble.clone();
            let outcome = Outcome { budget_w: draw.budget_w, base_w, decided, file, problem };
            shown.take(ordered, &own, &kept.known, &outcome);
            if let Some(decided) = decided {
                let is_tight = decided.price > 0.0 || decided.missing_w.is_some();
                own.iter().for_each(|member| self.bind(&member.key, is_tight));
                changes.extend(decided.changes.clone());
                caps.extend(Caps::of(&own, &decided.limits));
            }
        }
        (changes, caps)
    }

    /// Follows what was ordered since.
    async fn follow(&self, book: &Book, controllers: &mut BTreeMap<BudgetScope, Followed>) {
        controllers.retain(|scope, _| book.orders.contains_key(scope));
        for (scope, kept) in book.orders.iter().filter(|(scope, _)| !scope.is_of_fleet()) {
            if controllers.get(scope).is_some_and(|followed| followed.order == kept.order) {
                continue;
            }
            let (order, text) = (kept.order.clone(), kept.text.clone());
            let made = blocking(move || Level::of(&order, text.as_deref())).await;
            let level = match made {
                Ok(Ok(level)) => level,
                Ok(Err(why)) => {
                    tracing::error!("a power budget is not in force: {}", why.message);
                    continue;
                }
                Err(_) => continue,
            };
            // What is known of the jobs stays known.
            let before = controllers.remove(scope);
            let controller = before.map(|before| before.controller).unwrap_or_default();
            let followed = Followed::new(kept.order.clone(), level, controller);
            controllers.insert(scope.clone(), followed);
        }
        for (scope, followed) in controllers.iter_mut() {
            if followed.level.reread(&followed.order) {
                tracing::info!("the file of a power budget says something else now");
                let mut book = lock(&self.book);
                if let Some(kept) = book.orders.get_mut(scope) {
                    kept.text = followed.level.text().map(str::to_owned);
                    if let Err(error) = self.means.files.write(&book) {
                        tracing::warn!("what a power budget's file says is not kept: {error}");
                    }
                }
            }
        }
    }

    /// What is drawn beside the jobs that a budget may slow down, in watts.
    fn base_w(&self, scope: &BudgetScope, node: &Node, members: &[Member]) -> f64 {
        let site_w = f64::from(self.means.settings.now().config.budget.site_w_per_gpu.get());
        let own = || members.iter().filter(|member| member.scope == *scope);
        if *scope != BudgetScope::Node {
            return site_w * own().map(|member| member.gpus.len()).sum::<usize>() as f64;
        }
        let others = members.iter().filter(|member| member.scope != *scope);
        let others_w: f64 = others.map(Member::drawn_w).sum();
        node.idle_w() + others_w + site_w * node.gpus.len() as f64
    }

    /// Nobody else compares or replans the jobs that a budget takes something from.
    fn bind(&self, key: &JobKey, is_tight: bool) {
        let mut bound = lock(&self.bound);
        if is_tight {
            bound.insert(key.clone());
        } else {
            bound.remove(key);
        }
    }

    /// Notes what a job gave up since the last look.
    fn account(&self, known: &mut BTreeMap<JobKey, Known>, member: &Member, elapsed_s: f64) {
        let given = known.get_mut(&member.key).and_then(|known| given_up(known, member, elapsed_s));
        if let Some((given_j, lost_s)) = given {
            self.means.ledger.give(&member.key, given_j, lost_s);
        }
    }

    /// This node's part in the budgets of its fleet: the points that its jobs are to change to, and the power
    /// limits of its GPUs.
    async fn look_at_fleet(
        &self,
        link: &Link,
        node: &Node,
        (members, views): (&[Member], &BTreeMap<JobKey, &JobView>),
        kept: &mut Looked,
        elapsed_s: f64,
    ) -> Taken {
        link.reconsider().await;
        let disobeys = link.disobeys().is_some();
        if !disobeys {
            self.release_wholes(link, members, views, kept).await;
            if link.book().orders.is_empty() {
                return Taken::default();
            }
        }
        let own = || members.iter().filter(|member| member.scope.is_of_fleet());
        let look = Look {
            means: &self.means,
            link,
            node,
            own: own().collect(),
            known: &kept.known,
            base_w: self.base_of_fleet_w(node, members),
            elapsed_s,
        };
        if disobeys {
            kept.turns.disobey(&look).await;
            return Taken::default();
        }
        let received = kept.turns.take(&look).await;
        let blueprint = received.as_ref().map(|received| &*received.blueprint);
        let limits = kept.turns.limits(&look, blueprint);
        let caps = Caps::of(&look.own, &limits);
        let mut changes = BTreeMap::new();
        for member in own() {
            let Some(given) = blueprint.and_then(|all| given(link, all, member)) else { continue };
            self.bind(&member.key, given.is_bound);
            let is_by_us = given.by.as_ref() == Some(link.me());
            if is_by_us && given.shown.own_w.is_some() {
                self.account(&mut kept.known, member, elapsed_s);
            }
            let is_due = |tag: &u32| is_by_us && !is_cut_off(link) && member.may_run(*tag);
            let Some(tag) = given.to.filter(is_due) else { continue };
            match views.get(&member.key).zip(self.means.makers()) {
                Some((job, makers)) if member.is_whole() => {
                    let Some(known) = kept.known.get_mut(&member.key) else { continue };
                    if known.is_due(tag) && !member.is_held {
                        kept.wholes.change(&makers, job, tag, known.own.clone());
                    }
                    known.problem = kept.wholes.problem(&member.key).or(known.problem.take());
                }
                _ => {
                    changes.insert(member.key.clone(), tag);
                }
            }
        }
        (changes, caps)
    }

    /// What the node draws beside the jobs that count for budgets of the fleet, with the site's share of all
    /// of its GPUs, in watts.
    fn base_of_fleet_w(&self, node: &Node, members: &[Member]) -> f64 {
        let site_w = f64::from(self.means.settings.now().config.budget.site_w_per_gpu.get());
        let of_fleet = |job: &&JobView| {
            let key = JobKey::of(job);
            members.iter().any(|member| member.key == key && member.scope.is_of_fleet())
        };
        let others = node.jobs.iter().filter(|job| !of_fleet(job));
        let gpus: BTreeSet<&GpuUuid> =
            others.flat_map(|job| &job.ranks).map(|rank| &rank.gpu_uuid).collect();
        node.idle_w() + node.power_w(&gpus) + site_w * node.gpus.len() as f64
    }

    /// Gives jobs back that have ranks on other nodes, and count for no budget of the fleet any more.
    async fn release_wholes(
        &self,
        link: &Link,
        members: &[Member],
        views: &BTreeMap<JobKey, &JobView>,
        kept: &mut Looked,
    ) {
        let Some(makers) = self.means.makers() else { return };
        let (revision, is_ordered) = (link.revision(), !link.book().orders.is_empty());
        let mut is_settled = is_ordered || kept.turns.end(link).await;
        kept.wholes.retain(|key| views.contains_key(key));
        for (key, job) in views.iter().filter(|(_, job)| spans_nodes(job)) {
            let is_steered = |member: &Member| member.key == *key && member.scope.is_of_fleet();
            if members.iter().any(is_steered) {
                continue;
            }
            let stands = makers.fleet.stands(key).await;
            if stands.as_ref().is_some_and(|stands| stands.standing.budgeted.is_none()) {
                continue;
            }
            is_settled = false;
            if revision > 0 && stands.is_some() && has_first_rank(job) && job.measured_by.is_none()
            {
                kept.wholes.change(&makers, job, OWN, None);
            }
        }
        if is_settled && revision > 0 && !is_ordered {
            kept.settled = revision;
        }
    }

    /// Gives jobs back that count for no budget any more.
    fn release(
        &self,
        members: &[Member],
        known: &mut BTreeMap<JobKey, Known>,
        views: &BTreeMap<JobKey, &JobView>,
        changes: &mut BTreeMap<JobKey, u32>,
    ) {
        let mut bound = lock(&self.bound);
        let is_member = |key: &JobKey| members.iter().any(|member| member.key == *key);
        bound.retain(|key| is_member(key) || known.contains_key(key));
        known.retain(|key, known| {
            if is_member(key) {
                return true;
            }
            let Some(job) = views.get(key).filter(|job| !job.ranks.is_empty()) else {
                return known.is_slowed();
            };
            if job.measured_by.is_none() && known.own_run.is_none() {
                known.look(job);
            }
            if known.is_slowed() && !known.is_given_back() {
                changes.insert(key.clone(), OWN);
                return true;
            }
            bound.remove(key);
            false
        });
    }

    async fn carry_out(
        &self,
        views: &BTreeMap<JobKey, &JobView>,
        kept: &mut Looked,
        changes: BTreeMap<JobKey, u32>,
    ) {
        let Looked { known, caps, .. } = kept;
        let mut due = Vec::new();
        for (key, tag) in changes {
            let Some((of_job, job)) = known.get_mut(&key).zip(views.get(&key)) else { continue };
            if job.measured_by.is_some() || !of_job.is_due(tag) {
                continue;
            }
            let change = match tag {
                OWN => Ok(Change::back(of_job.own.as_ref())),
                _ => Change::to(&self.means, job, tag).await,
            };
            match change {
                Ok(change) => {
                    // `pfod` may be restarted before the next look sees it in force.
                    let swap = Some(job.swap.saturating_add(1));
                    of_job.order(Ordered { swap, ..change.ordered.clone() });
                    due.push((key, change));
                }
                Err(error) => of_job.problem = Some(error.to_string()),
            }
        }
        if due.is_empty() {
            return;
        }
        // The next agent knows what a job ran before it runs something else.
        self.keep(known, caps);
        for (key, change) in due {
            let label = change.ordered.label.clone();
            let Some(of_job) = known.get_mut(&key) else { continue };
            match change.carry_out(&self.means, &key).await {
                Ok(Swapped { plan, step, .. }) => {
                    of_job.problem = None;
                    let what = if label.is_empty() { "default clocks" } else { &label };
                    tracing::info!(
                        name: journal::SWAPPED, uid = key.uid.0, job = %key.name,
                        plan = plan.map_or(0, |plan| plan.number),
                        "{key} changes to {what} at step {step} for a power budget"
                    );
                }
                Err(PfodError::Refused(why)) => of_job.refused(why.message),
                // It may have taken place; the next look shows that.
                Err(error) => of_job.problem = Some(error.to_string()),
            }
        }
    }

    /// Writes which jobs are slowed down, and which GPUs power limits hold.
    fn keep(&self, known: &BTreeMap<JobKey, Known>, caps: &Caps) {
        let slowed = known.iter().filter(|(_, known)| known.is_slowed());
        let slowed = slowed.filter_map(|(key, known)| {
            Some(Slowed {
                uid: key.uid,
                job: key.name.clone(),
                own: known.own.clone()?,
                ordered: known.ordered.clone(),
                given_j: known.given_j,
                lost_s: known.lost_s,
            })
        });
        if let Err(error) = self.means.files.write_slowed(slowed.collect(), caps.gpus()) {
            tracing::warn!(
                "a restart of the agent will not know what jobs ran before a power budget: {error}"
            );
        }
    }
}

fn draw(
    followed: &mut Followed,
    own: &[&Member],
    known: &BTreeMap<JobKey, Known>,
    base_w: f64,
    elapsed_s: f64,
) -> Draw {
    let drawn_w: f64 = own.iter().map(|member| member.drawn_w()).sum();
    let gathered = |member: &&Member| member.gathered(known.get(&member.key)?);
    Draw {
        jobs: own.iter().filter_map(gathered).collect(),
        base_w,
        budget_w: followed.budget_w(base_w + drawn_w, true, elapsed_s),
        elapsed_s,
        is_emergency: followed.order.emergency,
    }
}

/// What a job gave up since the last look, at the point that it runs: joules, and seconds at its own pace.
fn given_up(known: &mut Known, member: &Member, elapsed_s: f64) -> Option<(f64, f64)> {
    let points = member.curve.as_ref()?.points();
    let running = known.running()?;
    let place = points.iter().position(|point| point.tag == running)?;
    let lost_s = (1.0 - points[0].time_s / points[place].time_s) * elapsed_s;
    let given_j = (points[0].power_w - points[place].power_w) * elapsed_s;
    known.lost_s += lost_s;
    known.given_j += given_j;
    Some((given_j, lost_s))
}

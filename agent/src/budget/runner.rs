//! The loop: gather, decide, carry out, and say so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use pfo_budget::Controller;
use pfo_protocol::{BudgetOrder, BudgetScope, JobView, Swapped};
use pfo_service::{blocking, lock};
use tokio::time::{Instant, sleep};

use crate::budget::book::{Book, Slowed};
use crate::budget::budgets::Budgets;
use crate::budget::caps::Caps;
use crate::budget::carry::Change;
use crate::budget::decision::{Blueprint, Draw, decide};
use crate::budget::gather::{Member, Node, gather};
use crate::budget::known::{Known, OWN};
use crate::budget::level::Level;
use crate::budget::report::{Decided, Shown};
use crate::job::JobKey;
use crate::journal;
use crate::pfod::PfodError;

/// The shortest time between two looks that is not taken for none, in seconds.
const SHORTEST_S: f64 = 1e-3;

/// How long it is remembered what a job without ranks ran by itself, in seconds: `pfod` or its trainers may be
/// about to come back.
const FORGET_AFTER_S: f64 = 900.0;

/// What the loop keeps from one look to the next.
#[derive(Default)]
struct Looked {
    known: BTreeMap<JobKey, Known>,
    controllers: BTreeMap<BudgetScope, Followed>,
    /// The jobs that the file names as slowed down.
    written: BTreeSet<JobKey>,
    caps: Caps,
}

/// One budget, followed.
struct Followed {
    order: BudgetOrder,
    level: Level,
    controller: Controller,
    has_begun: bool,
}

impl Budgets {
    /// Keeps the budgets for as long as the agent runs.
    pub(crate) async fn run(&self) {
        let (known, caps) = std::mem::take(&mut *lock(&self.left));
        let mut kept = Looked { known, caps, ..Looked::default() };
        let mut last = Instant::now();
        loop {
            let book = lock(&self.book).clone();
            let is_slowed = kept.known.values().any(Known::is_slowed) || !kept.caps.is_empty();
            if book.orders.is_empty() && !is_slowed {
                kept.known.clear();
                kept.controllers.clear();
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
            tokio::select! {
                () = sleep(Duration::from_secs(every_s.into())) => {}
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
        let node = Node::now(&self.means).await?;
        let views: BTreeMap<JobKey, &JobView> =
            node.jobs.iter().map(|job| (JobKey::of(job), job)).collect();
        let is_gone =
            |key: &JobKey| views.get(key).is_none_or(|job: &&JobView| job.ranks.is_empty());
        kept.known.retain(|key, known| {
            known.gone_s = if is_gone(key) { known.gone_s + elapsed_s } else { 0.0 };
            known.gone_s == 0.0 || known.is_slowed() && known.gone_s < FORGET_AFTER_S
        });
        let members = gather(&self.means, book, &node, &mut kept.known, &kept.caps).await;
        self.follow(book, &mut kept.controllers).await;
        let (mut shown, mut changes, mut caps) =
            <(Shown, BTreeMap<_, _>, BTreeMap<_, _>)>::default();
        for (scope, ordered) in &book.orders {
            let Some(followed) = kept.controllers.get_mut(scope) else { continue };
            let own: Vec<&Member> =
                members.iter().filter(|member| member.scope == *scope).collect();
            let base_w = self.base_w(scope, &node, &members);
            let draw = followed.draw(&own, &kept.known, base_w, elapsed_s);
            let decided = decide(&mut followed.controller, &draw);
            let blueprint = decided.as_ref().ok();
            let problem = decided.as_ref().err().map(ToString::to_string);
            for member in &own {
                let known = kept.known.get_mut(&member.key).zip(blueprint);
                let given = known.and_then(|(known, of)| account(known, member, of, elapsed_s));
                if let Some((given_j, lost_s)) = given {
                    self.means.ledger.give(&member.key, given_j, lost_s);
                }
            }
            let problem = problem.or_else(|| followed.level.problem.clone());
            let decided = Decided { budget_w: draw.budget_w, base_w, blueprint, problem };
            shown.take(ordered, &own, &kept.known, &decided);
            if let Some(blueprint) = blueprint {
                self.bind(&own, blueprint);
                changes.extend(blueprint.changes.clone());
                caps.extend(Caps::of(&own, &blueprint.limits));
            }
        }
        self.release(&members, &mut kept.known, &views, &mut changes);
        // Power limits hold at once, plans from the next step on.
        if kept.caps.order(caps) {
            self.keep(&kept.known, &kept.caps);
        }
        kept.caps.carry_out(&self.means.questions).await;
        self.carry_out(&views, kept, changes).await;
        let slowed = kept.known.iter().filter(|(_, known)| known.is_slowed());
        let slowed: BTreeSet<JobKey> = slowed.map(|(key, _)| key.clone()).collect();
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

    /// Follows what was ordered since.
    async fn follow(&self, book: &Book, controllers: &mut BTreeMap<BudgetScope, Followed>) {
        controllers.retain(|scope, _| book.orders.contains_key(scope));
        for (scope, kept) in &book.orders {
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
            let order = kept.order.clone();
            controllers
                .insert(scope.clone(), Followed { order, level, controller, has_begun: false });
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
    fn bind(&self, own: &[&Member], blueprint: &Blueprint) {
        let is_tight = blueprint.price > 0.0 || blueprint.missing_w.is_some();
        let mut bound = lock(&self.bound);
        for member in own {
            if is_tight {
                bound.insert(member.key.clone())
            } else {
                bound.remove(&member.key)
            };
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
            if job.measured_by.is_none() {
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
                    of_job.order(change.ordered.clone());
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

impl Followed {
    fn draw(
        &mut self,
        own: &[&Member],
        known: &BTreeMap<JobKey, Known>,
        base_w: f64,
        elapsed_s: f64,
    ) -> Draw {
        let at_s = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0.0, |since| since.as_secs_f64());
        if !self.has_begun {
            let drawn_w: f64 = own.iter().map(|member| member.drawn_w()).sum();
            self.level.begin(at_s - elapsed_s, base_w + drawn_w);
            self.has_begun = true;
        }
        let gathered = |member: &&Member| member.gathered(known.get(&member.key)?);
        Draw {
            jobs: own.iter().filter_map(gathered).collect(),
            base_w,
            budget_w: self.level.at(at_s),
            elapsed_s,
            is_emergency: self.order.emergency,
        }
    }
}

/// What a job gave up since the last look, at the point that it runs: joules, and seconds at its own pace.
fn account(
    known: &mut Known,
    member: &Member,
    blueprint: &Blueprint,
    elapsed_s: f64,
) -> Option<(f64, f64)> {
    let points = member.curve.as_ref()?.points();
    let running = known.running()?;
    let place = points.iter().position(|point| point.tag == running)?;
    if !blueprint.shares.contains_key(&member.key) {
        return None;
    }
    let lost_s = (1.0 - points[0].time_s / points[place].time_s) * elapsed_s;
    let given_j = (points[0].power_w - points[place].power_w) * elapsed_s;
    known.lost_s += lost_s;
    known.given_j += given_j;
    Some((given_j, lost_s))
}

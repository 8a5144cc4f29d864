//! The budgets of the node: what is asked of them, and what is shown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use pfo_protocol::{
    BudgetChange, BudgetDraft, BudgetOrder, BudgetReport, BudgetScope, BudgetTerms, FleetBudgets,
    FleetOrder, GpuUuid, JobName, JobView, PartitionName, Refusal, RefusalCode, SignedBudgets, Uid,
};
use pfo_service::{blocking, lock, unix_s};
use tokio::sync::Notify;

use crate::budget::book::{Book, BudgetFiles, Kept, Slowed};
use crate::budget::caps::Caps;
use crate::budget::fleet::{Link, Makers};
use crate::budget::known::Known;
use crate::budget::level::Level;
use crate::budget::partitions::Partitions;
use crate::budget::report::{Shown, sees};
use crate::job::JobKey;
use crate::ledger::Ledger;
use crate::pfod::{Pfod, Questions};
use crate::refusal::{in_no_fleet, not_written};
use crate::settings::InForce;
use crate::steer::Steering;
use crate::straggler::Stragglers;

/// Budgets and terms that there may be.
const MOST_ORDERS: usize = 256;
const MOST_TERMS: usize = 1024;

/// What budgets need.
#[derive(Debug)]
pub(crate) struct BudgetMeans {
    pub(crate) pfod: Pfod,
    /// Of nobody else: a `pfod` that is slow to report sick GPUs must not delay others.
    pub(crate) questions: Questions,
    pub(crate) stragglers: Arc<Stragglers>,
    pub(crate) settings: Arc<InForce>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) files: Arc<BudgetFiles>,
    pub(crate) steering: Arc<Steering>,
}

impl BudgetMeans {
    /// Who makes plans of jobs that have ranks on other nodes.
    pub(super) fn makers(&self) -> Option<Makers> {
        let fleet = Arc::clone(self.steering.fleet.as_ref()?);
        Some(Makers { fleet, stragglers: Arc::clone(&self.stragglers) })
    }
}

/// Every budget.
#[derive(Debug)]
pub(crate) struct Budgets {
    pub(super) means: BudgetMeans,
    pub(super) book: Mutex<Book>,
    pub(super) partitions: Mutex<Partitions>,
    /// What the fleet has agreed on, if the node is in one.
    pub(super) link: Option<Link>,
    pub(super) shown: Mutex<Shown>,
    /// What an earlier agent left.
    pub(super) left: Mutex<(BTreeMap<JobKey, Known>, Caps)>,
    /// The jobs that a budget takes something from, or may.
    pub(super) bound: Mutex<BTreeSet<JobKey>>,
    pub(super) changed: Notify,
}

impl Budgets {
    pub(crate) fn new(means: BudgetMeans) -> Arc<Self> {
        let link =
            means.steering.fleet.clone().map(|fleet| {
                Link::new(fleet, Arc::clone(&means.files), Arc::clone(&means.settings))
            });
        Arc::new(Self {
            means,
            link,
            book: Mutex::default(),
            partitions: Mutex::default(),
            shown: Mutex::default(),
            left: Mutex::default(),
            bound: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// The partition of the scheduler that a job is in, if the scheduler said one.
    pub(crate) fn partition_of(&self, job: &JobView) -> Option<String> {
        lock(&self.partitions).of_job(job).map(ToString::to_string)
    }

    /// Continues with the budgets of an earlier agent. Reads files.
    pub(crate) fn restore(&self) {
        match self.means.files.read() {
            Ok(book) => *lock(&self.book) = book,
            Err(why) => tracing::error!("no power budget is in force: {why}"),
        }
        *lock(&self.partitions) = self.means.files.read_partitions();
        if let Some(link) = &self.link {
            link.restore();
        }
        let (mut left, mut bound) = (lock(&self.left), lock(&self.bound));
        let (slowed, capped) = self.means.files.read_slowed();
        left.1 = Caps::left(capped);
        for Slowed { uid, job, own, ordered, given_j, lost_s } in slowed {
            let key = JobKey { uid, name: job };
            bound.insert(key.clone());
            left.0.insert(key, Known::restored(own, ordered, [given_j, lost_s]));
        }
    }

    /// Whether a budget takes something from a job, so that nobody else is to change or compare what it
    /// runs by itself.
    pub(crate) fn binds(&self, key: &JobKey) -> bool {
        lock(&self.bound).contains(key)
    }

    /// Every budget and all terms, those of the fleet among them.
    pub(super) fn all(&self) -> Book {
        let mut book = lock(&self.book).clone();
        if let Some(link) = &self.link {
            let of_fleet = link.book();
            book.orders.extend(of_fleet.orders);
            book.terms.extend(of_fleet.terms);
        }
        book
    }

    /// Sets a budget in the place of the one of the same scope.
    ///
    /// # Errors
    /// If its file is wrong, there are too many, or it cannot be kept.
    pub(crate) async fn set(
        self: &Arc<Self>,
        order: BudgetOrder,
        by_uid: Uid,
    ) -> Result<(), Refusal> {
        let (scope, read) = (order.scope.clone(), order.clone());
        let level = blocking(move || Level::of(&read, None)).await??;
        let (text, since_unix_s) = (level.text().map(str::to_owned), unix_s(SystemTime::now()));
        let kept = Kept { order, by_uid, since_unix_s, text, by_node: None, by_key: None };
        self.change(&scope.clone(), move |book| {
            let is_new = !book.orders.contains_key(&scope);
            check_room("budgets", book.orders.len(), MOST_ORDERS, is_new)?;
            book.orders.insert(scope.clone(), kept.clone());
            Ok(())
        })
        .await
    }

    /// Ends a budget.
    ///
    /// # Errors
    /// If there is none, or that cannot be kept.
    pub(crate) async fn clear(self: &Arc<Self>, scope: BudgetScope) -> Result<(), Refusal> {
        self.change(&scope.clone(), move |book| match book.orders.remove(&scope) {
            Some(_) => Ok(()),
            None => Err(no_budget()),
        })
        .await
    }

    /// What an administrator is to sign for a change of the fleet's budgets.
    ///
    /// # Errors
    /// If the node is in no fleet, a file is wrong, or there are too many.
    pub(crate) async fn draft(
        &self,
        change: BudgetChange,
        by_uid: Uid,
    ) -> Result<BudgetDraft, Refusal> {
        let link = self.link()?;
        match change {
            BudgetChange::Set(order) => {
                let read = order.clone();
                let level = blocking(move || Level::of(&read, None)).await??;
                let new = FleetOrder {
                    by_uid,
                    by_node: link.me().to_string(),
                    since_unix_s: unix_s(SystemTime::now()),
                    text: level.text().map(str::to_owned),
                    order,
                };
                link.draft(|FleetBudgets { orders, .. }| {
                    orders.retain(|former| former.order.scope != new.order.scope);
                    check_room("budgets of the fleet", orders.len(), MOST_ORDERS, true)?;
                    orders.push(new);
                    Ok(())
                })
            }
            BudgetChange::Clear(scope) => link.draft(|FleetBudgets { orders, .. }| {
                let before = orders.len();
                orders.retain(|former| former.order.scope != scope);
                if orders.len() < before { Ok(()) } else { Err(no_budget()) }
            }),
            BudgetChange::Terms(new) => link.draft(|FleetBudgets { terms, .. }| {
                terms.retain(|former| former.scope != new.scope);
                if new.weight.is_some() || new.slowest.is_some() {
                    check_room("terms of jobs in the fleet", terms.len(), MOST_TERMS, true)?;
                    terms.push(new);
                }
                Ok(())
            }),
        }
    }

    /// Hands what an administrator has signed to all nodes of the fleet. Returns the name of the key, and the
    /// number of what is in force.
    ///
    /// # Errors
    /// If this node does not obey it, or the store does not take it.
    pub(crate) async fn submit(&self, signed: SignedBudgets) -> Result<(String, u64), Refusal> {
        let done = self.link()?.submit(signed).await?;
        self.changed.notify_one();
        Ok(done)
    }

    fn link(&self) -> Result<&Link, Refusal> {
        self.link.as_ref().ok_or_else(in_no_fleet)
    }

    /// Sets the terms of a scope; terms that say nothing are forgotten.
    ///
    /// # Errors
    /// If there are too many, or that cannot be kept.
    pub(crate) async fn set_terms(self: &Arc<Self>, terms: BudgetTerms) -> Result<(), Refusal> {
        self.change(&terms.scope.clone(), move |book| {
            if terms.weight.is_none() && terms.slowest.is_none() {
                book.terms.remove(&terms.scope);
                return Ok(());
            }
            let is_new = !book.terms.contains_key(&terms.scope);
            check_room("terms of jobs", book.terms.len(), MOST_TERMS, is_new)?;
            book.terms.insert(terms.scope.clone(), terms.clone());
            Ok(())
        })
        .await
    }

    /// Takes it from a scheduler in which partition a user's job on these GPUs is, or that it has ended.
    ///
    /// # Errors
    /// If there are too many, or that cannot be kept.
    pub(crate) async fn place(
        self: &Arc<Self>,
        uid: Uid,
        gpus: Vec<GpuUuid>,
        partition: Option<PartitionName>,
    ) -> Result<(), Refusal> {
        let budgets = Arc::clone(self);
        let place = move || -> Result<(), Refusal> {
            let mut partitions = lock(&budgets.partitions);
            let mut changed = partitions.clone();
            match partition {
                Some(partition) => changed.begin(uid, gpus, &partition)?,
                None => changed.end(uid, &gpus),
            }
            if *partitions == changed {
                return Ok(());
            }
            let written = budgets.means.files.write_partitions(&changed);
            written.map_err(|error| not_written("the partition", &error))?;
            *partitions = changed;
            Ok(())
        };
        blocking(place).await??;
        self.changed.notify_one();
        Ok(())
    }

    /// The terms of a scope.
    pub(crate) fn terms(&self, scope: &BudgetScope) -> Option<BudgetTerms> {
        self.all().terms.get(scope).cloned()
    }

    /// The scope of the only job of this name that something is set for, if the peer may see it.
    pub(crate) fn of_ended_job(
        &self,
        name: &JobName,
        in_fleet: bool,
        only_of: Option<Uid>,
    ) -> Option<BudgetScope> {
        self.all().scope_named(name, in_fleet).filter(|scope| sees(scope, only_of))
    }

    /// What one user may see of them, or all.
    pub(crate) fn report(&self, only_of: Option<Uid>) -> BudgetReport {
        let book = self.all();
        let (mut budgets, mut jobs) = lock(&self.shown).of(&book, only_of);
        if let Some(link) = &self.link {
            link.show(only_of, &mut budgets, &mut jobs);
        }
        let terms = book.terms.into_values().filter(|terms| sees(&terms.scope, only_of));
        let objection = self.link.as_ref().and_then(Link::objection);
        let disobeyed = objection.map(|objection| format!("this node {objection}"));
        BudgetReport { budgets, terms: terms.collect(), jobs, disobeyed }
    }

    async fn change(
        self: &Arc<Self>,
        scope: &BudgetScope,
        what: impl Fn(&mut Book) -> Result<(), Refusal> + Send + 'static,
    ) -> Result<(), Refusal> {
        if !scope.is_of_fleet() {
            let budgets = Arc::clone(self);
            return blocking(move || budgets.change_here(what)).await?;
        }
        let _in_fleet = self.link()?;
        Err(Refusal::new(
            RefusalCode::NotAuthorized,
            "a budget of the fleet, and terms for it, need the signature of an administrator",
            "add --key FILE; `pfoctl budget sign-key FILE` makes a key",
        ))
    }

    fn change_here(&self, what: impl Fn(&mut Book) -> Result<(), Refusal>) -> Result<(), Refusal> {
        let mut book = lock(&self.book);
        let mut changed = book.clone();
        what(&mut changed)?;
        let written = self.means.files.write(&changed);
        written.map_err(|error| not_written("the power budget", &error))?;
        *book = changed;
        drop(book);
        self.changed.notify_one();
        Ok(())
    }
}

fn no_budget() -> Refusal {
    Refusal::new(
        RefusalCode::NoPlan,
        "there is no such power budget",
        "`pfoctl budget status` shows those that are set",
    )
}

fn check_room(what: &str, there: usize, most: usize, is_new: bool) -> Result<(), Refusal> {
    if is_new && there >= most {
        return Err(Refusal::new(
            RefusalCode::LimitReached,
            format!("there are {there} {what} already"),
            "clear one; `pfoctl budget status --json` shows them",
        ));
    }
    Ok(())
}

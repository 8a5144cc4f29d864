//! The budgets of the node: what is asked of them, and what is shown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use pfo_protocol::{
    BudgetOrder, BudgetReport, BudgetScope, BudgetTerms, JobName, Refusal, RefusalCode, Uid,
};
use pfo_service::{lock, unix_s};
use tokio::sync::Notify;

use crate::budget::book::{Book, BudgetFiles, Kept, Slowed};
use crate::budget::caps::Caps;
use crate::budget::known::Known;
use crate::budget::level::Level;
use crate::budget::report::{Shown, sees};
use crate::job::JobKey;
use crate::ledger::Ledger;
use crate::pfod::{Pfod, Questions};
use crate::refusal::not_written;
use crate::settings::InForce;
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
    pub(crate) files: BudgetFiles,
}

/// Every budget.
#[derive(Debug)]
pub(crate) struct Budgets {
    pub(super) means: BudgetMeans,
    pub(super) book: Mutex<Book>,
    pub(super) shown: Mutex<Shown>,
    /// What an earlier agent left.
    pub(super) left: Mutex<(BTreeMap<JobKey, Known>, Caps)>,
    /// The jobs that a budget takes something from, or may.
    pub(super) bound: Mutex<BTreeSet<JobKey>>,
    pub(super) changed: Notify,
}

impl Budgets {
    pub(crate) fn new(means: BudgetMeans) -> Arc<Self> {
        Arc::new(Self {
            means,
            book: Mutex::default(),
            shown: Mutex::default(),
            left: Mutex::default(),
            bound: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// Continues with the budgets of an earlier agent. Reads files.
    pub(crate) fn restore(&self) {
        match self.means.files.read() {
            Ok(book) => *lock(&self.book) = book,
            Err(why) => tracing::error!("no power budget is in force: {why}"),
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

    /// Sets a budget in the place of the one of the same scope.
    ///
    /// # Errors
    /// If its file is wrong, there are too many, or it cannot be kept.
    pub(crate) fn set(&self, order: BudgetOrder, by_uid: Uid) -> Result<(), Refusal> {
        let text = Level::of(&order, None)?.text().map(str::to_owned);
        let scope = order.scope.clone();
        let kept = Kept { order, by_uid, since_unix_s: unix_s(SystemTime::now()), text };
        self.change(|book| {
            let is_new = !book.orders.contains_key(&scope);
            check_room("budgets", book.orders.len(), MOST_ORDERS, is_new)?;
            book.orders.insert(scope, kept);
            Ok(())
        })
    }

    /// Ends a budget.
    ///
    /// # Errors
    /// If there is none, or that cannot be kept.
    pub(crate) fn clear(&self, scope: &BudgetScope) -> Result<(), Refusal> {
        self.change(|book| match book.orders.remove(scope) {
            Some(_) => Ok(()),
            None => Err(Refusal::new(
                RefusalCode::NoPlan,
                "there is no such power budget",
                "`pfoctl budget status` shows those that are set",
            )),
        })
    }

    /// Sets the terms of a scope; terms that say nothing are forgotten.
    ///
    /// # Errors
    /// If there are too many, or that cannot be kept.
    pub(crate) fn set_terms(&self, terms: BudgetTerms) -> Result<(), Refusal> {
        self.change(|book| {
            if terms.weight.is_none() && terms.slowest.is_none() {
                book.terms.remove(&terms.scope);
                return Ok(());
            }
            let is_new = !book.terms.contains_key(&terms.scope);
            check_room("terms of jobs", book.terms.len(), MOST_TERMS, is_new)?;
            book.terms.insert(terms.scope.clone(), terms);
            Ok(())
        })
    }

    /// The terms of a scope.
    pub(crate) fn terms(&self, scope: &BudgetScope) -> Option<BudgetTerms> {
        lock(&self.book).terms.get(scope).cloned()
    }

    /// The scope of the only job of this name that something is set for, if the peer may see it.
    pub(crate) fn of_ended_job(&self, name: &JobName, only_of: Option<Uid>) -> Option<BudgetScope> {
        lock(&self.book).scope_named(name).filter(|scope| sees(scope, only_of))
    }

    /// What one user may see of them, or all.
    pub(crate) fn report(&self, only_of: Option<Uid>) -> BudgetReport {
        let book = lock(&self.book).clone();
        let (budgets, jobs) = lock(&self.shown).of(&book, only_of);
        let terms = book.terms.into_values().filter(|terms| sees(&terms.scope, only_of));
        BudgetReport { budgets, terms: terms.collect(), jobs }
    }

    fn change(&self, what: impl FnOnce(&mut Book) -> Result<(), Refusal>) -> Result<(), Refusal> {
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

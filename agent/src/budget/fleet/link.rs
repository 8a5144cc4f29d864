//! What this node knows of the budgets of its fleet: the records in the store, and since when that has not
//! answered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pfo_fleet::Node;
use pfo_protocol::{BudgetStatus, BudgetedJob, Refusal, RefusalCode, Uid};
use pfo_service::{blocking, lock, parse_versioned};
use pfo_store::{Agreed, Etcd, Store, StoreError, Topic};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::budget::book::{Book, BudgetFiles, FORMAT, KnownOfFleet, OnDisk};
use crate::budget::fleet::record::{Blueprint, Curves, NodeDraw, Told, json};
use crate::fleet::Fleet;

/// How long until the store is asked again that has not answered.
const PAUSE: Duration = Duration::from_secs(1);

/// How long the store may take to answer at a look: other budgets of the node wait meanwhile.
const ANSWER: Duration = Duration::from_secs(3);
const ANSWER_AGAIN: Duration = Duration::from_millis(500);

/// How long an order may take to be agreed on.
const PATIENCE: Duration = Duration::from_secs(20);

/// A share that has changed by no more than this is not written for the next agent.
const NEAR: f64 = 0.01;

/// The budgets of the fleet, as this node knows them.
#[derive(Debug)]
pub(in crate::budget) struct Link {
    pub(in crate::budget) fleet: Arc<Fleet>,
    files: Arc<BudgetFiles>,
    known: Mutex<Known>,
    /// One order at a time.
    ordering: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    /// With its revision, 0 while the store has not been read.
    book: (u64, Book),
    blueprint: Option<Received>,
    away_since: Option<Instant>,
    share_w: Option<f64>,
    written_w: Option<f64>,
}

/// A blueprint, and when this node has seen it first.
#[derive(Clone, Debug)]
pub(in crate::budget) struct Received {
    pub(in crate::budget) revision: u64,
    pub(in crate::budget) blueprint: Arc<Blueprint>,
    pub(in crate::budget) at: Instant,
}

impl Link {
    pub(in crate::budget) fn new(fleet: Arc<Fleet>, files: Arc<BudgetFiles>) -> Self {
        Self { fleet, files, known: Mutex::default(), ordering: tokio::sync::Mutex::default() }
    }

    /// Goes on with what an earlier agent knew. Reads a file.
    pub(in crate::budget) fn restore(&self) {
        let Some(KnownOfFleet { book, share_w, .. }) = self.files.read_fleet() else { return };
        let mut known = lock(&self.known);
        (known.book.1, known.share_w, known.written_w) = (book.book(), share_w, share_w);
    }

    pub(in crate::budget) fn me(&self) -> &Node {
        self.fleet.name()
    }

    pub(in crate::budget) fn book(&self) -> Book {
        lock(&self.known).book.1.clone()
    }

    /// The revision of the budgets: 0 while the store has not been read.
    pub(in crate::budget) fn revision(&self) -> u64 {
        lock(&self.known).book.0
    }

    pub(in crate::budget) fn blueprint(&self) -> Option<Received> {
        lock(&self.known).blueprint.clone()
    }

    /// For how long the store has not answered, if it does not.
    pub(in crate::budget) fn away(&self) -> Option<Duration> {
        lock(&self.known).away_since.map(|since| since.elapsed())
    }

    /// What this node may draw, in watts, if that was ever decided.
    pub(in crate::budget) fn share_w(&self) -> Option<f64> {
        lock(&self.known).share_w
    }

    /// Puts what was decided for the fleet into what is shown, as far as a user may see it, or all.
    pub(in crate::budget) fn show(
        &self,
        only_of: Option<Uid>,
        budgets: &mut [BudgetStatus],
        jobs: &mut Vec<BudgetedJob>,
    ) {
        let known = lock(&self.known);
        let Some(Received { blueprint, .. }) = &known.blueprint else { return };
        let away = known.away_since.map(|since| {
            let share = known.share_w.map_or(String::new(), |share_w| {
                format!(", and is held below its share of {share_w:.0} W")
            });
            let away_s = since.elapsed().as_secs();
            format!("this node has not reached the store of the fleet for {away_s} s{share}")
        });
        for budget in budgets.iter_mut().filter(|budget| budget.order.scope.is_of_fleet()) {
            let shown = blueprint.budgets.iter().find(|shown| shown.order == budget.order);
            if let Some(shown) = shown {
                budget.clone_from(shown);
            }
            budget.problem = away.clone().or(budget.problem.take());
        }
        let is_ordered = |job: &BudgetedJob| known.book.1.orders.contains_key(&job.scope);
        let shown = blueprint.jobs.iter().map(|given| &given.shown).filter(|job| is_ordered(job));
        jobs.extend(shown.filter(|job| only_of.is_none_or(|uid| uid == job.uid)).cloned());
    }

    /// Follows the records for as long as the agent runs, and says when one has changed.
    pub(in crate::budget) async fn follow(&self, changed: &Notify) {
        tokio::join!(self.follow_book(changed), self.follow_blueprint(changed));
    }

    async fn follow_book(&self, changed: &Notify) {
        loop {
            let revision = self.revision();
            let Some((revision, bytes)) = self.next(Agreed::Budgets, revision).await else {
                continue;
            };
            match parse_versioned::<OnDisk>(&bytes, FORMAT) {
                Ok(read) => self.take_book(revision, read.book()).await,
                Err(why) => {
                    tracing::error!("the power budgets of the fleet cannot be read: {why}");
                    lock(&self.known).book.0 = revision;
                }
            }
            changed.notify_one();
        }
    }

    async fn take_book(&self, revision: u64, book: Book) {
        let of_fleet = Book {
            orders: book.orders.into_iter().filter(|(scope, _)| scope.is_of_fleet()).collect(),
            terms: book.terms.into_iter().filter(|(scope, _)| scope.is_of_fleet()).collect(),
        };
        lock(&self.known).book = (revision, of_fleet);
        self.keep().await;
    }

    /// Writes what the next agent is to know.
    async fn keep(&self) {
        let (files, content) = (Arc::clone(&self.files), {
            let mut known = lock(&self.known);
            known.written_w = known.share_w;
            KnownOfFleet::new(&known.book.1, known.share_w)
        });
        if let Ok(Err(error)) = blocking(move || files.write_fleet(&content)).await {
            tracing::warn!("the next agent will have to ask the store for power budgets: {error}");
        }
    }

    async fn follow_blueprint(&self, changed: &Notify) {
        let mut revision = 0;
        loop {
            let Some((new, bytes)) = self.next(Agreed::Blueprint, revision).await else {
                continue;
            };
            revision = new;
            let Some(blueprint) = Blueprint::read(&bytes) else {
                tracing::warn!("a blueprint that no agent writes is not carried out");
                continue;
            };
            let is_own = blueprint.by == *self.me();
            self.take_blueprint(revision, blueprint).await;
            if !is_own {
                changed.notify_one();
            }
        }
    }

    async fn take_blueprint(&self, revision: u64, blueprint: Blueprint) {
        let is_news = {
            let mut known = lock(&self.known);
            if known.blueprint.as_ref().is_some_and(|former| former.revision == revision) {
                return;
            }
            if let Some(share) = blueprint.nodes.get(self.me()) {
                known.share_w = Some(share.share_w);
            }
            let blueprint = Arc::new(blueprint);
            known.blueprint = Some(Received { revision, blueprint, at: Instant::now() });
            let is_near = |(now, then): (f64, f64)| (now - then).abs() <= NEAR * then;
            known.share_w != known.written_w
                && !known.share_w.zip(known.written_w).is_some_and(is_near)
        };
        if is_news {
            self.keep().await;
        }
    }

    /// The next revision of a record; none, after a pause, if the store does not answer.
    async fn next(&self, what: Agreed, revision: u64) -> Option<(u64, Vec<u8>)> {
        let Ok(store) = self.fleet.store_now() else {
            sleep(PAUSE).await;
            return None;
        };
        match store.agreed(what, revision).await {
            Ok(agreed) => Some(agreed),
            Err(error) => {
                tracing::debug!("cannot follow {what:?}: {error}");
                sleep(PAUSE).await;
                None
            }
        }
    }

    fn store(&self) -> Result<Arc<Etcd>, StoreError> {
        self.fleet.store_now().map_err(StoreError::Away)
    }

    /// What the store answers in time.
    async fn answer<T>(
        &self,
        asked: impl AsyncFnOnce(Arc<Etcd>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let patience = if self.away().is_some() { ANSWER_AGAIN } else { ANSWER };
        let late = || StoreError::Away(format!("it takes more than {patience:?}"));
        let asked = asked(self.store()?);
        timeout(patience, asked).await.unwrap_or_else(|_| Err(late()))
    }

    /// Says what this node draws.
    pub(in crate::budget) async fn say(&self, draw: &NodeDraw) {
        let said = json(draw);
        let said = self.answer(async |store| store.say(Topic::Draw, &said).await).await;
        let mut known = lock(&self.known);
        match said {
            Ok(()) => known.away_since = None,
            Err(error) => {
                tracing::debug!("cannot say what this node draws: {error}");
                known.away_since.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Says what jobs can run. Whether it was taken.
    pub(in crate::budget) async fn say_curves(&self, curves: &Curves) -> bool {
        let said = json(curves);
        let said = self.answer(async |store| store.say(Topic::Curves, &said).await).await;
        said.inspect_err(|error| tracing::debug!("cannot say what jobs can run: {error}")).is_ok()
    }

    /// What the nodes say. What no agent writes is left out.
    ///
    /// # Errors
    /// If the store does not answer.
    pub(in crate::budget) async fn said<T: Told>(
        &self,
        topic: Topic,
    ) -> Result<BTreeMap<Node, T>, StoreError> {
        let said = self.answer(async |store| store.said(topic).await).await?;
        let read = |(node, bytes): (Node, Vec<u8>)| Some((node, T::read(&bytes)?));
        Ok(said.into_iter().filter_map(read).collect())
    }

    /// The nodes whose agents are there.
    ///
    /// # Errors
    /// If the store does not answer.
    pub(in crate::budget) async fn enrolled(&self) -> Result<BTreeSet<Node>, StoreError> {
        Ok(self.answer(async |store| store.nodes().await).await?.into_keys().collect())
    }

    /// Puts a blueprint in the place of the one of this revision. Whether nobody else has.
    ///
    /// # Errors
    /// If the store does not answer; then it may have been taken all the same.
    pub(in crate::budget) async fn agree(
        &self,
        revision: u64,
        blueprint: Blueprint,
    ) -> Result<bool, StoreError> {
        let record = json(&blueprint);
        let agreed =
            self.answer(async |store| store.agree(Agreed::Blueprint, revision, &record).await);
        match agreed.await? {
            Some(revision) => {
                self.take_blueprint(revision, blueprint).await;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Changes the budgets of the fleet.
    ///
    /// # Errors
    /// As the change does, or if the store does not take it.
    pub(in crate::budget) async fn order(
        &self,
        change: impl Fn(&mut Book) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let _ordering = self.ordering.lock().await;
        let away = |why: &dyn std::fmt::Display| {
            Refusal::new(
                RefusalCode::LimitReached,
                format!("the budgets of the fleet cannot be changed: {why}"),
                "`pfoctl fleet check` says what is wrong with the store",
            )
        };
        let ordering = async {
            let store = self.store()?;
            loop {
                let (revision, mut book) = lock(&self.known).book.clone();
                if let Err(refusal) = change(&mut book) {
                    return Ok::<_, StoreError>(Err(refusal));
                }
                let record = json(&OnDisk::of(&book));
                if let Some(revision) = store.agree(Agreed::Budgets, revision, &record).await? {
                    self.take_book(revision, book).await;
                    return Ok(Ok(()));
                }
                // Another node was faster, or this one has not read them yet.
                let (revision, bytes) = store.agreed(Agreed::Budgets, revision).await?;
                let read = parse_versioned::<OnDisk>(&bytes, FORMAT);
                let read = read.map_err(StoreError::Away)?;
                self.take_book(revision, read.book()).await;
            }
        };
        match timeout(PATIENCE, ordering).await {
            Ok(Ok(done)) => done,
            Ok(Err(error)) => Err(away(&error)),
            Err(_) => Err(away(&"it does not answer in time")),
        }
    }
}

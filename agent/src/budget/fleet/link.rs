//! What this node knows of the budgets of its fleet: the records in the store, and since when that has not
//! answered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pfo_fleet::Node;
use pfo_protocol::{
    BudgetDraft, BudgetScope, BudgetStatus, BudgetedJob, FleetBudgets, Refusal, RefusalCode,
    SignedBudgets, Uid,
};
use pfo_service::{blocking, lock};
use pfo_store::{Agreed, Etcd, Store, StoreError, Topic};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::budget::book::{Book, BudgetFiles, KnownOfFleet};
use crate::budget::config::{BudgetConfig, SigningKey};
use crate::budget::fleet::record::{Blueprint, Curves, NodeDraw, Told, json};
use crate::budget::fleet::signed::{Record, Stated};
use crate::fleet::Fleet;
use crate::refusal::of_store;
use crate::settings::InForce;

/// How long until the store is asked again that has not answered.
const PAUSE: Duration = Duration::from_secs(1);

/// How long the store may take to answer at a look: other budgets of the node wait meanwhile.
const ANSWER: Duration = Duration::from_secs(3);
const ANSWER_AGAIN: Duration = Duration::from_millis(500);

/// How long the store may take to show a record that it has.
const SHOWN_IN: Duration = Duration::from_secs(1);

/// What was decided is old after this many seconds, or this many intervals, whichever is longer.
const OLD_S: u64 = 20;
const OLD_TIMES: u64 = 4;

/// How often the deciding node looks whether the store still has what was signed.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// From this number on, what an unlisted key has signed last does not count. `pfoctl` begins with none that
/// is higher.
const MOST_UNLISTED: u64 = u32::MAX as u64;

/// How often the journal names what is not obeyed: a hostile node may write again and again.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// A share that has changed by no more than this is not written for the next agent.
const NEAR: f64 = 0.01;

/// The budgets of the fleet, as this node knows them.
#[derive(Debug)]
pub(in crate::budget) struct Link {
    pub(in crate::budget) fleet: Arc<Fleet>,
    files: Arc<BudgetFiles>,
    settings: Arc<InForce>,
    known: Mutex<Known>,
    /// One change at a time.
    ordering: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    /// The revision of what the store has, 0 while it has not been read.
    revision: u64,
    /// What was signed last, as far as this node knows.
    stated: Option<Stated>,
    refused: Option<Refused>,
    /// When the journal named the refusal last.
    warned: Option<Instant>,
    blueprint: Option<Received>,
    /// When this node looked last whether the store has what was signed.
    looked: Option<Instant>,
    away_since: Option<Instant>,
    share_w: Option<f64>,
    written_w: Option<f64>,
}

/// What the store has and this node does not obey.
#[derive(Debug)]
struct Refused {
    bytes: Vec<u8>,
    /// The keys that were listed then.
    keys: Vec<SigningKey>,
    /// Whether it sets nothing, by its own word.
    is_empty: bool,
    why: String,
}

/// A blueprint, and when this node has seen it first.
#[derive(Clone, Debug)]
pub(in crate::budget) struct Received {
    pub(in crate::budget) revision: u64,
    pub(in crate::budget) blueprint: Arc<Blueprint>,
    pub(in crate::budget) at: Instant,
}

impl Link {
    pub(in crate::budget) fn new(
        fleet: Arc<Fleet>,
        files: Arc<BudgetFiles>,
        settings: Arc<InForce>,
    ) -> Self {
        let (known, ordering) = Default::default();
        Self { fleet, files, settings, known, ordering }
    }

    /// Goes on with what an earlier agent knew. Reads a file.
    pub(in crate::budget) fn restore(&self) {
        let Some(KnownOfFleet { record, share_w, .. }) = self.files.read_fleet() else { return };
        let mut known = lock(&self.known);
        (known.share_w, known.written_w) = (share_w, share_w);
        let Some(record) = record else { return };
        match Stated::read(record) {
            Ok(stated) => known.stated = Some(stated),
            Err(why) => tracing::warn!("the last budgets of the fleet are not known: {why}"),
        }
    }

    pub(in crate::budget) fn me(&self) -> &Node {
        self.fleet.name()
    }

    /// The budgets that this node obeys.
    pub(in crate::budget) fn book(&self) -> Book {
        let settings = self.settings.now();
        let config = &settings.config.budget;
        let known = lock(&self.known);
        let signed = self.signed(&known, config).filter(|_| config.fleet);
        signed.map(|(stated, signer)| stated.book(signer)).unwrap_or_default()
    }

    /// What was signed last, and by whom, if that key may still sign.
    fn signed<'a>(
        &self,
        known: &'a Known,
        config: &'a BudgetConfig,
    ) -> Option<(&'a Stated, &'a str)> {
        let stated = known.stated.as_ref()?;
        Some((stated, stated.signer(config, &self.fleet.called)?))
    }

    /// Why this node obeys no budget of the fleet though the store has one, if so.
    pub(in crate::budget) fn disobeys(&self) -> Option<String> {
        let settings = self.settings.now();
        let config = &settings.config.budget;
        let known = lock(&self.known);
        let is_refused = known.refused.as_ref().is_some_and(|refused| !refused.is_empty);
        let is_set = known.stated.as_ref().is_some_and(|stated| !stated.is_empty());
        if !is_refused && !is_set {
            return None;
        }
        if !config.fleet {
            return Some("fleet is false in [budget] of its agent.toml".to_owned());
        }
        match (&known.refused, self.signed(&known, config)) {
            (_, Some(_)) => None,
            (Some(refused), None) => Some(refused.why.clone()),
            (None, None) => Some("its key is not in budget.keys of its agent.toml any more".into()),
        }
    }

    /// What this node does not obey, as what it does.
    pub(in crate::budget) fn objection(&self) -> Option<String> {
        if let Some(why) = self.disobeys() {
            return Some(format!("obeys no budget of the fleet: {why}"));
        }
        let known = lock(&self.known);
        let (refused, stated) = known.refused.as_ref().zip(known.stated.as_ref())?;
        Some(format!(
            "does not obey what the store has as the fleet's budgets: {}; number {} stays in force, and the \
             next signed change puts the store right",
            refused.why,
            stated.number()
        ))
    }

    /// The revision of the budgets: 0 while the store has not been read.
    pub(in crate::budget) fn revision(&self) -> u64 {
        lock(&self.known).revision
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
        let Book { orders, .. } = self.book();
        let known = lock(&self.known);
        let Some(Received { blueprint, at, .. }) = &known.blueprint else { return };
        let silent_s = at.elapsed().as_secs();
        let every_s = u64::from(self.settings.now().config.budget.every_s.get());
        let is_old = silent_s > OLD_S.max(OLD_TIMES.saturating_mul(every_s));
        let old = || format!("no node has decided for {silent_s} s: the figures are as old");
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
                // Who has ordered it is what was signed, not what the deciding node says.
                let BudgetStatus { by_uid, by_node, by_key, since_unix_s, .. } = budget.clone();
                *budget = BudgetStatus { by_uid, by_node, by_key, since_unix_s, ..shown.clone() };
            }
            let problem = away.clone().or_else(|| is_old.then(old));
            budget.problem = problem.or(budget.problem.take());
        }
        let is_ordered = |job: &BudgetedJob| orders.contains_key(&job.scope);
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
            self.take(revision, bytes).await;
            changed.notify_one();
        }
    }

    fn verified(&self, record: Record) -> Result<Stated, String> {
        Stated::verified(record, &self.settings.now().config.budget, &self.fleet.called)
    }

    /// Takes what the store has, if this node obeys it.
    async fn take(&self, revision: u64, bytes: Vec<u8>) {
        let settings = self.settings.now();
        let config = &settings.config.budget;
        let read = Record::read(&bytes).and_then(|record| self.verified(record));
        let is_new = {
            let mut known = lock(&self.known);
            known.revision = revision;
            match read.and_then(|stated| self.admitted(&known, stated, config)) {
                Ok(stated) => {
                    known.refused = None;
                    known.stated = Some(stated);
                    true
                }
                Err(why) => {
                    let is_due = |warned: Instant| warned.elapsed() > WARN_EVERY;
                    if known.warned.is_none_or(is_due) {
                        known.warned = Some(Instant::now());
                        tracing::warn!("the budgets that the store has are not obeyed: {why}");
                    }
                    let by_itself = Record::read(&bytes).and_then(Stated::read);
                    let is_empty = by_itself.is_ok_and(|stated| stated.is_empty());
                    let keys = config.keys.clone();
                    known.refused = Some(Refused { bytes, keys, is_empty, why });
                    false
                }
            }
        };
        if is_new {
            self.keep().await;
        }
    }

    /// What was signed, if it is not older than what is known and may still be obeyed.
    fn admitted(
        &self,
        known: &Known,
        stated: Stated,
        config: &BudgetConfig,
    ) -> Result<Stated, String> {
        self.signed(known, config).map_or(Ok(()), |(known, _)| known.check_next(&stated))?;
        Ok(stated)
    }

    /// Looks again at what was refused, if other keys are listed by now.
    pub(in crate::budget) async fn reconsider(&self) {
        let again = {
            let settings = self.settings.now();
            let keys = &settings.config.budget.keys;
            let mut known = lock(&self.known);
            let is_other = |refused: &mut Refused| refused.keys != *keys;
            known.refused.take_if(is_other).map(|refused| (known.revision, refused.bytes))
        };
        if let Some((revision, bytes)) = again {
            self.take(revision, bytes).await;
        }
    }

    /// Writes what the next agent is to know.
    async fn keep(&self) {
        let (files, content) = (Arc::clone(&self.files), {
            let mut known = lock(&self.known);
            known.written_w = known.share_w;
            KnownOfFleet::new(
                known.stated.as_ref().map(|stated| stated.record(None)),
                known.share_w,
            )
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
        self.fleet.store_now()
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
            None => {
                self.look_for_blueprint(revision).await?;
                Ok(false)
            }
        }
    }

    /// What the store has of a record, if it is of another revision. None also if somebody has deleted it, or
    /// the store has begun anew: no watch shows that.
    async fn shown(
        &self,
        what: Agreed,
        other_than: u64,
    ) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
        let store = self.store()?;
        let shown = timeout(SHOWN_IN, store.agreed(what, other_than)).await;
        shown.map_or(Ok(None), |shown| shown.map(Some))
    }

    /// Lets the next blueprint be the first one if the store has lost the one of this revision.
    async fn look_for_blueprint(&self, revision: u64) -> Result<(), StoreError> {
        if self.shown(Agreed::Blueprint, revision).await?.is_none()
            && let Some(received) = &mut lock(&self.known).blueprint
            && received.revision == revision
        {
            received.revision = 0;
        }
        Ok(())
    }

    /// Writes the signed budgets into the store again if the store has lost them.
    ///
    /// # Errors
    /// If the store does not answer.
    pub(in crate::budget) async fn tell_again(&self) -> Result<(), StoreError> {
        let is_due = {
            let mut known = lock(&self.known);
            let is_due = known.looked.is_none_or(|looked| looked.elapsed() > LOOK_AGAIN_AFTER);
            if is_due {
                known.looked = Some(Instant::now());
            }
            is_due
        };
        if !is_due {
            return Ok(());
        }
        let _ordering = self.ordering.lock().await;
        if self.shown(Agreed::Budgets, 0).await?.is_some() {
            return Ok(());
        }
        let stated = lock(&self.known).stated.as_ref().map(|stated| stated.record(None));
        let Some(record) = stated.map(|record| json(&record)) else { return Ok(()) };
        let put = self.answer(async |store| store.agree(Agreed::Budgets, 0, &record).await).await?;
        if let Some(revision) = put {
            lock(&self.known).revision = revision;
            tracing::warn!(
                "the store had lost the budgets of the fleet: what was signed last is there again"
            );
        }
        Ok(())
    }

    /// What an administrator is to sign for a change.
    ///
    /// # Errors
    /// As the change does.
    pub(in crate::budget) fn draft(
        &self,
        change: impl FnOnce(&mut FleetBudgets) -> Result<(), Refusal>,
    ) -> Result<BudgetDraft, Refusal> {
        let settings = self.settings.now();
        let known = lock(&self.known);
        let former = self.signed(&known, &settings.config.budget).map(|(stated, _)| stated);
        let mut budgets = former.map(|stated| stated.budgets().clone()).unwrap_or_default();
        budgets.fleet.clone_from(&self.fleet.called);
        budgets.number = self.next_number(&known, &settings.config.budget);
        change(&mut budgets)?;
        let text = String::from_utf8(json(&budgets)).unwrap_or_default();
        Ok(BudgetDraft { former: former.map(|stated| stated.signed.clone()), text })
    }

    /// The number of what is signed next. It is higher than that of a key that was taken off the list, too, so
    /// that nothing older can be replayed; but who has stolen that key may have used up all numbers.
    fn next_number(&self, known: &Known, config: &BudgetConfig) -> u64 {
        let Some(stated) = &known.stated else { return 1 };
        let is_listed = self.signed(known, config).is_some();
        let number = stated.number();
        if is_listed || number < MOST_UNLISTED { number.saturating_add(1) } else { 1 }
    }

    /// Puts what an administrator has signed into the store. Returns the name of the key and the number.
    ///
    /// # Errors
    /// If it is not obeyed here, somebody else was faster, or the store does not take it.
    pub(in crate::budget) async fn submit(
        &self,
        signed: SignedBudgets,
    ) -> Result<(String, u64), Refusal> {
        let _ordering = self.ordering.lock().await;
        let refused = |why: String| {
            let message = format!("this node does not obey what is signed: {why}");
            let remedy =
                "list the key in [budget] of agent.toml, reload pfo-agent, and repeat the command";
            Refusal::new(RefusalCode::NotAuthorized, message, remedy)
        };
        let faster = || {
            Refusal::new(
                RefusalCode::LimitReached,
                "the budgets of the fleet have changed since this was made",
                "repeat the command",
            )
        };
        let away = |why: StoreError| of_store("the budgets of the fleet cannot be changed", &why);
        let mut stated = self.verified(Record::of(signed)).map_err(refused)?;
        let settings = self.settings.now();
        let signer = stated.signer(&settings.config.budget, &self.fleet.called);
        let done = (signer.unwrap_or_default().to_owned(), stated.number());
        for _ in 0..2 {
            let revision = {
                let known = lock(&self.known);
                if stated.number() != self.next_number(&known, &settings.config.budget) {
                    return Err(faster());
                }
                stated.keep_texts(known.stated.as_ref());
                known.revision
            };
            let record = json(&stated.record(None));
            let put =
                self.answer(async |store| store.agree(Agreed::Budgets, revision, &record).await);
            if let Some(revision) = put.await.map_err(away)? {
                self.take(revision, record).await;
                return Ok(done);
            }
            // Somebody has written there, or has deleted it.
            match self.shown(Agreed::Budgets, revision).await.map_err(away)? {
                Some((revision, bytes)) => self.take(revision, bytes).await,
                None => lock(&self.known).revision = 0,
            }
        }
        Err(faster())
    }

    /// That a file of this node says nothing below or above what was signed.
    ///
    /// # Errors
    /// If it does.
    pub(super) fn check_text(&self, scope: &BudgetScope, text: &str) -> Result<(), String> {
        lock(&self.known).stated.as_ref().map_or(Ok(()), |stated| stated.check_text(scope, text))
    }

    /// Hands on what a file of this node says now. Whether nobody has changed the budgets meanwhile.
    ///
    /// # Errors
    /// If the store does not take it.
    pub(super) async fn hand_on(
        &self,
        scope: &BudgetScope,
        text: &str,
    ) -> Result<bool, StoreError> {
        let _ordering = self.ordering.lock().await;
        let (revision, record) = {
            let known = lock(&self.known);
            let Some(stated) = &known.stated else { return Ok(false) };
            (known.revision, json(&stated.record(Some((scope, text)))))
        };
        let put = async |store: Arc<Etcd>| store.agree(Agreed::Budgets, revision, &record).await;
        let Some(revision) = self.answer(put).await? else { return Ok(false) };
        self.take(revision, record).await;
        Ok(true)
    }
}

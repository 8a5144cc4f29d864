//! Runs one node's part in one job: gives the participant its events, and does what it asks for.
//!
//! No action waits for another, and none waits without an end: what the store does not answer in
//! time counts as lost.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::{Future, pending};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pfo_fleet::{
    Action, Digest, Event, Node, Participant, Purpose, Run, Seen, Settings, Shared, SwapAnswer,
    Terms, Told, View, Write,
};
use pfo_vocabulary::Uid;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::error::StoreError;
use crate::job::JobId;
use crate::verbs::{News, Store, WatchedJob};

/// How often the participant learns what time it is.
const TICK: Duration = Duration::from_millis(250);

/// How long to wait before what has failed is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// Slices of plans by their digests.
pub type Slices = BTreeMap<Digest, Vec<u8>>;

/// The part of a job that is on this node, as `pfod` has it.
pub trait LocalJob: Send + Sync + 'static {
    /// What `pfod` shows of it; none if it does not answer.
    fn look(&self) -> impl Future<Output = Option<Seen>> + Send;

    /// Whether a plan fits; none if `pfod` does not answer. The slices of the stages that are on
    /// this node are among `slices`.
    fn load(
        &self,
        run: &Run,
        slices: &Slices,
    ) -> impl Future<Output = Option<Result<(), String>>> + Send;

    /// Changes what it runs, at exactly a step or not at all; without a step at the first one that
    /// is possible. And only if the newest swap still has the number `after`.
    fn swap(
        &self,
        run: &Run,
        slices: &Slices,
        at: Option<u64>,
        after: u64,
    ) -> impl Future<Output = SwapAnswer> + Send;

    /// Measures steps that have yet to come, with each instruction by itself if `samples` are wanted.
    /// Returns what is handed in, whether that could be measured or not.
    fn measure(
        &self,
        first_step: u64,
        steps: u32,
        samples: bool,
    ) -> impl Future<Output = Vec<u8>> + Send;
}

/// Whoever runs trials at this node: it is gone when the other end is dropped.
pub type Holder = oneshot::Receiver<Infallible>;

/// What is asked of this node's part in a job.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "few exist at a time, each for a moment")]
pub enum Asked {
    /// A user wants the whole job to run something.
    Run {
        /// What; none for what it ran before the newest committed swap.
        run: Option<Run>,
        /// Who.
        by_uid: Uid,
        /// What for.
        purpose: Purpose,
        /// On which terms.
        terms: Terms,
        /// Who runs trials from now on, in place of who did.
        holder: Option<Holder>,
        /// Where to say what became of it.
        answer: oneshot::Sender<Told>,
    },
    /// To show the job in the store: all of it, or as much as this node watches anyway.
    Show(View, oneshot::Sender<Shown>),
}

/// A job in the store, as this node last saw it.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The job; none if the store has not answered so far.
    pub shared: Option<Shared>,
    /// How much of it that is.
    pub view: View,
    /// For how long the store has not answered, if it does not.
    pub away: Option<Duration>,
}

/// What a participant is driven with.
struct Driven<S, L> {
    store: Arc<S>,
    job: JobId,
    local: Arc<L>,
    slices: Arc<Mutex<Slices>>,
    under_way: JoinSet<Event>,
    asked: Option<oneshot::Sender<Told>>,
    holder: Option<Holder>,
    /// Whether who runs trials only compares what the job runs.
    compares: bool,
    measuring: JoinSet<()>,
    watching: JoinSet<()>,
    /// What arrives from what is watched.
    arrived: mpsc::Receiver<Event>,
    /// What the store refused last: each refusal is reported once.
    refused: Arc<Mutex<Option<StoreError>>>,
    /// Who waits to see the whole job.
    curious: Vec<(View, oneshot::Sender<Shown>)>,
}

/// Takes part in a job for as long as `asked` is open, and then leaves it. It also ends when
/// something has panicked: drive the job anew, which continues where this stopped.
pub async fn drive<S: Store, L: LocalJob>(
    store: Arc<S>,
    job: JobId,
    (me, settings): (Node, Settings),
    local: Arc<L>,
    mut asked: mpsc::Receiver<Asked>,
) {
    let began = Instant::now();
    let mut driven = Driven {
        store: Arc::clone(&store),
        job: job.clone(),
        local,
        slices: Arc::default(),
        under_way: JoinSet::new(),
        asked: None,
        holder: None,
        compares: false,
        measuring: JoinSet::new(),
        watching: JoinSet::new(),
        arrived: mpsc::channel(1).1,
        refused: Arc::default(),
        curious: Vec::new(),
    };
    driven.watch(View::Part);
    let mut participant = Participant::new(me, settings, 0);
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let event = tokio::select! {
            now = ticks.tick() => Event::Tick((now - began).as_millis() as u64),
            Some(event) = driven.arrived.recv() => event,
            Some(done) = driven.under_way.join_next() => match done {
                Ok(event) => event,
                Err(_) => return,
            },
            () = gone(&mut driven.holder) => Event::LetGo,
            request = asked.recv() => match request {
                Some(request) => match driven.take(request, &participant) {
                    Some(event) => event,
                    None => {
                        driven.show(&participant, began.elapsed());
                        continue;
                    }
                },
                None => return driven.leave().await,
            }
        };
        for action in participant.on(event) {
            driven.act(action);
        }
        driven.show(&participant, began.elapsed());
    }
}

/// Returns when there was a holder and it is gone, once.
async fn gone(holder: &mut Option<Holder>) {
    match holder {
        Some(holds) => drop(holds.await),
        None => pending().await,
    }
    *holder = None;
}

/// Whether the store refuses something else than before.
fn is_new_refusal(last: &Mutex<Option<StoreError>>, error: &StoreError) -> bool {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    matches!(error, StoreError::Refused(_)) && last.replace(error.clone()).as_ref() != Some(error)
}

/// Passes on what happens to a job in the store, and when the store does not answer.
async fn watch<S: Store>(store: Arc<S>, job: JobId, view: View, news: mpsc::Sender<Event>) {
    loop {
        if let Ok(mut watch) = store.watch(&job, view).await {
            while let Ok(new) = watch.next().await {
                let event = match new {
                    News::Snapshot(shared) => Event::Snapshot(view, shared),
                    News::Changed(change) => Event::Changed(change),
                };
                if news.send(event).await.is_err() {
                    return;
                }
            }
        }
        if news.send(Event::StoreAway).await.is_err() {
            return;
        }
        sleep(PAUSE).await;
    }
}

impl<S: Store, L: LocalJob> Driven<S, L> {
    /// What follows from something that was asked; nothing if it is answered.
    fn take(&mut self, asked: Asked, participant: &Participant) -> Option<Event> {
        let (run, by_uid, purpose, terms, holder, answer) = match asked {
            Asked::Run { run, by_uid, purpose, terms, holder, answer } => {
                (run, by_uid, purpose, terms, holder, answer)
            }
            Asked::Show(view, answer) => {
                self.curious.push((view, answer));
                return (view == View::Whole).then_some(Event::Asked);
            }
        };
        if self.asked.as_ref().is_some_and(|waiting| !waiting.is_closed()) {
            // Who asked may have gone, here and elsewhere.
            let _ = answer.send(Told::Busy);
            return None;
        }
        let Some(run) = run.or_else(|| participant.shared()?.before()) else {
            let _ = answer.send(Told::NotNow("its nodes have run no plan together"));
            return None;
        };
        let compares = matches!(purpose, Purpose::Comparison(_));
        if compares && self.holder.is_some() && !self.compares {
            let _ = answer.send(Told::NotNow("somebody measures it"));
            return None;
        }
        self.asked = Some(answer);
        self.compares = if holder.is_some() { compares } else { self.compares };
        self.holder = holder.or(self.holder.take());
        Some(Event::Wished(run, by_uid, purpose, terms))
    }

    /// Watches so much of the job in place of what was watched before.
    fn watch(&mut self, view: View) {
        let (news, arrived) = mpsc::channel(64);
        self.watching.abort_all();
        self.arrived = arrived;
        self.watching.spawn(watch(Arc::clone(&self.store), self.job.clone(), view, news));
    }

    /// Shows the job to those who asked, once as much is seen of it or the store does not answer.
    fn show(&mut self, participant: &Participant, now: Duration) {
        let since = |ms| now.saturating_sub(Duration::from_millis(ms));
        let away = participant.away_since_ms().map(since);
        let is_shown =
            |view: View| view == View::Part || away.is_some() || participant.view() == View::Whole;
        for (_, answer) in self.curious.extract_if(.., |(view, _)| is_shown(*view)) {
            let (shared, view) = (participant.shared().cloned(), participant.view());
            let _ = answer.send(Shown { shared, view, away });
        }
    }

    async fn leave(mut self) {
        // Or a write that is under way could bring the node back.
        self.under_way.shutdown().await;
        if let Err(error) = self.store.leave(&self.job).await {
            tracing::debug!("{} is left when the lease expires: {error}", self.job);
        }
    }

    fn act(&mut self, action: Action) {
        let (store, job) = (Arc::clone(&self.store), self.job.clone());
        match action {
            Action::Tell(told) => {
                if let Some(answer) = self.asked.take() {
                    let _ = answer.send(told);
                }
            }
            Action::Watch(view) => self.watch(view),
            Action::Measure { number, first_step, steps, samples } => {
                self.measuring.abort_all();
                let local = Arc::clone(&self.local);
                self.measuring.spawn(async move {
                    let part = local.measure(first_step, steps, samples).await;
                    while let Err(error) = store.hand_in(&job, number, &part).await {
                        tracing::warn!("cannot hand in what was measured of {job}: {error}");
                        if !matches!(error, StoreError::Away(_) | StoreError::Full(_)) {
                            return;
                        }
                        sleep(PAUSE).await;
                    }
                });
            }
            Action::Look => {
                let local = Arc::clone(&self.local);
                self.under_way.spawn(async move { Event::Looked(local.look().await) });
            }
            Action::Load(number, run) => {
                let (local, slices) = (Arc::clone(&self.local), self.slices());
                self.under_way
                    .spawn(async move { Event::Loaded(number, local.load(&run, &slices).await) });
            }
            Action::Swap { run, at, after } => {
                let (local, slices) = (Arc::clone(&self.local), self.slices());
                self.under_way.spawn(async move {
                    Event::Swapped(local.swap(&run, &slices, at, after).await)
                });
            }
            Action::Fetch(wanted) => self.fetch(wanted),
            Action::Join(member) => {
                let joining = async move { store.join(&job, &member).await.map(|()| true) };
                self.write(Write::Join, joining);
            }
            Action::Report(report) => {
                let reporting = async move { store.report(&job, &report).await.map(|()| true) };
                self.write(Write::Report, reporting);
            }
            Action::Propose { number, proposal, forget_below } => {
                let proposing =
                    async move { store.propose(&job, number, &proposal, forget_below).await };
                self.write(Write::Propose, proposing);
            }
            Action::Arm(number, answer) => {
                self.write(Write::Arm, async move { store.arm(&job, number, &answer).await });
            }
            Action::Decide(number, decision) => {
                let deciding = async move { store.decide(&job, number, &decision).await };
                self.write(Write::Decide, deciding);
            }
        }
    }

    /// Awaits what becomes of a write. One that has failed is reported after a pause, since it will
    /// be repeated at once.
    fn write(
        &mut self,
        write: Write,
        writing: impl Future<Output = Result<bool, StoreError>> + Send + 'static,
    ) {
        let (job, refused) = (self.job.clone(), Arc::clone(&self.refused));
        self.under_way.spawn(async move {
            let taken = writing.await;
            if let Err(error) = &taken {
                if is_new_refusal(&refused, error) {
                    tracing::warn!("{job} cannot be changed from here: {error}");
                } else {
                    tracing::debug!("{write:?} of {job}: {error}");
                }
                sleep(PAUSE).await;
            }
            Event::Written(write, taken.ok())
        });
    }

    fn slices(&self) -> Slices {
        self.slices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fetch(&mut self, wanted: BTreeSet<Digest>) {
        let (store, job) = (Arc::clone(&self.store), self.job.clone());
        let slices = Arc::clone(&self.slices);
        self.under_way.spawn(async move {
            let mut fetched = BTreeSet::new();
            for digest in wanted {
                match store.fetch(&job, digest).await {
                    Ok(slice) => {
                        let mut slices = slices.lock().unwrap_or_else(PoisonError::into_inner);
                        slices.insert(digest, slice);
                        fetched.insert(digest);
                    }
                    Err(error) => tracing::warn!("cannot fetch a part of a plan of {job}: {error}"),
                }
            }
            Event::Fetched(fetched)
        });
    }
}

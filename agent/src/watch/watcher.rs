//! Watches every job of the node through `pfod`. Wakes when a job changes and, while a job runs a
//! plan, once a second.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pfo_protocol::{DaemonMessage, JobView, Notice, Request, Response};
use pfo_service::lock;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep};

use crate::budget::Budgets;
use crate::calibration::Told;
use crate::first_plan::FirstPlans;
use crate::fleet::{Fleet, ForLedger, fleet_of};
use crate::job::JobKey;
use crate::ledger::Ledger;
use crate::pfod::{Connection, PfodError, Questions, unexpected};
use crate::straggler::{SlowStages, Stragglers};
use crate::watch::reference::Reference;
use crate::watch::tapped_times::Taps;
use crate::watch::watched::{Limits, Seen, Watched, is_watched};
use crate::watch::whole::WatchedWhole;

/// How often to look at jobs that run plans.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Pauses between attempts to reach `pfod`.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The watch over all jobs.
#[derive(Debug)]
pub(crate) struct Watcher {
    taps: Taps,
    questions: Arc<Questions>,
    stragglers: Arc<Stragglers>,
    fleet: Option<Arc<Fleet>>,
    ledger: Arc<Ledger>,
    budgets: Arc<Budgets>,
    first_plans: Arc<FirstPlans>,
    shown: Mutex<Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    jobs: BTreeMap<JobKey, Seen>,
    problem: Option<String>,
}

impl Watcher {
    pub(crate) fn new(
        taps: Taps,
        questions: Arc<Questions>,
        stragglers: Arc<Stragglers>,
        fleet: Option<Arc<Fleet>>,
        ledger: Arc<Ledger>,
        budgets: Arc<Budgets>,
        first_plans: Arc<FirstPlans>,
    ) -> Self {
        let shown = Mutex::default();
        Self { taps, questions, stragglers, fleet, ledger, budgets, first_plans, shown }
    }

    /// Every job that has a rank, and what was seen of it.
    pub(crate) fn seen(&self) -> BTreeMap<JobKey, Seen> {
        self.shown().jobs.clone()
    }

    /// Why `pfod` does not answer, if it does not.
    pub(crate) fn problem(&self) -> Option<String> {
        self.shown().problem.clone()
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        lock(&self.shown)
    }

    /// Watches for as long as the agent runs. `limits` says what is in force.
    pub(crate) async fn run(&self, limits: impl Fn() -> Limits) {
        let mut watched = BTreeMap::new();
        let mut pause = SHORTEST_PAUSE;
        loop {
            let began = Instant::now();
            let why = match self.watch(&mut watched, &limits).await {
                Ok(never) => match never {},
                Err(error) => error.to_string(),
            };
            // The windows of a `pfod` that was restarted begin anew.
            watched.clear();
            {
                let mut shown = self.shown();
                shown.jobs.clear();
                if shown.problem.is_none() {
                    tracing::warn!("{why}; the agent retries until pfod is back");
                }
                shown.problem = Some(why);
            }
            if began.elapsed() > LONGEST_PAUSE {
                pause = SHORTEST_PAUSE;
            }
            sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause.saturating_mul(2));
        }
    }

    async fn watch(
        &self,
        watched: &mut BTreeMap<JobKey, OneWatched>,
        limits: &impl Fn() -> Limits,
    ) -> Result<std::convert::Infallible, PfodError> {
        let mut notices = self.taps.pfod.connect().await?;
        match notices.ask(Request::WatchJobs).await? {
            Response::Done => {}
            other => return Err(unexpected(&other)),
        }
        if self.shown().problem.take().is_some() {
            tracing::info!("pfod answers again");
        }
        self.ledger.reached(self.questions.status().await?.daemon.pid);
        let (mut told, mut writing) = (Told::default(), None);
        loop {
            let jobs = self.questions.jobs().await?;
            let calibrations = &self.taps.calibrations;
            told.tell(calibrations, &self.questions, &jobs).await?;
            calibrations.keep_now_and_then().await;
            if let Some(fleet) = &self.fleet {
                fleet.see(&jobs);
            }
            self.first_plans.see();
            if self.ledger.see(&self.counted(&jobs).await) && writing.is_none() {
                let ledger = Arc::clone(&self.ledger);
                // Nothing here waits for a disk. A panic is reported where it is caught.
                writing = Some(spawn_blocking(move || ledger.write()));
            }
            if self.ledger.wants_gpus() {
                self.ledger.see_gpus(&jobs, &self.questions.status().await?.gpus);
            }
            let next = self.look(watched, &jobs, limits()).await;
            tokio::select! {
                changed = job_changed(&mut notices) => changed?,
                () = sleep(next.unwrap_or_default()), if next.is_some() => {}
                // What was to be written meanwhile is written then.
                () = ended(&mut writing), if writing.is_some() => {}
            }
        }
    }

    /// The jobs whose energy counts for the ledger of savings, which gets the comparisons of the whole
    /// jobs that this node has a part of.
    async fn counted<'a>(&self, jobs: &'a [JobView]) -> Cow<'a, [JobView]> {
        let mut counted = Cow::Borrowed(jobs);
        for job in jobs {
            let Some(fleet) = fleet_of(self.fleet.as_ref(), job) else { continue };
            let key = JobKey::of(job);
            let ForLedger { in_trial, compared } = fleet.for_ledger(&key).await;
            compared.iter().for_each(|compared| self.ledger.take_whole(job, compared));
            if in_trial {
                counted.to_mut().retain(|job| JobKey::of(job) != key);
            }
        }
        counted
    }

    /// Looks at every job. Returns when to look again at the latest, if none changes.
    async fn look(
        &self,
        watched: &mut BTreeMap<JobKey, OneWatched>,
        jobs: &[JobView],
        limits: Limits,
    ) -> Option<Duration> {
        let next = self.stragglers.compare(jobs).await;
        let running: Vec<_> = jobs.iter().filter(|job| is_watched(job)).collect();
        watched.retain(|key, _| running.iter().any(|job| JobKey::of(job) == *key));
        for job in &running {
            let one = watched.entry(JobKey::of(job)).or_default();
            match fleet_of(self.fleet.as_ref(), job) {
                Some(fleet) => self.look_at_whole(one, fleet, job, limits).await,
                None => self.look_at(&mut one.here, job, limits).await,
            }
        }
        let present = jobs.iter().filter(|job| !job.ranks.is_empty()).map(JobKey::of);
        let seen = |key: JobKey| {
            let seen = watched.get(&key).map(|watch| watch.here.seen().clone());
            (key, seen.unwrap_or_default())
        };
        self.shown().jobs = present.map(seen).collect();
        if running.is_empty() { next } else { Some(LOOK_EVERY) }
    }
}

impl Watcher {
    /// Looks at a job that is on this node alone.
    async fn look_at(&self, watch: &mut Watched, job: &JobView, limits: Limits) {
        let frontier = self.stragglers.of(job);
        let reference = frontier.clone().map(Reference::Frontier);
        let answered = frontier.as_ref().map(|frontier| frontier.answered_stages());
        let compared = (reference.as_ref(), &answered.unwrap_or_default());
        watch.look(&self.taps, job, compared, limits);
        // Under a budget, slow stages are left to it.
        let frontier = frontier.filter(|_| !self.budgets.binds(&JobKey::of(job)));
        if let Some(frontier) = &frontier {
            watch.answer(&self.stragglers, job, frontier).await;
        }
    }

    /// Looks at what is on this node of a job that has ranks on other nodes, too.
    async fn look_at_whole(
        &self,
        OneWatched { here, whole }: &mut OneWatched,
        fleet: &Arc<Fleet>,
        job: &JobView,
        limits: Limits,
    ) {
        let key = JobKey::of(job);
        let Some(stands) = fleet.stands(&key).await else { return };
        let frontier = self.stragglers.of(job);
        let reference = whole.reference(fleet, job, (&stands, frontier.as_ref()));
        let answered = WatchedWhole::answered(&stands);
        here.look(&self.taps, job, (reference.as_ref(), &answered), limits);
        let is_watched = stands.standing.watch.is_some() && reference.is_some();
        let slow = if is_watched { here.stages() } else { SlowStages::new() };
        fleet.note_slow(&key, &slow, here.conditions());
        if !self.budgets.binds(&key) {
            whole.answer((fleet, &self.stragglers), job, &stands).await;
        }
    }
}

/// A job that is watched: what is on this node, and the whole of it.
#[derive(Debug, Default)]
struct OneWatched {
    here: Watched,
    whole: WatchedWhole,
}

/// Waits until a write has ended.
async fn ended(writing: &mut Option<JoinHandle<()>>) {
    if let Some(writing) = writing {
        let _ = writing.await;
    }
    *writing = None;
}

async fn job_changed(notices: &mut Connection) -> Result<(), PfodError> {
    match notices.next().await? {
        DaemonMessage::Notice(Notice::JobsChanged) => Ok(()),
        other => Err(unexpected(&other)),
    }
}

//! Watches every job of the node through `pfod`. Wakes when a job changes and, while a job runs a
//! plan, once a second.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pfo_protocol::{DaemonMessage, GpuStatus, GpuUuid, JobView, Notice, Request, Response};
use pfo_service::lock;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep};

use crate::budget::Budgets;
use crate::calibration::Told;
use crate::first_plan::FirstPlans;
use crate::job::{JobKey, is_taken_up};
use crate::pfod::{Connection, PfodError, unexpected};
use crate::record::BY_POWER;
use crate::steer::Steering;
use crate::straggler::{SlowStages, Stragglers};
use crate::watch::answering::Answering;
use crate::watch::duties::{Duties, catch};
use crate::watch::replica_times::{ReplicaTimes, is_compared};
use crate::watch::tapped_times::Taps;
use crate::watch::watched::{Limits, Seen, Watched, is_watched};

/// How often to look at jobs that run plans.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Pauses between attempts to reach `pfod`.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The watch over all jobs.
#[derive(Debug)]
pub(crate) struct Watcher {
    pub(crate) taps: Taps,
    pub(crate) steering: Arc<Steering>,
    pub(crate) stragglers: Arc<Stragglers>,
    pub(crate) budgets: Arc<Budgets>,
    pub(crate) first_plans: Arc<FirstPlans>,
    pub(crate) shown: Mutex<Shown>,
}

/// What others see of it.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    jobs: BTreeMap<JobKey, Seen>,
    problem: Option<String>,
    duties: Duties,
}

impl Watcher {
    /// Every job that has a rank, and what was seen of it.
    pub(crate) fn seen(&self) -> BTreeMap<JobKey, Seen> {
        self.shown().jobs.clone()
    }

    /// Why `pfod` does not answer, if it does not.
    pub(crate) fn problem(&self) -> Option<String> {
        self.shown().problem.clone()
    }

    /// How many of its duties fail.
    pub(crate) fn failing_duties(&self) -> usize {
        self.shown().duties.failing()
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        lock(&self.shown)
    }

    /// Watches for as long as the agent runs. `limits` says what is in force.
    pub(crate) async fn run(&self, limits: impl Fn() -> Limits) {
        let mut watched = AllWatched::default();
        let mut pause = SHORTEST_PAUSE;
        loop {
            let began = Instant::now();
            let why = match self.watch(&mut watched, &limits).await {
                Ok(never) => match never {},
                Err(error) => error.to_string(),
            };
            // The windows of a `pfod` that was restarted begin anew.
            watched = AllWatched::default();
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
        watched: &mut AllWatched,
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
        let Steering { questions, ledger, .. } = &*self.steering;
        ledger.reached(questions.status().await?.daemon.pid);
        let (mut told, mut writing) = (Told::default(), None);
        loop {
            let jobs = questions.jobs().await?;
            self.do_duties(&jobs, &mut told).await;
            let counted = self.duty("ledger", self.count(&jobs)).await;
            if counted == Some(true) && writing.is_none() {
                let ledger = Arc::clone(ledger);
                // Nothing here waits for a disk. A panic is reported where it is caught.
                writing = Some(spawn_blocking(move || ledger.write()));
            }
            let look = async { Ok(self.look(watched, &jobs, limits()).await) };
            let next = self.duty("looks at jobs", look).await.unwrap_or(Some(LOOK_EVERY));
            // The steps of a plan that a swap is about to end are read until that step.
            let changes = !jobs.iter().all(is_taken_up);
            let counts = (changes || ledger.is_collecting()).then_some(LOOK_EVERY);
            let next = next.into_iter().chain(told.again_within()).chain(counts).min();
            tokio::select! {
                changed = job_changed(&mut notices) => changed?,
                () = sleep(next.unwrap_or_default()), if next.is_some() => {}
                // What was to be written meanwhile is written then.
                () = ended(&mut writing), if writing.is_some() => {}
            }
        }
    }

    /// What other parts of the agent do when a job has changed.
    async fn do_duties(&self, jobs: &[JobView], told: &mut Told) {
        let (calibrations, questions) = (&self.taps.calibrations, &self.steering.questions);
        self.duty("calibrations told", told.tell(calibrations, questions, jobs)).await;
        let kept = async {
            calibrations.keep_now_and_then().await;
            Ok(())
        };
        self.duty("calibrations kept", kept).await;
        let seen = async {
            if let Some(fleet) = &self.steering.fleet {
                fleet.see(jobs);
            }
            Ok(())
        };
        self.duty("fleet", seen).await;
        let stood = async {
            self.steering.see(jobs).await;
            Ok(())
        };
        self.duty("guards and stragglers", stood).await;
        let begun = async {
            self.first_plans.see();
            Ok(())
        };
        self.duty("first plans", begun).await;
    }

    /// Does one duty. One that fails is reported, and keeps no other from being done.
    async fn duty<T>(
        &self,
        name: &'static str,
        duty: impl Future<Output = Result<T, PfodError>>,
    ) -> Option<T> {
        let done = catch(duty).await;
        self.shown().duties.note(name, done)
    }

    /// The energy of jobs for the ledger of savings. Returns whether it has something to write.
    async fn count(&self, jobs: &[JobView]) -> Result<bool, PfodError> {
        let Steering { questions, ledger, .. } = &*self.steering;
        let has_more = ledger.see(&self.steering.counted(jobs).await?);
        ledger.see_partitions(jobs, |job| self.budgets.partition_of(job));
        if ledger.wants_gpus() {
            ledger.see_gpus(jobs, &questions.status().await?.gpus);
        }
        Ok(has_more)
    }

    /// Looks at every job. Returns when to look again at the latest, if none changes.
    async fn look(
        &self,
        AllWatched { planned: watched, compared }: &mut AllWatched,
        jobs: &[JobView],
        limits: Limits,
    ) -> Option<Duration> {
        let next = self.stragglers.compare(jobs).await;
        let running: Vec<_> = jobs.iter().filter(|job| is_watched(job)).collect();
        watched.retain(|key, _| running.iter().any(|job| JobKey::of(job) == *key));
        let limited = match watched.values().any(|one| one.here.may_turn()) {
            true => self.limited().await,
            false => BTreeSet::new(),
        };
        for job in &running {
            let one = watched.entry(JobKey::of(job)).or_default();
            self.look_at(one, job, (limits, &limited)).await;
        }
        let replicas: Vec<_> = jobs.iter().filter(|job| is_compared(job)).collect();
        compared.retain(|key, _| replicas.iter().any(|job| JobKey::of(job) == *key));
        for job in &replicas {
            let opened = || ReplicaTimes::open(&self.taps.pfod, job);
            let one = compared.entry(JobKey::of(job)).or_insert_with(opened);
            if !one.is_of(job) {
                *one = opened();
            }
            one.look(job, limits.slow);
        }
        let present = jobs.iter().filter(|job| !job.ranks.is_empty()).map(JobKey::of);
        let seen = |key: JobKey| {
            let planned = watched.get(&key).map(|watch| watch.here.seen().clone());
            let slow = || Some(Seen { slow: compared.get(&key)?.slow(), drift: None });
            let seen = planned.or_else(slow).unwrap_or_default();
            (key, seen)
        };
        self.shown().jobs = present.map(seen).collect();
        if running.is_empty() && replicas.is_empty() { next } else { Some(LOOK_EVERY) }
    }
}

impl Watcher {
    /// The GPUs that a power limit holds now, as far as the driver says.
    async fn limited(&self) -> BTreeSet<GpuUuid> {
        let Ok(status) = self.steering.questions.status().await else { return BTreeSet::new() };
        let is_limited = |gpu: &GpuStatus| gpu.throttle_reasons & BY_POWER != 0;
        status.gpus.into_iter().filter(is_limited).map(|gpu| gpu.uuid).collect()
    }

    /// Looks at what is on this node of a job, and answers its slow stages if that is for this node.
    async fn look_at(
        &self,
        OneWatched { here, answering }: &mut OneWatched,
        view: &JobView,
        limits: (Limits, &BTreeSet<GpuUuid>),
    ) {
        let job = self.steering.of(view);
        let Ok(stands) = job.stands().await else { return };
        let frontier = self.stragglers.of(view);
        let reference = answering.reference(&job, (&stands, frontier.as_ref()));
        let answered = Answering::answered(&stands);
        here.look(&self.taps, view, (reference.as_ref(), &answered), limits);
        let is_watched = stands.standing.watch.is_some() && reference.is_some();
        let slow = if is_watched { here.stages() } else { SlowStages::new() };
        job.note_slow(&slow, here.conditions());
        // Under a budget, slow stages are left to it.
        if !self.budgets.binds(job.key()) {
            answering.answer(&self.stragglers, &job, &stands, here.are_limited()).await;
        }
    }
}

/// All jobs that are watched: those that run a plan, and replicas that are compared without one.
#[derive(Debug, Default)]
struct AllWatched {
    planned: BTreeMap<JobKey, OneWatched>,
    compared: BTreeMap<JobKey, ReplicaTimes>,
}

/// A job that is watched: what is on this node, and the answers to its slow stages.
#[derive(Debug, Default)]
struct OneWatched {
    here: Watched,
    answering: Answering,
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

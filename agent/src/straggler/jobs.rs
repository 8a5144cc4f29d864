//! The jobs that have a frontier, in memory and on disk.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pfo_fleet::Digest;
use pfo_planner::{Conditions, Profile};
use pfo_protocol::{FrontierStatus, JobName, JobView, Refusal, RefusalCode, Uid};
use pfo_service::{People, blocking, lock, now_ns};
use pfo_store::digest_of;

use crate::job::JobKey;
use crate::straggler::files::{JobFiles, JobRecord};
use crate::straggler::frontier::JobFrontier;
use crate::straggler::pace::Pace;

/// How long a job without ranks keeps its frontier, for trainers that reconnect or restart.
const FORGET_AFTER: Duration = Duration::from_secs(15 * 60);

/// Memory for the frontiers of one person's jobs, and of all together, in bytes.
const BYTES_PER_PERSON: usize = 32 << 20;
const BYTES: usize = 96 << 20;

/// All jobs that have a frontier.
#[derive(Debug)]
pub(crate) struct Stragglers {
    pub(super) files: Arc<JobFiles>,
    people: Arc<People>,
    jobs: Mutex<BTreeMap<JobKey, Arc<FrontierJob>>>,
    /// What is being read takes memory that is not counted yet: one at a time.
    reading: tokio::sync::Mutex<()>,
    /// A plan that is being made takes memory and time: one at a time.
    planning: tokio::sync::Mutex<()>,
}

/// A job that has a frontier.
#[derive(Debug)]
pub(crate) struct FrontierJob {
    pub(crate) key: JobKey,
    pp_degree: u32,
    label: String,
    frontier: Arc<JobFrontier>,
    /// That of its file.
    pub(super) digest: Digest,
    /// Held while the agent swaps the job's plan.
    pub(super) changing: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    watched: Mutex<Observed>,
}

/// What the watch says of a job, which the next agent finds out by itself.
#[derive(Debug, Default)]
struct Observed {
    conditions: Conditions,
    pace: Pace,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// Since when the job has had no rank (`CLOCK_MONOTONIC`, ns).
    left_ns: Option<u64>,
    unshared: bool,
}

impl Stragglers {
    pub(crate) fn new(files: JobFiles, people: Arc<People>) -> Self {
        let (reading, planning) = (tokio::sync::Mutex::default(), tokio::sync::Mutex::default());
        let (files, jobs) = (Arc::new(files), Mutex::default());
        Self { files, people, jobs, reading, planning }
    }

    /// Continues with the jobs of an earlier agent. Reads and parses files.
    pub(crate) fn restore(&self) {
        for (record, bytes) in self.files.read() {
            let key = JobKey { uid: record.uid, name: record.job };
            let attempt = self.files.attempt(&key);
            let frontier = JobFrontier::read(record.frontier.clone(), &bytes, self.room_for(&key));
            drop(attempt);
            match frontier {
                Ok(frontier) => {
                    let JobRecord { left_ns, unshared, .. } = record;
                    let state = State { left_ns, unshared };
                    let pp_degree = frontier.stages();
                    let loaded = (record.frontier, digest_of(&bytes), Arc::new(frontier));
                    let job = FrontierJob::new(key.clone(), pp_degree, loaded, state);
                    self.lock().insert(key, Arc::new(job));
                }
                Err(why) => {
                    tracing::warn!(
                        uid = key.uid.0, job = %key.name, "dropped the frontier of {key}: {why}"
                    );
                    self.files.remove(&key);
                }
            }
        }
    }

    /// Checks a frontier against a job and keeps it in the place of the former one. `unshared` is whether
    /// other nodes of the job are still to have it.
    ///
    /// # Errors
    /// If the bytes are no frontier, it is too large, or its plans do not fit: the first
    /// difference.
    pub(crate) async fn load(
        &self,
        job: &JobView,
        (label, bytes): (String, Vec<u8>),
        unshared: bool,
    ) -> Result<FrontierStatus, Refusal> {
        let key = JobKey::of(job);
        let former = self.lock().get(&key).cloned();
        let _changing = match &former {
            Some(former) => Some(former.changing.lock().await),
            None => None,
        };
        let _reading = self.reading.lock().await;
        let (room, files) = (self.room_for(&key), Arc::clone(&self.files));
        let state = former.as_ref().map(|former| former.state().clone()).unwrap_or_default();
        let state = State { unshared, ..state };
        let view = job.clone();
        let read = move || {
            let key = JobKey::of(&view);
            let frontier = JobFrontier::read(label.clone(), &bytes, room)?;
            frontier.check(&view)?;
            let loaded = (label, digest_of(&bytes), Arc::new(frontier));
            let loaded = FrontierJob::new(key, view.pp_degree, loaded, state);
            let written = files
                .write_frontier(&loaded.key, &bytes)
                .and_then(|()| files.write(&loaded.record()));
            if let Err(error) = written {
                let key = &loaded.key;
                tracing::warn!(
                    uid = key.uid.0, job = %key.name,
                    "a restart will lose the frontier of {key}: cannot write it: {error}"
                );
            }
            Ok::<_, Refusal>(loaded)
        };
        let loaded = blocking(read).await??;
        let status = loaded.status();
        self.lock().insert(key, Arc::new(loaded));
        Ok(status)
    }

    /// The frontier job that a view is of.
    pub(crate) fn of(&self, job: &JobView) -> Option<Arc<FrontierJob>> {
        self.lock().get(&JobKey::of(job)).filter(|known| known.pp_degree == job.pp_degree).cloned()
    }

    /// The same.
    ///
    /// # Errors
    /// If no frontier is loaded.
    pub(crate) fn loaded(&self, job: &JobView) -> Result<Arc<FrontierJob>, Refusal> {
        self.of(job).ok_or_else(|| not_loaded(&job.job))
    }

    /// # Errors
    /// If no frontier is loaded.
    pub(super) fn of_key(&self, key: &JobKey) -> Result<Arc<FrontierJob>, Refusal> {
        self.lock().get(key).cloned().ok_or_else(|| not_loaded(&key.name))
    }

    /// Compares with the jobs that there are, and forgets those that left long ago. Returns when to look
    /// again at the latest, if no job changes.
    pub(crate) async fn compare(&self, jobs: &[JobView]) -> Option<Duration> {
        let views: BTreeMap<_, _> = jobs.iter().map(|job| (JobKey::of(job), job)).collect();
        let known: Vec<_> = self.lock().values().cloned().collect();
        let mut look_again: Option<Duration> = None;
        for job in known {
            let view = views.get(&job.key).filter(|view| !view.ranks.is_empty());
            if view.is_some_and(|view| view.pp_degree != job.pp_degree) {
                self.forget(&job, "it has another number of stages now");
                continue;
            }
            let changed = job.note_presence(view.is_some());
            match job.left_for().map(|left| FORGET_AFTER.checked_sub(left)) {
                Some(None) => {
                    self.forget(&job, "its last rank left 15 minutes ago");
                    continue;
                }
                Some(Some(rest)) => {
                    look_again = Some(look_again.map_or(rest, |soonest| soonest.min(rest)));
                }
                None => {}
            }
            if changed {
                self.keep(&job).await;
            }
        }
        look_again
    }

    fn forget(&self, job: &FrontierJob, why: &str) {
        let key = &job.key;
        tracing::info!(uid = key.uid.0, job = %key.name, "forgot the frontier of {key}: {why}");
        self.lock().remove(key);
        self.files.remove(key);
    }

    /// Writes what the next agent is to know of a job.
    pub(super) async fn keep(&self, job: &Arc<FrontierJob>) {
        let (files, job) = (Arc::clone(&self.files), Arc::clone(job));
        let write = move || {
            if let Err(error) = files.write(&job.record()) {
                let key = &job.key;
                tracing::warn!(
                    uid = key.uid.0, job = %key.name,
                    "a restart of the agent will not know since when {key} has left: {error}"
                );
            }
        };
        let _ = blocking(write).await;
    }

    /// Makes something of a job's frontier, which may take its time.
    ///
    /// # Errors
    /// As the making does.
    pub(crate) async fn make<T: Send + 'static>(
        &self,
        job: &FrontierJob,
        make: impl FnOnce(&JobFrontier) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let _planning = self.planning.lock().await;
        let (files, frontier) = (Arc::clone(&self.files), Arc::clone(&job.frontier));
        let key = job.key.clone();
        let made = blocking(move || {
            let _attempt = files.attempt(&key);
            make(&frontier)
        });
        made.await?
    }

    /// Bytes that a frontier of this job may take.
    fn room_for(&self, key: &JobKey) -> usize {
        let jobs = self.lock();
        let others = jobs.iter().filter(|(other, _)| *other != key);
        let (own, all) = others.fold((0_usize, 0_usize), |(own, all), (other, job)| {
            let bytes = job.frontier.bytes();
            let is_own = self.people.are_one(key.uid, other.uid);
            let own_bytes = if is_own { bytes } else { 0 };
            (own.saturating_add(own_bytes), all.saturating_add(bytes))
        });
        BYTES_PER_PERSON.saturating_sub(own).min(BYTES.saturating_sub(all))
    }

    /// The frontiers of every job, or of one user's, as status shows them.
    pub(crate) fn statuses(&self, only_of: Option<Uid>) -> BTreeMap<JobKey, FrontierStatus> {
        let jobs = self.lock();
        let shown = jobs.iter().filter(|(key, _)| only_of.is_none_or(|uid| uid == key.uid));
        shown.map(|(key, job)| (key.clone(), job.status())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobKey, Arc<FrontierJob>>> {
        lock(&self.jobs)
    }
}

pub(super) fn not_loaded(job: &JobName) -> Refusal {
    Refusal::new(
        RefusalCode::NoPlan,
        format!("no frontier is loaded for job {job}"),
        "load the file that `pfoctl plan optimize` wrote with `pfoctl plan load`",
    )
}

impl FrontierJob {
    fn new(
        key: JobKey,
        pp_degree: u32,
        (label, digest, frontier): (String, Digest, Arc<JobFrontier>),
        state: State,
    ) -> Self {
        let (changing, state) = (tokio::sync::Mutex::default(), Mutex::new(state));
        let watched = Mutex::default();
        Self { key, pp_degree, label, frontier, digest, changing, state, watched }
    }

    /// What its instructions were profiled to take.
    pub(crate) fn profile(&self) -> &Profile {
        self.frontier.profile()
    }

    /// Its frontier.
    pub(crate) fn frontier(&self) -> &Arc<JobFrontier> {
        &self.frontier
    }

    /// Takes note of how the job runs beside its profile.
    pub(crate) fn note(&self, conditions: Conditions) {
        lock(&self.watched).conditions = conditions;
    }

    pub(super) fn conditions(&self) -> Conditions {
        lock(&self.watched).conditions.clone()
    }

    /// Whether slow stages may be answered already; power limits may hold all of them.
    pub(crate) fn may_answer(&self, are_limited: bool) -> bool {
        lock(&self.watched).pace.may_answer(Duration::from_nanos(now_ns()), are_limited)
    }

    pub(super) fn note_answer(&self) {
        lock(&self.watched).pace.answered(Duration::from_nanos(now_ns()));
    }

    /// What its frontier is called.
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Whether a user loaded its frontier here, and the other nodes of the job do not have it.
    pub(super) fn is_unshared(&self) -> bool {
        self.state().unshared
    }

    pub(super) fn set_shared(&self) {
        self.state().unshared = false;
    }

    /// Takes note of whether the job has a rank. Whether that changed.
    fn note_presence(&self, is_there: bool) -> bool {
        let mut state = self.state();
        let changed = state.left_ns.is_none() != is_there;
        if changed {
            state.left_ns = if is_there { None } else { Some(now_ns()) };
        }
        changed
    }

    fn left_for(&self) -> Option<Duration> {
        let left_ns = self.state().left_ns?;
        Some(Duration::from_nanos(now_ns().saturating_sub(left_ns)))
    }

    pub(crate) fn status(&self) -> FrontierStatus {
        self.frontier.status()
    }

    fn record(&self) -> JobRecord {
        let State { left_ns, unshared } = self.state().clone();
        let JobKey { uid, name: job } = self.key.clone();
        JobRecord { uid, job, frontier: self.label.clone(), left_ns, unshared }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

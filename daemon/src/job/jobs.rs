//! The jobs of this node, found by owner and name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pfo_protocol::{JobSelector, Refusal, RefusalCode};

use crate::job::{Job, JobKey};
use crate::job_file::JobFiles;
use crate::job_record::JobRecord;
use crate::lease::Session;

/// A job without ranks keeps its plan so long, for trainers that reconnect or restart.
const FORGET_AFTER: Duration = Duration::from_secs(15 * 60);

/// Jobs without ranks that one user may leave behind.
const EMPTY_PER_USER: usize = 32;

/// Instructions of all plans that the jobs of one user keep, and of those that all users keep. One takes
/// 16 bytes.
const PLANNED_PER_USER: usize = 2_000_000;
const PLANNED: usize = 6_000_000;

/// All jobs.
#[derive(Debug)]
pub struct Jobs {
    known: Mutex<BTreeMap<JobKey, Arc<Job>>>,
    files: Mutex<JobFiles>,
}

impl Jobs {
    /// No jobs yet; what they run is kept in these files.
    #[must_use]
    pub fn new(files: JobFiles) -> Self {
        Self { known: Mutex::default(), files: Mutex::new(files) }
    }

    /// Takes up what the jobs of an earlier daemon ran, before the threads of `sessions` begin.
    pub fn restore(&self, sessions: &[Arc<Session>]) {
        let records = self.files().read();
        for record in records {
            let key = record.key();
            if record.left_for() > FORGET_AFTER {
                self.files().remove(&key);
                continue;
            }
            let frontier = self.files().frontier(&key);
            match record.restore(sessions, frontier.as_deref()) {
                Ok(job) => {
                    self.lock().insert(key, Arc::new(job));
                }
                Err(misfit) => {
                    tracing::warn!(job = %key.name, uid = key.uid, "lost the job's plan: {misfit}");
                    self.files().remove(&key);
                }
            }
        }
    }

    /// Keeps what a job runs for the next daemon.
    pub fn keep(&self, job: &Job) {
        self.write(job, false);
    }

    /// Keeps the frontier of a job, too.
    pub fn keep_with_frontier(&self, job: &Job, frontier: &[u8]) {
        if let Err(error) = self.files().write_frontier(&job.key, frontier) {
            tracing::warn!(
                job = %job.key.name, uid = job.key.uid,
                "a restart of pfod will lose the job's frontier, for it cannot be written: {error}"
            );
        }
        self.keep(job);
    }

    /// Keeps what every job runs when the daemon leaves their ranks.
    pub fn keep_all(&self) {
        for job in self.all() {
            self.write(&job, true);
        }
    }

    fn write(&self, job: &Job, ending: bool) {
        // Held from here on, lest an older record replaces a newer one.
        let files = self.files();
        if let Some(record) = JobRecord::of(job, ending)
            && let Err(error) = files.write(&record)
        {
            tracing::warn!(
                job = %job.key.name, uid = job.key.uid,
                "a restart of pfod will end the job's plan, for it cannot be written: {error}"
            );
        }
    }

    /// The job with that key, made if there is none; `pp_degree` is what its first rank says.
    pub fn find_or_create(&self, key: JobKey, pp_degree: u32) -> Arc<Job> {
        let mut known = self.lock();
        self.forget(&mut known, key.uid);
        let fits = |job: &&Arc<Job>| job.pp_degree == pp_degree || !job.members().ranks.is_empty();
        if let Some(job) = known.get(&key).filter(fits) {
            return Arc::clone(job);
        }
        self.files().remove(&key);
        let job = Arc::new(Job::new(key.clone(), pp_degree));
        known.insert(key, Arc::clone(&job));
        job
    }

    /// The job that a request means: the peer's own, or with `any` the only one of that name.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub fn select(&self, selector: &JobSelector, own: u32, any: bool) -> Result<Arc<Job>, Refusal> {
        let known = self.lock();
        let JobSelector { job: name, uid } = selector;
        if let Some(job) = known.get(&JobKey { uid: uid.unwrap_or(own), name: name.clone() }) {
            return Ok(Arc::clone(job));
        }
        let mut others = known.values().filter(|job| any && uid.is_none() && job.key.name == *name);
        match (others.next(), others.next()) {
            (Some(job), None) => Ok(Arc::clone(job)),
            (Some(one), Some(other)) => Err(Refusal::new(
                RefusalCode::UnknownJob,
                format!(
                    "several users have a job {name}, among them {} and {}",
                    one.key.uid, other.key.uid
                ),
                "say whose with --user",
            )),
            (None, _) => Err(Refusal::new(
                RefusalCode::UnknownJob,
                format!("there is no job {name} of user {} on this node", uid.unwrap_or(own)),
                "see `pfoctl status` for the jobs that are",
            )),
        }
    }

    /// How many instructions another plan of this user may have.
    #[must_use]
    pub fn room_for_plans(&self, uid: u32) -> usize {
        let sizes = self.all().into_iter().map(|job| (job.key.uid, job.planned_instructions()));
        let (own, all) = sizes.fold((0, 0), |(own, all), (owner, size)| {
            (if owner == uid { own + size } else { own }, all + size)
        });
        PLANNED_PER_USER.saturating_sub(own).min(PLANNED.saturating_sub(all))
    }

    /// Every job, by owner and name.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Job>> {
        self.lock().values().cloned().collect()
    }

    fn forget(&self, known: &mut BTreeMap<JobKey, Arc<Job>>, uid: u32) {
        let empty_since = |job: &Arc<Job>| job.members().empty_since;
        let old = |job: &Arc<Job>| empty_since(job).is_some_and(|s| s.elapsed() > FORGET_AFTER);
        known.retain(|key, job| {
            if old(job) {
                self.files().remove(key);
            }
            !old(job)
        });
        let own = known.values().filter(|job| job.key.uid == uid);
        let mut empty: Vec<_> =
            own.filter_map(|job| empty_since(job).map(|since| (since, job.key.clone()))).collect();
        empty.sort();
        let surplus = empty.len().saturating_sub(EMPTY_PER_USER);
        for (_, key) in empty.into_iter().take(surplus) {
            known.remove(&key);
            self.files().remove(&key);
        }
    }

    fn files(&self) -> MutexGuard<'_, JobFiles> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobKey, Arc<Job>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

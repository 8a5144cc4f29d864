//! The guards of the node's jobs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use pfo_protocol::{GuardStatus, JobView, Refusal, RefusalCode, Uid};
use pfo_service::{People, lock};
use tokio::task::AbortHandle;

use crate::guard::file::{GuardFile, GuardRecord};
use crate::guard::runner;
use crate::job::JobKey;
use crate::pfod::{Pfod, Questions};
use crate::refusal::not_written;
use crate::settings::InForce;
use crate::straggler::Labelled;

/// Guards that one person may have.
const MOST_PER_PERSON: usize = 64;

/// What guards need to measure jobs and to be kept.
#[derive(Debug)]
pub(crate) struct GuardMeans {
    pub(crate) pfod: Pfod,
    pub(crate) questions: Arc<Questions>,
    pub(crate) people: Arc<People>,
    pub(crate) settings: Arc<InForce>,
    pub(crate) file: GuardFile,
}

/// Every guard.
#[derive(Debug)]
pub(crate) struct Guards {
    known: Mutex<BTreeMap<JobKey, Guard>>,
    means: GuardMeans,
}

#[derive(Debug)]
struct Guard {
    status: GuardStatus,
    comparing: Option<Labelled>,
    task: AbortHandle,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Guards {
    pub(crate) fn new(means: GuardMeans) -> Arc<Self> {
        Arc::new(Self { known: Mutex::default(), means })
    }

    /// Continues the guards of an earlier agent. To be called on the runtime, or on a thread of it.
    pub(crate) fn restore(self: &Arc<Self>) {
        for GuardRecord { uid, job, max_slowdown, comparing } in self.means.file.read() {
            self.begin(&mut self.lock(), JobKey { uid, name: job }, max_slowdown, comparing);
        }
    }

    /// Guards a job, in place of an earlier guard. To be called on the runtime, or on a thread of
    /// it.
    ///
    /// # Errors
    /// If the person has too many, or it cannot be kept on disk.
    pub(crate) fn set(
        self: &Arc<Self>,
        job: &JobView,
        max_slowdown: f64,
    ) -> Result<GuardStatus, Refusal> {
        let key = JobKey::of(job);
        let mut known = self.lock();
        let is_own = |other: &JobKey| self.means.people.are_one(key.uid, other.uid);
        let own = known.keys().filter(|other| **other != key && is_own(other)).count();
        if own >= MOST_PER_PERSON {
            return Err(Refusal::new(
                RefusalCode::LimitReached,
                format!("user {} has guards on {own} jobs", key.uid),
                "end one with `pfoctl plan guard JOB --off`",
            ));
        }
        let status = self.begin(&mut known, key.clone(), max_slowdown, None);
        match self.keep(&known) {
            Ok(()) => Ok(status),
            Err(error) => {
                known.remove(&key);
                Err(not_written("the guard", &error))
            }
        }
    }

    /// Ends the guard of a job; false if it has none.
    pub(crate) fn end(&self, key: &JobKey) -> bool {
        let mut known = self.lock();
        let ended = known.remove(key).is_some();
        if ended && let Err(error) = self.keep(&known) {
            tracing::warn!(
                uid = key.uid.0, job = %key.name,
                "a restart of the agent will guard {key} again: {error}"
            );
        }
        ended
    }

    /// Every guard, or those of one user's jobs.
    pub(crate) fn statuses(&self, uid: Option<Uid>) -> Vec<(JobKey, GuardStatus)> {
        let known = self.lock();
        let shown = known.iter().filter(|(key, _)| uid.is_none_or(|uid| uid == key.uid));
        shown.map(|(key, guard)| (key.clone(), guard.status.clone())).collect()
    }

    pub(super) fn means(&self) -> &GuardMeans {
        &self.means
    }

    /// Changes what status shows of a guard.
    pub(super) fn report(&self, key: &JobKey, change: impl FnOnce(&mut GuardStatus)) {
        if let Some(guard) = self.lock().get_mut(key) {
            change(&mut guard.status);
        }
    }

    /// Notes on disk that a plan is compared with default clocks, or no more.
    ///
    /// # Errors
    /// If that cannot be written.
    pub(super) fn comparing(&self, key: &JobKey, plan: Option<Labelled>) -> std::io::Result<()> {
        let mut known = self.lock();
        if let Some(guard) = known.get_mut(key) {
            guard.comparing = plan;
        }
        self.keep(&known)
    }

    fn begin(
        self: &Arc<Self>,
        known: &mut BTreeMap<JobKey, Guard>,
        key: JobKey,
        max_slowdown: f64,
        comparing: Option<Labelled>,
    ) -> GuardStatus {
        let status = GuardStatus { max_slowdown, ..GuardStatus::default() };
        let interrupted = comparing.clone();
        let guarding = runner::run(Arc::downgrade(self), key.clone(), max_slowdown, interrupted);
        let task = tokio::spawn(guarding).abort_handle();
        known.insert(key, Guard { status: status.clone(), comparing, task });
        status
    }

    fn keep(&self, known: &BTreeMap<JobKey, Guard>) -> std::io::Result<()> {
        let record = |(key, guard): (&JobKey, &Guard)| GuardRecord {
            uid: key.uid,
            job: key.name.clone(),
            max_slowdown: guard.status.max_slowdown,
            comparing: guard.comparing.clone(),
        };
        self.means.file.write(known.iter().map(record).collect())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobKey, Guard>> {
        lock(&self.known)
    }
}

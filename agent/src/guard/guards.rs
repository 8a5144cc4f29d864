//! The guards of the node's jobs.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use pfo_protocol::{GuardStatus, JobView, Refusal, RefusalCode, Uid};
use pfo_service::{People, lock};

use crate::budget::Budgets;
use crate::guard::file::{GuardFile, GuardRecord};
use crate::guard::runner;
use crate::job::JobKey;
use crate::ledger::Ledger;
use crate::pfod::{Pfod, Questions};
use crate::refusal::not_written;
use crate::settings::InForce;
use crate::straggler::Stragglers;

/// Guards that one person may have.
const MOST_PER_PERSON: usize = 64;

/// What guards need to measure jobs and to be kept.
#[derive(Debug)]
pub(crate) struct GuardMeans {
    pub(crate) pfod: Pfod,
    pub(crate) questions: Arc<Questions>,
    pub(crate) people: Arc<People>,
    pub(crate) stragglers: Arc<Stragglers>,
    pub(crate) settings: Arc<InForce>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) budgets: Arc<Budgets>,
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
    /// What the next agent has to know.
    record: GuardRecord,
    /// Without it the task of the guard ends, but not in the middle of a comparison: the job would
    /// stay at default clocks.
    _in_force: Arc<()>,
}

impl Guards {
    pub(crate) fn new(means: GuardMeans) -> Arc<Self> {
        Arc::new(Self { known: Mutex::default(), means })
    }

    /// Continues the guards of an earlier agent. To be called on the runtime, or on a thread of it.
    pub(crate) fn restore(self: &Arc<Self>) {
        for record in self.means.file.read() {
            self.begin(&mut self.lock(), record);
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
        let (uid, job) = (key.uid, key.name.clone());
        let record = GuardRecord { uid, job, max_slowdown, comparing: None, corrected: None };
        let status = self.begin(&mut known, record);
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

    /// The slowdown for which the plan of this label took the place of another one, unless it has
    /// proved itself since.
    pub(super) fn corrected(&self, key: &JobKey, label: &str) -> Option<f64> {
        let known = self.lock();
        let corrected = known.get(key)?.record.corrected.as_ref();
        corrected.filter(|corrected| corrected.label == label).map(|corrected| corrected.slowdown)
    }

    /// Notes on disk what the next agent has to know of a guard.
    ///
    /// # Errors
    /// If that cannot be written.
    pub(super) fn note(&self, key: &JobKey, what: impl FnOnce(&mut GuardRecord)) -> io::Result<()> {
        let mut known = self.lock();
        if let Some(guard) = known.get_mut(key) {
            what(&mut guard.record);
        }
        self.keep(&known)
    }

    fn begin(
        self: &Arc<Self>,
        known: &mut BTreeMap<JobKey, Guard>,
        record: GuardRecord,
    ) -> GuardStatus {
        let GuardRecord { uid, max_slowdown, .. } = record;
        let key = JobKey { uid, name: record.job.clone() };
        let status = GuardStatus { max_slowdown, ..GuardStatus::default() };
        let interrupted = record.comparing.clone();
        let in_force = Arc::new(());
        let asked = runner::Asked { limit: max_slowdown, in_force: Arc::downgrade(&in_force) };
        tokio::spawn(runner::run(Arc::downgrade(self), key.clone(), asked, interrupted));
        known.insert(key, Guard { status: status.clone(), record, _in_force: in_force });
        status
    }

    fn keep(&self, known: &BTreeMap<JobKey, Guard>) -> io::Result<()> {
        self.means.file.write(known.values().map(|guard| guard.record.clone()).collect())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobKey, Guard>> {
        lock(&self.known)
    }
}

//! What other nodes of a job have to do with its sweep: they go on with it when this node has left.

use std::sync::Arc;

use pfo_protocol::{JobView, ProfileKey, Refusal, SweepEnd, SweepState};

use super::{Sweep, Sweeps};
use crate::experiments::Experiment;
use crate::job::JobKey;
use crate::pfod::PfodError;
use crate::refusal::not_written;
use crate::steer::Steering;
use crate::sweep::record::SweepRecord;

/// How far a sweep is, for other nodes.
pub(in crate::sweep) struct Progress {
    /// Counts the changes of what is on disk.
    pub(in crate::sweep) changes: u64,
    pub(in crate::sweep) record: SweepRecord,
    /// How it has ended, if it has.
    pub(in crate::sweep) end: Option<SweepEnd>,
    /// Whether it was begun before this agent.
    pub(in crate::sweep) restored: bool,
}

impl Sweeps {
    /// Goes on with a sweep that was begun on another node. To be called on the runtime, or on a thread of
    /// it.
    ///
    /// # Errors
    /// If there is one of the job here that is not over, or it cannot be kept on disk.
    pub(in crate::sweep) fn adopt(&self, record: SweepRecord) -> Result<(), Refusal> {
        let key = record.key();
        self.known.adopt(&key, || {
            self.means.files.write(&record).map_err(|error| not_written("the sweep", &error))?;
            Ok(Sweep::go_on(record, &self.means, false))
        })
    }

    /// A job, if it is on this node.
    ///
    /// # Errors
    /// If `pfod` does not answer.
    pub(in crate::sweep) async fn job(&self, key: &JobKey) -> Result<Option<JobView>, PfodError> {
        self.means.questions.job(key).await
    }

    pub(in crate::sweep) fn steering(&self) -> &Arc<Steering> {
        &self.means.steering
    }

    /// Whether a job has a sweep here that is not over.
    pub(in crate::sweep) fn is_sweeping(&self, key: &JobKey) -> bool {
        self.known.lock().get(key).is_some_and(|sweep| !sweep.is_over())
    }

    /// How far the sweep of a job is; none if it has none here.
    pub(in crate::sweep) fn progress(&self, key: &JobKey) -> Option<Progress> {
        let known = self.known.lock();
        let sweep = known.get(key)?;
        let now = sweep.now();
        let end = match now.state {
            SweepState::Ended(end) => Some(end),
            _ => None,
        };
        let (changes, record) = (now.changed, now.record.clone());
        Some(Progress { changes, record, end, restored: sweep.restored })
    }

    /// Forgets a sweep of an earlier agent, if it has not changed since.
    pub(in crate::sweep) fn drop_restored(&self, key: &JobKey, changes: u64) {
        let mut known = self.known.lock();
        let Some(sweep) = known.get(key).cloned() else { return };
        let mut now = sweep.now();
        if now.changed == changes {
            now.end_run();
            self.means.files.remove(key);
            known.remove(key);
        }
    }

    /// The CSV of a stored profile.
    pub(in crate::sweep) fn read_profile(&self, key: &ProfileKey) -> Option<Vec<u8>> {
        let profiles = &self.means.profiles;
        profiles.read(&profiles.find(key)?).ok()
    }

    /// Stores a profile that was measured from another node.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(in crate::sweep) fn keep_profile(
        &self,
        key: &ProfileKey,
        csv: &str,
    ) -> Result<(), Refusal> {
        let written = self.means.profiles.write(key, csv);
        written.map_err(|error| not_written("the profile", &error))
    }
}

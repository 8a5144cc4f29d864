//! The jobs of this node, found by owner and name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pfo_protocol::{JobSelector, Refusal, RefusalCode};

use crate::job::{Job, JobKey};

/// A job without ranks keeps its plan so long, for trainers that reconnect or restart.
const FORGET_AFTER: Duration = Duration::from_secs(15 * 60);

/// Jobs without ranks that one user may leave behind.
const EMPTY_PER_USER: usize = 32;

/// All jobs.
#[derive(Debug, Default)]
pub struct Jobs {
    known: Mutex<BTreeMap<JobKey, Arc<Job>>>,
}

impl Jobs {
    /// The job with that key, made if there is none; `pp_degree` is what its first rank says.
    pub fn find_or_create(&self, key: JobKey, pp_degree: u32) -> Arc<Job> {
        let mut known = self.lock();
        Self::forget(&mut known, key.uid);
        let fits = |job: &&Arc<Job>| job.pp_degree == pp_degree || !job.members().ranks.is_empty();
        if let Some(job) = known.get(&key).filter(fits) {
            return Arc::clone(job);
        }
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

    /// Every job, by owner and name.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Job>> {
        self.lock().values().cloned().collect()
    }

    fn forget(known: &mut BTreeMap<JobKey, Arc<Job>>, uid: u32) {
        let empty_since = |job: &Arc<Job>| job.members().empty_since;
        known.retain(|_, job| empty_since(job).is_none_or(|since| since.elapsed() < FORGET_AFTER));
        let own = known.values().filter(|job| job.key.uid == uid);
        let mut empty: Vec<_> =
            own.filter_map(|job| empty_since(job).map(|since| (since, job.key.clone()))).collect();
        empty.sort();
        let surplus = empty.len().saturating_sub(EMPTY_PER_USER);
        for (_, key) in empty.into_iter().take(surplus) {
            known.remove(&key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobKey, Arc<Job>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

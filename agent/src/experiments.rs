//! The experiments of one kind on the jobs of this node, such as its tunes: each job has one, and each
//! person a limited number.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use pfo_protocol::{JobSelector, Refusal, RefusalCode, Uid};
use pfo_service::{People, lock};

use crate::authority::Permit;
use crate::job::JobKey;

/// Unfinished experiments of one kind that one person may have.
const UNFINISHED_PER_PERSON: usize = 16;

/// Finished ones of one person that are still shown.
const OVER_PER_PERSON: usize = 16;

/// What is done to one job.
pub(crate) trait Experiment {
    /// Several of these, such as "tunes".
    const PLURAL: &'static str;
    /// What is done to the job, such as "tuned".
    const DONE: &'static str;
    /// Which commands show one and begin one.
    const REMEDY: &'static str;
    /// Which command ends one.
    const STOP: &'static str;

    fn is_over(&self) -> bool;

    /// The refusal of another one as long as this one is not over.
    fn unfinished(key: &JobKey) -> Refusal;
}

#[derive(Debug)]
pub(crate) struct Experiments<T> {
    known: Mutex<BTreeMap<JobKey, Arc<T>>>,
    people: Arc<People>,
}

impl<T: Experiment> Experiments<T> {
    pub(crate) fn new(people: Arc<People>) -> Self {
        Self { known: Mutex::default(), people }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<JobKey, Arc<T>>> {
        lock(&self.known)
    }

    /// Begins one, and tells what is no longer shown for it.
    ///
    /// # Errors
    /// If the job has an unfinished one, its user has too many, or it does not begin.
    pub(crate) fn begin(
        &self,
        key: &JobKey,
        begin: impl FnOnce() -> Result<Arc<T>, Refusal>,
        mut forget: impl FnMut(&JobKey),
    ) -> Result<Arc<T>, Refusal> {
        let mut known = self.lock();
        check_over(&known, key)?;
        let is_own = |other: &JobKey| self.people.are_one(key.uid, other.uid);
        let own = known.iter().filter(|(other, _)| is_own(other) && *other != key);
        let (over, busy): (Vec<_>, Vec<_>) = own.partition(|(_, known)| known.is_over());
        if busy.len() >= UNFINISHED_PER_PERSON {
            let (user, number, several) = (key.uid, busy.len(), T::PLURAL);
            let message = format!("user {user} has {number} {several} that are not over");
            let remedy = format!("stop one that is not needed with `{}`", T::STOP);
            return Err(Refusal::new(RefusalCode::LimitReached, message, remedy));
        }
        let over: Vec<JobKey> = over.into_iter().map(|(other, _)| other.clone()).collect();
        let begun = begin()?;
        for forgotten in over.iter().skip(OVER_PER_PERSON.saturating_sub(1)) {
            known.remove(forgotten);
            forget(forgotten);
        }
        known.insert(key.clone(), Arc::clone(&begun));
        Ok(begun)
    }

    /// Takes one that was begun on another node.
    ///
    /// # Errors
    /// If the job has an unfinished one here, or it does not begin.
    pub(crate) fn adopt(
        &self,
        key: &JobKey,
        begin: impl FnOnce() -> Result<Arc<T>, Refusal>,
    ) -> Result<(), Refusal> {
        let mut known = self.lock();
        check_over(&known, key)?;
        known.insert(key.clone(), begin()?);
        Ok(())
    }

    /// The one of the job that a request means: the peer's own or, for an administrator, the only one
    /// of that name.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub(crate) fn select(
        &self,
        selector: &JobSelector,
        permit: &Permit,
    ) -> Result<Arc<T>, Refusal> {
        let known = self.lock();
        let JobSelector { job: name, uid } = selector;
        let owner = uid.unwrap_or(permit.uid());
        let is_visible =
            |key: &JobKey| key.name == *name && permit.only_of().is_none_or(|own| own == key.uid);
        let named: Vec<_> = known.iter().filter(|(key, _)| is_visible(key)).collect();
        if let Some((_, own)) = named.iter().find(|(key, _)| key.uid == owner) {
            return Ok(Arc::clone(own));
        }
        let (message, remedy) = match (&named[..], uid) {
            ([(_, only)], None) => return Ok(Arc::clone(only)),
            ([_, _, ..], None) => {
                let message = format!("jobs {name} of several users are being {}", T::DONE);
                (message, "say whose with --user")
            }
            _ => (format!("job {name} of user {owner} is not being {}", T::DONE), T::REMEDY),
        };
        Err(Refusal::new(RefusalCode::UnknownJob, message, remedy))
    }

    /// Those of one user's jobs, or all.
    pub(crate) fn of(&self, uid: Option<Uid>) -> Vec<Arc<T>> {
        let known = self.lock();
        let shown = known.iter().filter(|(key, _)| uid.is_none_or(|uid| uid == key.uid));
        shown.map(|(_, experiment)| Arc::clone(experiment)).collect()
    }
}

fn check_over<T: Experiment>(
    known: &BTreeMap<JobKey, Arc<T>>,
    key: &JobKey,
) -> Result<(), Refusal> {
    match known.get(key) {
        Some(known) if !known.is_over() => Err(T::unfinished(key)),
        _ => Ok(()),
    }
}

//! The proof that a request was decided. A handler takes one, so that nothing runs undecided.

use std::sync::Arc;

use pfo_protocol::{JobSelector, Pid, Refusal, Uid};

use super::action::Action;
use super::authority::{Authority, Caller};
use crate::job::{Job, Jobs};

/// Says that a caller may do what it asked for. Only [`Authority::permit`] makes one.
#[derive(Clone, Debug)]
pub(crate) struct Permit {
    caller: Caller,
    every_job: bool,
}

impl Permit {
    pub(super) fn new(caller: Caller, every_job: bool) -> Self {
        Self { caller, every_job }
    }

    /// The caller.
    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// The user that the caller is or acts for.
    pub(crate) fn uid(&self) -> Uid {
        self.caller.peer.uid
    }

    /// The process to name in the journal.
    pub(crate) fn pid(&self) -> Pid {
        self.caller.peer.pid
    }

    /// The process that waits for the answer, if one does.
    pub(crate) fn waiting_pid(&self) -> Option<Pid> {
        self.caller.is_waiting.then(|| self.pid())
    }

    /// The only user whose jobs may be seen; none means every user's.
    pub(crate) fn only_of(&self) -> Option<Uid> {
        (!self.every_job).then(|| self.uid())
    }

    /// Whether something of this user is within the permit.
    ///
    /// # Errors
    /// As the decision about that user's things would have been.
    pub(crate) fn covers(
        &self,
        authority: &Authority,
        owner: Uid,
        action: impl Fn(Option<Uid>) -> Action,
    ) -> Result<(), Refusal> {
        authority.permit(&self.caller, action(Some(owner))).map(drop)
    }

    /// The job that a request means.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub(crate) fn select(&self, jobs: &Jobs, selector: &JobSelector) -> Result<Arc<Job>, Refusal> {
        if let Some(owner) = selector.uid.filter(|owner| !self.every_job && *owner != self.uid()) {
            return Err(Jobs::unknown(&selector.job, owner));
        }
        jobs.select(selector, self.uid(), self.every_job)
    }
}

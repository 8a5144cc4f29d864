//! The proof that a request was authorized. Handlers require one, so that nothing runs
//! unauthorized.

use std::sync::Arc;

use pfo_protocol::{JobSelector, Pid, Refusal, Uid};
use pfo_service::User;

use super::action::Action;
use super::authority::{Authority, Caller};
use crate::job::{Job, Jobs};

/// Proves that a caller may do what it asked for. Only [`Authority::permit`] creates one.
#[derive(Clone, Debug)]
pub(crate) struct Permit {
    caller: Caller,
    every_job: bool,
}

impl Permit {
    pub(super) fn new(caller: Caller, every_job: bool) -> Self {
        Self { caller, every_job }
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// The user that the caller is or acts for.
    pub(crate) fn uid(&self) -> Uid {
        self.caller.peer.uid
    }

    /// The user to name in the journal, with the person that it counts as.
    pub(crate) fn user(&self) -> User {
        self.caller.peer.user()
    }

    /// The process to name in the journal.
    pub(crate) fn pid(&self) -> Pid {
        self.caller.peer.pid
    }

    /// The process that waits for the answer, if one does.
    pub(crate) fn waiting_pid(&self) -> Option<Pid> {
        self.caller.is_waiting.then(|| self.pid())
    }

    /// Whether everything may be seen.
    pub(crate) fn sees_all(&self) -> bool {
        self.every_job
    }

    /// Whether the jobs and processes of this user may be seen.
    pub(crate) fn sees(&self, owner: Uid) -> bool {
        self.every_job || owner == self.uid()
    }

    /// Checks that something of this user is within the permit.
    ///
    /// # Errors
    /// The same refusal as for a request about that user's things.
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
    /// If there is no such job, or more than one.
    pub(crate) fn select(&self, jobs: &Jobs, selector: &JobSelector) -> Result<Arc<Job>, Refusal> {
        if let Some(owner) = selector.uid.filter(|owner| !self.sees(*owner)) {
            return Err(Jobs::unknown(&selector.job, owner));
        }
        jobs.select(selector, self.uid(), self.every_job)
    }
}

/// The permit of a user, for tests.
#[cfg(test)]
pub(crate) fn example_permit(uid: Uid, every_job: bool) -> Permit {
    use pfo_service::{Door, Peer};
    let peer = Peer { uid, person: uid, pid: Pid(3), groups: Vec::new() };
    Permit::new(Caller::new(peer, Door::Users), every_job)
}

#[cfg(test)]
mod tests {
    use pfo_protocol::RefusalCode;
    use pfo_service::{Door, Peer};

    use super::super::authority::Claim;
    use super::*;
    use crate::job::{JobKey, jobs_in};

    fn caller(uid: u32) -> Caller {
        let (uid, person) = (Uid(uid), Uid(uid));
        Caller::new(Peer { uid, person, pid: Pid(3), groups: Vec::new() }, Door::Users)
    }

    fn selected(permit: &Permit, name: &str, uid: Option<u32>) -> Result<u32, Refusal> {
        let directory = tempfile::tempdir().unwrap();
        let jobs = jobs_in(directory.path());
        for (uid, name) in [(7, "j"), (8, "j"), (8, "other")] {
            jobs.find_or_create(JobKey { uid: Uid(uid), name: name.parse().unwrap() }, 1);
        }
        let selector = JobSelector { job: name.parse().unwrap(), uid: uid.map(Uid) };
        permit.select(&jobs, &selector).map(|job| job.key.uid.0)
    }

    #[test]
    fn a_user_selects_its_own_jobs_and_cannot_tell_those_of_others_from_none() {
        let permit = Permit::new(caller(7), false);
        assert_eq!(
            (permit.sees_all(), permit.sees(Uid(7)), permit.sees(Uid(8))),
            (false, true, false)
        );
        assert_eq!(selected(&permit, "j", None), Ok(7));
        assert_eq!(selected(&permit, "j", Some(7)), Ok(7));
        for name in ["j", "no-such-job"] {
            let refusal = selected(&permit, name, Some(8)).unwrap_err();
            assert_eq!(refusal.code, RefusalCode::UnknownJob);
            assert_eq!(refusal.message, format!("user 8 has no job {name} on this node"));
        }
        assert_eq!(selected(&permit, "other", None).unwrap_err().code, RefusalCode::UnknownJob);
    }

    #[test]
    fn a_permit_for_every_job_selects_those_of_others() {
        let permit = Permit::new(caller(0), true);
        assert!(permit.sees_all() && permit.sees(Uid(8)));
        assert_eq!(selected(&permit, "j", Some(8)), Ok(8));
        assert_eq!(selected(&permit, "other", None), Ok(8));
        assert!(selected(&permit, "j", None).is_err(), "two users have it");
    }

    #[test]
    fn a_process_waits_for_the_answer_unless_the_agent_asks_without_one() {
        let agent = Caller::new(caller(998).peer, Door::Agent);
        let user = User { uid: Uid(7), person: Uid(7) };
        let acting = |pid: Option<Pid>| {
            Permit::new(agent.on_behalf(user, pid, Vec::new(), Claim::User), false)
        };
        assert_eq!(acting(Some(Pid(5))).waiting_pid(), Some(Pid(5)));
        let sweep = acting(None);
        assert_eq!((sweep.waiting_pid(), sweep.pid(), sweep.uid()), (None, Pid(3), Uid(7)));
        assert_eq!(Permit::new(caller(7), false).waiting_pid(), Some(Pid(3)));
    }
}

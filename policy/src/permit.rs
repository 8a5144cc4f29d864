//! The proof that a request was authorized. Handlers require one, so that nothing runs
//! unauthorized.

use pfo_protocol::{Pid, Refusal, Uid};

use crate::action::Action;
use crate::authority::{Authority, Caller};

/// Proves that a caller may do what it asked for. Only [`Authority::permit`] creates one.
#[derive(Clone, Debug)]
pub struct Permit {
    caller: Caller,
    every_job: bool,
}

impl Permit {
    pub(crate) fn new(caller: Caller, every_job: bool) -> Self {
        Self { caller, every_job }
    }

    /// Who asked.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// The user that the caller is or acts for.
    pub fn uid(&self) -> Uid {
        self.caller.peer.uid
    }

    /// The process to name in the journal.
    pub fn pid(&self) -> Pid {
        self.caller.peer.pid
    }

    /// The process that waits for the answer, if one does.
    pub fn waiting_pid(&self) -> Option<Pid> {
        self.caller.is_waiting.then(|| self.pid())
    }

    /// Whether everything may be seen.
    pub fn sees_all(&self) -> bool {
        self.every_job
    }

    /// Whether the jobs and processes of this user may be seen.
    pub fn sees(&self, owner: Uid) -> bool {
        self.every_job || owner == self.uid()
    }

    /// Checks that something of this user is within the permit.
    ///
    /// # Errors
    /// The same refusal as for a request about that user's things.
    pub fn covers(
        &self,
        authority: &Authority,
        owner: Uid,
        action: impl Fn(Option<Uid>) -> Action,
    ) -> Result<(), Refusal> {
        authority.permit(&self.caller, action(Some(owner))).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use pfo_service::{Door, Peer, User};

    use super::*;
    use crate::authority::Claim;

    fn caller(uid: u32) -> Caller {
        let (uid, person) = (Uid(uid), Uid(uid));
        Caller::new(
            Peer { uid, person, pid: Pid(3), groups: Vec::new(), cgroups: Vec::new() },
            Door::Users,
        )
    }

    #[test]
    fn a_permit_is_for_every_users_jobs_or_for_the_callers_own() {
        let own = Permit::new(caller(7), false);
        assert!(!own.sees_all() && own.sees(Uid(7)) && !own.sees(Uid(8)));
        let every = Permit::new(caller(0), true);
        assert!(every.sees_all() && every.sees(Uid(8)));
    }

    #[test]
    fn what_comes_through_the_agent_is_named_as_that_whatever_user_it_names() {
        let agent = Caller::new(Peer { pid: Pid(9), ..caller(998).peer }, Door::Agent);
        let user = User { uid: Uid(7), person: Uid(7) };
        let acting = |pid: Option<Pid>| agent.on_behalf(user, pid, Vec::new(), Claim::User);
        for (caller, said, waiting) in [
            (caller(7), "user 7", Some(Pid(3))),
            (agent.clone(), "pfo-agent (process 9)", Some(Pid(9))),
            (acting(Some(Pid(5))), "pfo-agent (process 9) for user 7", Some(Pid(5))),
            (acting(None), "pfo-agent (process 9), by itself, for user 7", None),
        ] {
            let permit = Permit::new(caller, false);
            assert_eq!(permit.caller().to_string(), said);
            assert_eq!(permit.waiting_pid(), waiting, "{said}");
        }
    }
}

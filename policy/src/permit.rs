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

    /// The only user whose jobs may be seen; `None` means every user's.
    pub fn only_of(&self) -> Option<Uid> {
        (!self.every_job).then(|| self.uid())
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
    use pfo_service::{Door, Peer};

    use super::*;
    use crate::authority::Claim;

    fn caller(uid: u32) -> Caller {
        Caller::new(Peer { uid: Uid(uid), pid: Pid(3), groups: Vec::new() }, Door::Users)
    }

    #[test]
    fn a_permit_is_for_every_users_jobs_or_for_the_callers_own() {
        assert_eq!(Permit::new(caller(7), false).only_of(), Some(Uid(7)));
        assert_eq!(Permit::new(caller(0), true).only_of(), None);
    }

    #[test]
    fn a_process_waits_for_the_answer_unless_the_agent_asks_without_one() {
        let agent = Caller::new(caller(998).peer, Door::Agent);
        let acting = |pid: Option<Pid>| {
            Permit::new(agent.on_behalf(Uid(7), pid, Vec::new(), Claim::User), false)
        };
        assert_eq!(acting(Some(Pid(5))).waiting_pid(), Some(Pid(5)));
        let sweep = acting(None);
        assert_eq!((sweep.waiting_pid(), sweep.pid(), sweep.uid()), (None, Pid(3), Uid(7)));
        assert_eq!(Permit::new(caller(7), false).waiting_pid(), Some(Pid(3)));
    }
}

//! What a request requires: a total function of the request, so that a new request does not compile
//! without a decision.

use pfo_protocol::{LeaseTarget, Request, Uid};

/// What a caller wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a session, and with it lease a GPU.
    OpenSession,
    /// See the daemon, the GPUs and its own jobs.
    SeeStatus,
    /// Change what a job runs, or measure it; `None` is a job of the caller's own or, for an
    /// administrator, of any user.
    ChangeJob(Option<Uid>),
    /// End leases of a user's jobs, or lift their revocation.
    EndLeases(Option<Uid>),
    /// Ask what another user may lease.
    ExplainOthers,
    /// Reload the configuration.
    Reload,
    /// Reset clocks that no session holds.
    ResetClocks,
    /// Drain the node, or undrain it.
    Maintain,
    /// Give GPUs to users.
    GrantGpus,
    /// Read everything that is visible of a job, of this user if one is named.
    Tap(Option<Uid>),
    /// Be notified of every change of a job.
    WatchJobs,
    /// Say how long clocks take to be in force.
    Calibrate,
    /// Keep GPUs below a power, whatever their jobs run.
    CapPower,
    /// Act on behalf of a user.
    ActForUsers,
}

impl Action {
    /// What a refusal calls it, after "may not".
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::OpenSession => "lease GPUs",
            Self::SeeStatus => "see the status of pfo",
            Self::ChangeJob(_) => "change another user's job",
            Self::EndLeases(_) => "end another user's leases",
            Self::ExplainOthers => "ask what other users may lease",
            Self::Reload => "have the configuration read again",
            Self::ResetClocks => "reset clocks",
            Self::Maintain => "drain this node",
            Self::GrantGpus => "grant GPUs",
            Self::Tap(_) => "tap jobs",
            Self::WatchJobs => "watch jobs",
            Self::Calibrate => "calibrate GPUs",
            Self::CapPower => "cap the power of GPUs",
            Self::ActForUsers => "act in the name of users",
        }
    }
}

/// What a request requires.
pub fn needs(request: &Request) -> Action {
    match request {
        Request::Gpus
        | Request::Status
        | Request::Leases
        | Request::SmClocks(_)
        | Request::PowerLimits(_)
        | Request::Jobs
        | Request::PlanRead(_)
        | Request::PolicyExplain { who: None, .. } => Action::SeeStatus,
        Request::PolicyExplain { who: Some(_), .. } => Action::ExplainOthers,
        Request::PlanLoad { job, .. }
        | Request::PlanCheck { job, .. }
        | Request::PlanSwap { job, .. }
        | Request::PlanSwapHere { job, .. }
        | Request::Trial { job, .. }
        | Request::TrialsEnd { job, .. } => Action::ChangeJob(job.uid),
        Request::LeaseRevoke(LeaseTarget::Job(job))
        | Request::LeaseAllow(LeaseTarget::Job(job)) => Action::EndLeases(job.uid),
        Request::LeaseRevoke(LeaseTarget::Gpu(_)) | Request::LeaseAllow(LeaseTarget::Gpu(_)) => {
            Action::EndLeases(None)
        }
        Request::ClocksReset { .. } | Request::LedgerAcknowledge => Action::ResetClocks,
        Request::Reload => Action::Reload,
        Request::Drain { .. } | Request::Undrain => Action::Maintain,
        Request::Grant { .. } | Request::GrantRevoke { .. } => Action::GrantGpus,
        Request::Tap { job, .. } => Action::Tap(job.uid),
        Request::WatchJobs => Action::WatchJobs,
        Request::SettleTimes { .. } => Action::Calibrate,
        Request::PowerCap { .. } => Action::CapPower,
        Request::OnBehalf { .. } => Action::ActForUsers,
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::JobSelector;

    use super::*;
    use crate::example_requests::{
        OWNER, job, requests_for_administrators, requests_of_the_agent, requests_that_change_a_job,
        requests_that_look,
    };

    #[test]
    fn to_look_needs_no_more_than_to_be_let_in() {
        for request in requests_that_look() {
            assert_eq!(needs(&request), Action::SeeStatus, "{request:?}");
        }
    }

    #[test]
    fn whatever_changes_a_job_needs_its_owner() {
        for request in requests_that_change_a_job() {
            assert_eq!(needs(&request), Action::ChangeJob(OWNER), "{request:?}");
        }
        let own = JobSelector { uid: None, ..job() };
        assert_eq!(needs(&Request::TrialsEnd { job: own, keep: true }), Action::ChangeJob(None));
    }

    #[test]
    fn administration_needs_what_it_does_and_names_the_owner_of_a_job() {
        for request in requests_for_administrators() {
            let action = match &request {
                Request::PolicyExplain { .. } => Action::ExplainOthers,
                Request::Reload => Action::Reload,
                Request::Drain { .. } | Request::Undrain => Action::Maintain,
                Request::Grant { .. } | Request::GrantRevoke { .. } => Action::GrantGpus,
                Request::ClocksReset { .. } | Request::LedgerAcknowledge => Action::ResetClocks,
                Request::LeaseRevoke(LeaseTarget::Job(_))
                | Request::LeaseAllow(LeaseTarget::Job(_)) => Action::EndLeases(OWNER),
                _ => Action::EndLeases(None),
            };
            assert_eq!(needs(&request), action, "{request:?}");
        }
    }

    #[test]
    fn a_tap_needs_the_owner_of_its_job_and_what_is_of_no_job_the_agent() {
        for request in requests_of_the_agent() {
            let action = match request {
                Request::OnBehalf { .. } => Action::ActForUsers,
                Request::WatchJobs => Action::WatchJobs,
                Request::SettleTimes { .. } => Action::Calibrate,
                Request::PowerCap { .. } => Action::CapPower,
                _ => Action::Tap(OWNER),
            };
            assert_eq!(needs(&request), action, "{request:?}");
        }
    }

    #[test]
    fn a_request_on_behalf_of_root_needs_no_less_than_one_on_behalf_of_anybody() {
        let act = |uid| needs(&Request::OnBehalf { uid, pid: None, administrator: true });
        assert_eq!(act(Uid::ROOT), act(Uid(u32::MAX)));
    }
}

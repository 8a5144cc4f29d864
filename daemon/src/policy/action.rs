//! What a request needs: a total function of the request, so that a new one does not compile before somebody
//! has decided.

use pfo_protocol::{LeaseTarget, Request, Uid};

/// What a caller wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Ask for a session, and with it for the lease of a GPU.
    OpenSession,
    /// See the daemon, the GPUs and its own jobs.
    SeeStatus,
    /// Change what a job runs, or measure it; none is a job of the caller's or, for an administrator, any.
    ChangeJob(Option<Uid>),
    /// End leases of a user's jobs, or lift their revocation.
    EndLeases(Option<Uid>),
    /// Ask what another user may lease.
    ExplainOthers,
    /// Have the configuration read again.
    Reload,
    /// Reset clocks.
    ResetClocks,
    /// Read everything that is seen of a job, of this user if that is named.
    Tap(Option<Uid>),
    /// Learn of every change of a job.
    WatchJobs,
    /// Act in the name of a user.
    ActForUsers,
}

impl Action {
    pub(crate) const fn in_words(self) -> &'static str {
        match self {
            Self::OpenSession => "lease GPUs",
            Self::SeeStatus => "see the status of pfo",
            Self::ChangeJob(_) => "change another user's job",
            Self::EndLeases(_) => "end another user's leases",
            Self::ExplainOthers => "ask what other users may lease",
            Self::Reload => "have the configuration read again",
            Self::ResetClocks => "reset clocks",
            Self::Tap(_) => "tap jobs",
            Self::WatchJobs => "watch jobs",
            Self::ActForUsers => "act in the name of users",
        }
    }
}

/// What a request needs.
pub(crate) fn needs(request: &Request) -> Action {
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
        | Request::PlanSwap { job, .. }
        | Request::Trial { job, .. }
        | Request::TrialsEnd { job, .. } => Action::ChangeJob(job.uid),
        Request::LeaseRevoke(LeaseTarget::Job(job))
        | Request::LeaseAllow(LeaseTarget::Job(job)) => Action::EndLeases(job.uid),
        Request::LeaseRevoke(LeaseTarget::Gpu(_)) | Request::LeaseAllow(LeaseTarget::Gpu(_)) => {
            Action::EndLeases(None)
        }
        Request::ClocksReset { .. } => Action::ResetClocks,
        Request::Reload => Action::Reload,
        Request::Tap { job, .. } => Action::Tap(job.uid),
        Request::WatchJobs => Action::WatchJobs,
        Request::OnBehalf { .. } => Action::ActForUsers,
    }
}

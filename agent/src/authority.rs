//! The one place that decides who may do what.
//!
//! A handler takes the [`Permit`] that the decision returned, and learns from nothing else who
//! asks: a request that was not decided cannot be served.

use std::collections::BTreeSet;

use pfo_protocol::{
    AgentRequest, BudgetScope, Gid, JobName, JobSelector, JobView, Pid, Refusal, RefusalCode,
    SweepOrder, TuneOrder, Uid,
};
use pfo_service::{Accounts, Door, Lookup, Peer, UnknownName, User};

use crate::config::Groups;
use crate::job::JobKey;
use crate::pfod::Asker;

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// To see the agent and one's own jobs, sweeps and profiles.
    Read,
    /// To see what this user's jobs have saved; none is whatever one may see.
    ReadSavings(Option<Uid>),
    /// To measure a job of this user; none is one's own.
    Measure(Option<Uid>),
    /// To change the plan of a job of this user; none is one's own.
    ChangePlan(Option<Uid>),
    /// To set what GPUs draw while they wait.
    SetP2pPower,
    /// To use the store of the fleet in order to see whether that works.
    CheckFleet,
    /// To set power budgets.
    SetBudget,
    /// To set the terms of this user's jobs under a budget; none is one's own.
    SetBudgetTerms(Option<Uid>),
}

/// What a request needs. Whether its user owns the job that it names is decided again by `pfod`.
pub(crate) fn needs(request: &AgentRequest) -> Action {
    match request {
        AgentRequest::Status
        | AgentRequest::Sweeps
        | AgentRequest::Profiles
        | AgentRequest::ProfileRead(_)
        | AgentRequest::Calibrations
        | AgentRequest::P2pPowers
        | AgentRequest::FleetStatus
        | AgentRequest::FirstPlans
        | AgentRequest::Tunes
        | AgentRequest::JobBegan(_)
        | AgentRequest::Budget => Action::Read,
        AgentRequest::Savings(query) => Action::ReadSavings(query.uid),
        AgentRequest::Record { job, .. }
        | AgentRequest::RecordingEnd { job, .. }
        | AgentRequest::Samples(job)
        | AgentRequest::SweepStart(SweepOrder { job, .. })
        | AgentRequest::SweepAttend(SweepOrder { job, .. })
        | AgentRequest::SweepControl { job, .. }
        | AgentRequest::SweepRead(job)
        | AgentRequest::Calibrate { job, .. }
        | AgentRequest::CalibrateMemory(job)
        | AgentRequest::OrderRead(job)
        | AgentRequest::FrontierRead(job)
        | AgentRequest::TuneWatch { job, .. }
        | AgentRequest::TuneRead(job)
        | AgentRequest::P2pKeep(job) => Action::Measure(job.uid),
        AgentRequest::FrontierLoad { job, .. }
        | AgentRequest::Straggler { job, .. }
        | AgentRequest::StragglerAuto { job, .. }
        | AgentRequest::Guard { job, .. }
        | AgentRequest::FirstPlanLoad { job, .. }
        | AgentRequest::FirstPlanDrop(job)
        | AgentRequest::TuneStart(TuneOrder { job, .. })
        | AgentRequest::TuneStop(job)
        | AgentRequest::FleetSwap { job, .. } => Action::ChangePlan(job.uid),
        AgentRequest::JobBegins { .. } => Action::ChangePlan(None),
        AgentRequest::P2pSet { .. } => Action::SetP2pPower,
        AgentRequest::FleetCheck => Action::CheckFleet,
        AgentRequest::BudgetSet(_)
        | AgentRequest::BudgetClear(_)
        | AgentRequest::BudgetDraft(_)
        | AgentRequest::BudgetSigned(_)
        | AgentRequest::BudgetPartition { .. } => Action::SetBudget,
        AgentRequest::BudgetTerms(terms) => needs_of_terms(&terms.scope),
    }
}

/// A job of which no owner is named is one's own.
fn needs_of_terms(scope: &BudgetScope) -> Action {
    match scope {
        BudgetScope::Node
        | BudgetScope::Fleet
        | BudgetScope::Partition(_)
        | BudgetScope::FleetPartition(_) => Action::SetBudget,
        BudgetScope::User(_)
        | BudgetScope::Job(_)
        | BudgetScope::FleetUser(_)
        | BudgetScope::FleetJob(_) => Action::SetBudgetTerms(scope.uid()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Nobody,
    User,
    Administrator,
}

/// That a peer may do what it asked for.
#[derive(Clone, Debug)]
pub(crate) struct Permit {
    user: User,
    pid: Pid,
    /// Whether it may see and use the jobs of every user.
    everyone: bool,
    /// Whether the process waits for what is done.
    waits: bool,
}

/// Who has which role on this node.
#[derive(Clone, Debug)]
pub(crate) struct Authority {
    names: Groups,
    trainers: Option<Gid>,
    administrators: Option<Gid>,
    unknown_names: Vec<UnknownName>,
}

impl Authority {
    /// Looks up the groups of a configuration. A group that does not exist has no members.
    pub(crate) fn new(names: &Groups, accounts: &impl Accounts) -> Self {
        let mut lookup = Lookup::new(accounts);
        Self {
            trainers: lookup.group(&names.trainers, "groups.trainers"),
            administrators: lookup.group(&names.administrators, "groups.administrators"),
            unknown_names: lookup.unknown_names,
            names: names.clone(),
        }
    }

    /// The configured names that this node does not have.
    pub(crate) fn unknown_names(&self) -> &[UnknownName] {
        &self.unknown_names
    }

    /// The groups of the users' socket and of the administrators' one.
    pub(crate) fn socket_groups(&self) -> (Option<Gid>, Option<Gid>) {
        (self.trainers, self.administrators)
    }

    fn role(&self, peer: &Peer, door: Door) -> Role {
        let is_in = |group: Option<Gid>| group.is_some_and(|gid| peer.groups.contains(&gid));
        let may_administer = peer.uid == Uid::ROOT || is_in(self.administrators);
        match door {
            Door::Admin if may_administer => Role::Administrator,
            _ if may_administer || is_in(self.trainers) => Role::User,
            _ => Role::Nobody,
        }
    }

    /// Whether a peer is in none of the groups; rules of `pfod` may let it in.
    pub(crate) fn is_stranger(&self, peer: &Peer) -> bool {
        self.role(peer, Door::Users) == Role::Nobody
    }

    /// Decides whether a peer may do something. `let_in` is a peer that rules of `pfod` let in.
    ///
    /// # Errors
    /// A refusal that names the peer, the action, and what it takes.
    pub(crate) fn decide(
        &self,
        peer: &Peer,
        door: Door,
        action: Action,
        let_in: bool,
    ) -> Result<Permit, Refusal> {
        let is_own = |owner: Option<Uid>| owner.is_none_or(|owner| owner == peer.uid);
        let (needed, what) = match action {
            Action::Read => (Role::User, "use the agent"),
            Action::ReadSavings(owner) if is_own(owner) => (Role::User, "see savings"),
            Action::ReadSavings(_) => (Role::Administrator, "see the savings of another user"),
            Action::Measure(owner) if is_own(owner) => (Role::User, "measure jobs"),
            Action::ChangePlan(owner) if is_own(owner) => (Role::User, "change plans"),
            Action::Measure(_) => (Role::Administrator, "measure another user's job"),
            Action::ChangePlan(_) => (Role::Administrator, "change the plan of another user's job"),
            Action::SetP2pPower => (Role::Administrator, "set P2P-blocking powers"),
            Action::CheckFleet => (Role::Administrator, "check the fleet"),
            Action::SetBudget => (Role::Administrator, "set power budgets"),
            Action::SetBudgetTerms(owner) if is_own(owner) => {
                (Role::User, "set how jobs count for a power budget")
            }
            Action::SetBudgetTerms(_) => {
                (Role::Administrator, "set how other users' jobs count for a power budget")
            }
        };
        let role = self.role(peer, door).max(if let_in { Role::User } else { Role::Nobody });
        if role >= needed {
            let everyone = role == Role::Administrator;
            return Ok(Permit { user: peer.user(), pid: peer.pid, everyone, waits: true });
        }
        Err(self.refuse(peer, what, needed))
    }

    fn refuse(&self, peer: &Peer, what: &str, needed: Role) -> Refusal {
        let (group, socket) = match needed {
            Role::Administrator => (&self.names.administrators, " and the administrators' socket"),
            Role::User | Role::Nobody => (&self.names.trainers, ""),
        };
        Refusal::new(
            RefusalCode::NotAuthorized,
            format!(
                "user {} may not {what}: that requires membership in group {group}{socket}",
                peer.uid
            ),
            format!(
                "ask an administrator for `usermod -aG {group} USER`; it counts from the next login or Slurm job on"
            ),
        )
    }
}

impl Permit {
    /// That of a user whose request an earlier agent decided and began to serve.
    pub(crate) fn resumed(user: User, pid: Pid, everyone: bool) -> Self {
        Self { user, pid, everyone, waits: false }
    }

    /// The same for what continues when the process is gone.
    pub(crate) fn in_background(self) -> Self {
        Self { waits: false, ..self }
    }

    /// The user that asks.
    pub(crate) fn uid(&self) -> Uid {
        self.user.uid
    }

    /// The user that asks, with the person that it counts as.
    pub(crate) fn user(&self) -> User {
        self.user
    }

    /// The process that asks.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether the peer asks as an administrator.
    pub(crate) fn administers(&self) -> bool {
        self.everyone
    }

    /// In whose name the agent acts for this peer.
    pub(crate) fn asker(&self) -> Asker {
        let pid = self.waits.then_some(self.pid);
        Asker { uid: self.uid(), pid, administrator: self.everyone }
    }

    /// The only user whose jobs, sweeps and profiles the peer may see; none means everybody's.
    pub(crate) fn only_of(&self) -> Option<Uid> {
        (!self.everyone).then_some(self.uid())
    }

    /// The job that a request means: the peer's own or, for an administrator, the only one of that
    /// name. One that runs goes before one without ranks.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub(crate) fn select(
        &self,
        selector: &JobSelector,
        jobs: Vec<JobView>,
    ) -> Result<JobView, Refusal> {
        let JobSelector { job: name, uid } = selector;
        let owner = uid.unwrap_or(self.uid());
        let mut named: Vec<_> = jobs
            .into_iter()
            .filter(|job| job.job == *name && self.only_of().is_none_or(|own| own == job.uid))
            .collect();
        if uid.is_none() && named.iter().any(runs) {
            named.retain(runs);
        }
        if let Some(place) = named.iter().position(|job| job.uid == owner) {
            return Ok(named.swap_remove(place));
        }
        match (&named[..], uid) {
            ([_], None) => Ok(named.swap_remove(0)),
            ([one, other, ..], None) => Err(several(name, one.uid, other.uid)),
            (_, None) if self.everyone => Err(unknown(&format!("nobody has a job {name}"))),
            _ => Err(unknown(&format!("user {owner} has no job {name}"))),
        }
    }

    /// The job that a request means which need not be there: the peer's own unless, for an administrator,
    /// somebody else's of that name is what `there` has.
    ///
    /// # Errors
    /// If several others' are there.
    pub(crate) fn select_key(
        &self,
        JobSelector { job: name, uid }: JobSelector,
        there: impl IntoIterator<Item = JobKey>,
    ) -> Result<JobKey, Refusal> {
        let own = JobKey { uid: uid.unwrap_or(self.uid()), name: name.clone() };
        let is_visible = |key: &JobKey| self.only_of().is_none_or(|own| own == key.uid);
        let named: BTreeSet<_> =
            there.into_iter().filter(|key| key.name == name && is_visible(key)).collect();
        if uid.is_some() || named.contains(&own) {
            return Ok(own);
        }
        let mut others = named.into_iter();
        match (others.next(), others.next()) {
            (Some(one), Some(other)) => Err(several(&name, one.uid, other.uid)),
            (only, _) => Ok(only.unwrap_or(own)),
        }
    }
}

/// Whether a job has ranks on this node.
fn runs(job: &JobView) -> bool {
    !job.ranks.is_empty()
}

fn several(name: &JobName, one: Uid, other: Uid) -> Refusal {
    let message = format!("several users have a job {name}, among them {one} and {other}");
    Refusal::new(RefusalCode::UnknownJob, message, "say whose with --user")
}

fn unknown(what: &str) -> Refusal {
    let message = format!("{what} on this node");
    Refusal::new(RefusalCode::UnknownJob, message, "`pfoctl status` lists the jobs")
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;
    use crate::straggler::tests::job as example_job;

    struct Groups7And9;

    impl Accounts for Groups7And9 {
        fn user(&self, _: &str) -> Result<Option<Uid>, Errno> {
            Ok(None)
        }

        fn groups_of(&self, _: Uid) -> Result<Vec<Gid>, Errno> {
            Ok(Vec::new())
        }

        fn group(&self, name: &str) -> Result<Option<Gid>, Errno> {
            Ok(match name {
                "pfo" => Some(Gid(7)),
                "pfo-admin" => Some(Gid(9)),
                _ => None,
            })
        }
    }

    fn decide(uid: u32, group: u32, door: Door, action: Action) -> Result<Permit, Refusal> {
        decide_let_in(uid, group, door, action, false)
    }

    fn decide_let_in(
        uid: u32,
        group: u32,
        door: Door,
        action: Action,
        let_in: bool,
    ) -> Result<Permit, Refusal> {
        let peer = Peer {
            uid: Uid(uid),
            person: Uid(uid),
            pid: Pid(1),
            groups: vec![Gid(group)],
            cgroups: Vec::new(),
        };
        Authority::new(&Groups::default(), &Groups7And9).decide(&peer, door, action, let_in)
    }

    const FOREIGN: [Action; 7] = [
        Action::SetBudget,
        Action::SetBudgetTerms(Some(Uid(1))),
        Action::ReadSavings(Some(Uid(1))),
        Action::Measure(Some(Uid(1))),
        Action::ChangePlan(Some(Uid(1))),
        Action::SetP2pPower,
        Action::CheckFleet,
    ];

    #[test]
    fn the_terms_of_a_partition_are_no_users_own() {
        let name = || "p".parse().unwrap();
        for scope in [BudgetScope::Partition(name()), BudgetScope::FleetPartition(name())] {
            assert_eq!(needs_of_terms(&scope), Action::SetBudget);
        }
        let job = JobSelector { job: "j".parse().unwrap(), uid: None };
        assert_eq!(needs_of_terms(&BudgetScope::Job(job)), Action::SetBudgetTerms(None));
    }

    #[test]
    fn a_tune_needs_what_a_change_of_the_jobs_plan_needs_and_to_watch_it_what_a_sweep_does() {
        let uid = Some(Uid(5));
        let job = JobSelector { job: "j".parse().unwrap(), uid };
        let (terms, profile, order) = (Vec::new(), None, None);
        let start = AgentRequest::TuneStart(TuneOrder { job: job.clone(), terms, profile, order });
        for request in [start, AgentRequest::TuneStop(job.clone())] {
            assert_eq!(needs(&request), Action::ChangePlan(uid));
        }
        let watch = AgentRequest::TuneWatch { job: job.clone(), seen: 0 };
        for request in [watch, AgentRequest::TuneRead(job)] {
            assert_eq!(needs(&request), Action::Measure(uid));
        }
        assert_eq!(needs(&AgentRequest::Tunes), Action::Read);
    }

    #[test]
    fn only_the_administrators_door_lets_anybody_administer() {
        for (uid, group) in [(0, 0), (5, 9)] {
            for action in FOREIGN {
                assert!(decide(uid, group, Door::Admin, action).is_ok());
                let refusal = decide(uid, group, Door::Users, action).unwrap_err();
                assert!(refusal.message.contains("administrators' socket"), "{refusal}");
            }
            assert!(decide(uid, group, Door::Users, Action::Read).unwrap().only_of().is_some());
            assert!(decide(uid, group, Door::Admin, Action::Read).unwrap().only_of().is_none());
        }
    }

    #[test]
    fn a_trainer_uses_its_own_jobs_and_nobody_elses_through_any_door() {
        for door in [Door::Users, Door::Admin] {
            for owner in [None, Some(Uid(5))] {
                assert!(decide(5, 7, door, Action::Measure(owner)).is_ok());
                assert!(decide(5, 7, door, Action::ChangePlan(owner)).is_ok());
                assert!(decide(5, 7, door, Action::ReadSavings(owner)).is_ok());
            }
            assert!(FOREIGN.iter().all(|action| decide(5, 7, door, *action).is_err()));
            assert!(decide(5, 8, door, Action::Read).is_err(), "not a trainer");
        }
    }

    #[test]
    fn a_stranger_whom_pfod_lets_in_is_a_trainer_and_no_more() {
        for door in [Door::Users, Door::Admin] {
            let decide = |action| decide_let_in(5, 8, door, action, true);
            assert!(decide(Action::Read).unwrap().only_of().is_some());
            assert!(decide(Action::Measure(None)).is_ok());
            assert!(FOREIGN.iter().all(|action| decide(*action).is_err()));
        }
    }

    #[test]
    fn a_user_never_selects_the_job_of_another() {
        let job = |uid| JobView { uid: Uid(uid), ..example_job(1) };
        let select = |permit: &Permit, uid, jobs| {
            let selector = JobSelector { job: job(1).job, uid };
            permit.select(&selector, jobs).map(|job| job.uid)
        };
        let user = decide(5, 7, Door::Users, Action::Read).unwrap();
        assert_eq!(select(&user, None, vec![job(1), job(5)]), Ok(Uid(5)));
        assert!(select(&user, None, vec![job(1)]).is_err());
        assert!(select(&user, Some(Uid(1)), vec![job(1)]).is_err());
        let administrator = decide(0, 0, Door::Admin, Action::Read).unwrap();
        assert_eq!(select(&administrator, None, vec![job(1)]), Ok(Uid(1)));
        let refusal = select(&administrator, None, vec![job(1), job(5)]).unwrap_err();
        assert!(refusal.message.contains("several users"), "{refusal}");
        assert!(select(&administrator, Some(Uid(3)), vec![job(1), job(5)]).is_err());
    }

    #[test]
    fn the_name_alone_means_the_job_that_runs() {
        let permit = decide(0, 0, Door::Admin, Action::Read).unwrap();
        let job = |uid| JobView { uid: Uid(uid), ..example_job(1) };
        let waiting = |uid| JobView { ranks: Vec::new(), ..job(uid) };
        let select = |uid, jobs| {
            let selector = JobSelector { job: job(1).job, uid };
            permit.select(&selector, jobs).map(|job| job.uid).map_err(|refusal| refusal.message)
        };
        assert_eq!(select(None, vec![waiting(0), job(1), waiting(2)]), Ok(Uid(1)));
        assert_eq!(select(Some(Uid(0)), vec![waiting(0), job(1)]), Ok(Uid(0)));
        assert_eq!(select(None, vec![job(0), job(1)]), Ok(Uid(0)), "one's own");
        assert_eq!(select(None, vec![waiting(0)]), Ok(Uid(0)));
        let several = "several users have a job team/j, among them 1 and 2";
        assert_eq!(select(None, vec![waiting(0), job(1), job(2)]), Err(several.into()));
    }

    #[test]
    fn what_need_not_be_there_is_ones_own_unless_only_anothers_is_there() {
        let administrator = decide(0, 0, Door::Admin, Action::Read).unwrap();
        let user = decide(5, 7, Door::Users, Action::Read).unwrap();
        let name = example_job(1).job;
        let key = |uid| JobKey { uid: Uid(uid), name: name.clone() };
        let select = |permit: &Permit, uid, there: &[u32]| {
            let selector = JobSelector { job: name.clone(), uid };
            permit.select_key(selector, there.iter().map(|uid| key(*uid))).map(|key| key.uid)
        };
        assert_eq!(select(&administrator, None, &[]), Ok(Uid(0)));
        assert_eq!(select(&administrator, None, &[1]), Ok(Uid(1)));
        assert_eq!(select(&administrator, None, &[1, 0, 2]), Ok(Uid(0)));
        assert_eq!(select(&administrator, Some(Uid(2)), &[1]), Ok(Uid(2)));
        assert!(select(&administrator, None, &[1, 2]).is_err());
        assert_eq!(select(&user, None, &[1, 2]), Ok(Uid(5)), "of others it learns nothing");
    }
}

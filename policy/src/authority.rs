//! The one place that decides who may do what.

use std::fmt;
use std::os::fd::AsFd;

use pfo_keeper::GpuFacts;
use pfo_protocol::{Gid, Pid, Refusal, RefusalCode, Uid};
use pfo_service::{Accounts, Door, Lookup, Peer, UnknownName, User};

use crate::action::Action;
use crate::config::{Config, Groups};
use crate::permit::Permit;
use crate::rules::{Place, Policy, Subject, Verdict};
use crate::terms::Terms;

/// The party that makes a request: the peer of a connection, or the user that the agent acts for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user and its groups. If the agent acts on behalf of a user, the groups come from the
    /// accounts of the node.
    pub peer: Peer,
    /// The socket that the request came through.
    pub door: Door,
    /// The capacity in which the user asks through the agent; `None` if not through the agent, or
    /// if it is the agent itself.
    pub on_behalf: Option<Claim>,
    /// Whether the process waits for the answer; a sweep continues without one.
    pub is_waiting: bool,
    /// The agent's process, as the kernel names it, if the request came through that.
    pub agent: Option<Pid>,
}

impl Caller {
    /// The peer of a connection.
    #[must_use]
    pub fn new(peer: Peer, door: Door) -> Self {
        let agent = (door == Door::Agent).then_some(peer.pid);
        Self { peer, door, on_behalf: None, is_waiting: true, agent }
    }

    /// A user on whose behalf this caller, the agent, makes requests from now on.
    pub fn on_behalf(
        &self,
        User { uid, person }: User,
        pid: Option<Pid>,
        groups: Vec<Gid>,
        claim: Claim,
    ) -> Self {
        let pid_to_show = pid.unwrap_or(self.peer.pid);
        let peer = Peer { uid, person, pid: pid_to_show, groups, cgroups: Vec::new() };
        Self { peer, on_behalf: Some(claim), is_waiting: pid.is_some(), ..self.clone() }
    }
}

/// Names the party as the journal does: what comes through the agent is written as that.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.peer.user();
        let Some(agent) = self.agent else { return user.fmt(f) };
        write!(f, "pfo-agent (process {agent})")?;
        match self.on_behalf {
            None => Ok(()),
            Some(_) if self.is_waiting => write!(f, " for {user}"),
            Some(_) => write!(f, ", by itself, for {user}"),
        }
    }
}

/// The capacity in which a user asks through the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// As the owner of its jobs.
    User,
    /// As an administrator, which the accounts of the node must confirm.
    Administrator,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Nobody,
    Trainer,
    Administrator,
}

/// The users and groups that have each role on this node.
#[derive(Clone, Debug)]
pub struct Authority {
    names: Groups,
    trainers: Option<Gid>,
    administrators: Option<Gid>,
    agent: Option<Gid>,
    policy: Policy,
    unknown_names: Vec<UnknownName>,
}

/// The groups that may open the sockets.
#[derive(Clone, Copy, Debug)]
pub struct SocketGroups {
    /// The trainers' socket.
    pub trainers: Option<Gid>,
    /// The socket for administration.
    pub admin: Option<Gid>,
    /// The agent's socket.
    pub agent: Option<Gid>,
}

impl Authority {
    /// Looks up the accounts behind the names of a configuration. A name without an account grants
    /// nothing.
    #[must_use]
    pub fn new(config: &Config, node: &str, accounts: &impl Accounts) -> Self {
        let names = config.groups.clone();
        let mut lookup = Lookup::new(accounts);
        Self {
            trainers: lookup.group(&names.trainers, "groups.trainers"),
            administrators: lookup.group(&names.administrators, "groups.administrators"),
            // A node without an agent needs no such group.
            agent: accounts.group(&names.agent).ok().flatten(),
            policy: Policy::new(config, node, &mut lookup),
            unknown_names: lookup.unknown_names,
            names,
        }
    }

    /// The names that no account has.
    #[must_use]
    pub fn unknown_names(&self) -> &[UnknownName] {
        &self.unknown_names
    }

    /// The groups that may open the sockets.
    #[must_use]
    pub fn socket_groups(&self) -> SocketGroups {
        let Self { trainers, administrators: admin, agent, .. } = *self;
        SocketGroups { trainers, admin, agent }
    }

    fn role(&self, caller: &Caller) -> Role {
        let Caller { peer, door, on_behalf, .. } = caller;
        let administrator = peer.uid == Uid::ROOT || is_in(peer, self.administrators);
        match door {
            Door::Admin if administrator => Role::Administrator,
            Door::Agent => match on_behalf {
                Some(Claim::Administrator) if administrator => Role::Administrator,
                Some(_) => Role::Trainer,
                None => Role::Nobody,
            },
            Door::Users | Door::Admin if self.is_trainer(peer) => Role::Trainer,
            Door::Users | Door::Admin => Role::Nobody,
        }
    }

    fn is_trainer(&self, peer: &Peer) -> bool {
        self.subject(peer).member || self.policy.lets_in(self.subject(peer))
    }

    fn subject<'p>(&self, peer: &'p Peer) -> Subject<'p> {
        let member =
            peer.uid == Uid::ROOT || is_in(peer, self.trainers) || is_in(peer, self.administrators);
        Subject { uid: peer.uid, groups: &peer.groups, member, cgroups: &peer.cgroups }
    }

    /// A peer with all that the rules ask for.
    #[must_use]
    pub fn identify(&self, peer: Peer, socket: &impl AsFd) -> Peer {
        if self.policy.is_about_cgroups() { peer.with_cgroups(socket) } else { peer }
    }

    /// Whether a peer may lease a GPU, on which terms, and what decided.
    #[must_use]
    pub fn verdict(&self, peer: &Peer, gpu: &GpuFacts) -> Verdict {
        self.policy.decide(self.subject(peer), gpu)
    }

    /// The terms on which a peer may lease a GPU, and what decided them.
    ///
    /// # Errors
    /// A refusal that names the peer, the GPU and what decided.
    pub fn lease(&self, peer: &Peer, gpu: &GpuFacts) -> Result<(Terms, Place), Refusal> {
        let Verdict { place, terms } = self.verdict(peer, gpu);
        match terms {
            Some(terms) => Ok((terms, place)),
            None if place == Place::Nothing => Err(self.not_a_trainer(peer, Action::OpenSession)),
            None => {
                let (uid, uuid, model) = (peer.uid, &gpu.uuid, &gpu.model);
                let message =
                    format!("user {uid} may not lease GPU {uuid} ({model}): {place} denies it");
                let remedy = "`pfoctl policy explain` shows which GPUs you may lease";
                Err(Refusal::new(RefusalCode::NotAuthorized, message, remedy))
            }
        }
    }

    /// Decides whether a caller may do something.
    ///
    /// # Errors
    /// A refusal that names the caller, the action and who may.
    pub fn permit(&self, caller: &Caller, action: Action) -> Result<Permit, Refusal> {
        if caller.door == Door::Agent && caller.on_behalf.is_none() {
            return Self::permit_agent(caller, action);
        }
        let own = |owner: Option<Uid>| owner.is_none_or(|owner| owner == caller.peer.uid);
        let needed = match action {
            Action::OpenSession | Action::SeeStatus => Role::Trainer,
            Action::ChangeJob(owner) | Action::EndLeases(owner) | Action::Tap(owner)
                if own(owner) =>
            {
                Role::Trainer
            }
            Action::ChangeJob(_)
            | Action::EndLeases(_)
            | Action::Tap(_)
            | Action::ExplainOthers
            | Action::Reload
            | Action::Maintain
            | Action::GrantGpus
            | Action::ResetClocks => Role::Administrator,
            Action::WatchJobs | Action::Calibrate | Action::CapPower | Action::ActForUsers => {
                return Err(only_the_agent(caller, action));
            }
        };
        match (caller.door, action) {
            // The agent changes and measures jobs, and nothing else, for any user it acts for.
            (Door::Agent, Action::SeeStatus | Action::ChangeJob(_) | Action::Tap(_)) => {}
            (Door::Agent, _) => return Err(not_for_the_agent(action)),
            (_, Action::Tap(_)) => return Err(only_the_agent(caller, action)),
            _ => {}
        }
        let role = self.role(caller);
        if role >= needed {
            return Ok(Permit::new(caller.clone(), role == Role::Administrator));
        }
        Err(match needed {
            Role::Administrator => self.not_an_administrator(caller, action),
            Role::Trainer | Role::Nobody => self.not_a_trainer(&caller.peer, action),
        })
    }

    /// What the agent may do on its own: read everything, say what it has measured of GPUs, and
    /// keep what they draw below a budget.
    fn permit_agent(caller: &Caller, action: Action) -> Result<Permit, Refusal> {
        match action {
            Action::SeeStatus
            | Action::Tap(_)
            | Action::WatchJobs
            | Action::Calibrate
            | Action::CapPower
            | Action::ActForUsers => Ok(Permit::new(caller.clone(), true)),
            _ => Err(not_for_the_agent(action)),
        }
    }

    fn not_a_trainer(&self, peer: &Peer, action: Action) -> Refusal {
        let group = &self.names.trainers;
        Refusal::new(
            RefusalCode::NotAuthorized,
            format!("user {} may not {}: that requires group {group}", peer.uid, action.in_words()),
            format!(
                "ask an administrator for `usermod -aG {group} USER`; it counts from the next login or Slurm job on"
            ),
        )
    }

    fn not_an_administrator(&self, caller: &Caller, action: Action) -> Refusal {
        let (uid, group) = (caller.peer.uid, &self.names.administrators);
        let is_one = uid == Uid::ROOT || is_in(&caller.peer, self.administrators);
        let (message, remedy) = if is_one {
            let message = format!("no user may {} through this socket", action.in_words());
            (message, "use the socket for administration, /run/pfo/admin.sock".to_owned())
        } else {
            let action = action.in_words();
            let message = format!("user {uid} may not {action}: that requires group {group}");
            (message, "ask an administrator".to_owned())
        };
        Refusal::new(RefusalCode::NotAuthorized, message, remedy)
    }
}

fn is_in(peer: &Peer, group: Option<Gid>) -> bool {
    group.is_some_and(|gid| peer.groups.contains(&gid))
}

fn only_the_agent(caller: &Caller, action: Action) -> Refusal {
    let message =
        format!("user {} may not {}: only pfo-agent may", caller.peer.uid, action.in_words());
    Refusal::new(RefusalCode::NotAuthorized, message, "use pfoctl")
}

fn not_for_the_agent(action: Action) -> Refusal {
    let message = format!("pfo-agent may not {}", action.in_words());
    Refusal::new(RefusalCode::NotAuthorized, message, "use pfoctl with the socket of pfod")
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use pfo_keeper::example_gpu;

    use super::*;

    /// Groups pfo and pfo-admin, and no users.
    struct Usual;

    impl Accounts for Usual {
        fn user(&self, _: &str) -> Result<Option<Uid>, Errno> {
            Ok(None)
        }

        fn group(&self, name: &str) -> Result<Option<Gid>, Errno> {
            let known = [("pfo", 50), ("pfo-admin", 51)];
            Ok(known.into_iter().find(|(known, _)| *known == name).map(|(_, gid)| Gid(gid)))
        }

        fn groups_of(&self, _: Uid) -> Result<Vec<Gid>, Errno> {
            Ok(Vec::new())
        }
    }

    fn authority_with(rules: &str) -> Authority {
        Authority::new(&Config::parse(rules, "pfod.toml".as_ref()).unwrap(), "node", &Usual)
    }

    fn peer(uid: u32, groups: &[u32]) -> Peer {
        let groups = groups.iter().copied().map(Gid).collect();
        Peer { uid: Uid(uid), person: Uid(uid), pid: Pid(1), groups, cgroups: Vec::new() }
    }

    fn for_user(uid: u32, groups: &[u32], claim: Claim) -> Caller {
        Caller { on_behalf: Some(claim), ..Caller::new(peer(uid, groups), Door::Agent) }
    }

    /// What a caller may do, a letter for each action.
    fn may(caller: &Caller) -> String {
        let own = Some(caller.peer.uid);
        let foreign = Some(Uid(caller.peer.uid.0 + 1));
        let actions = [
            ('l', Action::OpenSession),
            ('s', Action::SeeStatus),
            ('c', Action::ChangeJob(own)),
            ('C', Action::ChangeJob(foreign)),
            ('e', Action::EndLeases(own)),
            ('E', Action::EndLeases(foreign)),
            ('x', Action::ExplainOthers),
            ('r', Action::Reload),
            ('m', Action::Maintain),
            ('R', Action::ResetClocks),
            ('t', Action::Tap(own)),
            ('T', Action::Tap(foreign)),
            ('w', Action::WatchJobs),
            ('k', Action::Calibrate),
            ('p', Action::CapPower),
            ('u', Action::ActForUsers),
        ];
        let authority = authority_with("");
        let allowed = |(_, action): &(char, Action)| authority.permit(caller, *action).is_ok();
        actions.into_iter().filter(allowed).map(|(letter, _)| letter).collect()
    }

    #[test]
    fn everybody_may_do_exactly_what_the_table_of_the_design_says() {
        let rows = [
            (Caller::new(peer(1000, &[1000]), Door::Users), ""),
            (Caller::new(peer(1000, &[50]), Door::Users), "lsce"),
            (Caller::new(peer(1000, &[51]), Door::Users), "lsce"),
            (Caller::new(peer(0, &[0]), Door::Users), "lsce"),
            (Caller::new(peer(1000, &[50]), Door::Admin), "lsce"),
            (Caller::new(peer(1000, &[51]), Door::Admin), "lscCeExrmR"),
            (Caller::new(peer(0, &[0]), Door::Admin), "lscCeExrmR"),
            (Caller::new(peer(0, &[0]), Door::Agent), "stTwkpu"),
            (Caller::new(peer(998, &[998]), Door::Agent), "stTwkpu"),
            (for_user(1000, &[1000], Claim::User), "sct"),
            (for_user(1000, &[51], Claim::User), "sct"),
            (for_user(0, &[0], Claim::User), "sct"),
            (for_user(1000, &[50], Claim::Administrator), "sct"),
            (for_user(1000, &[51], Claim::Administrator), "scCtT"),
            (for_user(0, &[0], Claim::Administrator), "scCtT"),
        ];
        for (caller, expected) in rows {
            assert_eq!(may(&caller), expected, "{caller:?}");
        }
    }

    #[test]
    fn a_group_that_does_not_exist_has_no_members() {
        let authority =
            authority_with("[groups]\ntrainers = 'no-such-a'\nadministrators = 'no-such-b'");
        assert_eq!(authority.unknown_names().len(), 2);
        let user = Caller::new(peer(1000, &[1000]), Door::Users);
        assert!(authority.permit(&user, Action::SeeStatus).is_err());
        let root = Caller::new(peer(0, &[0]), Door::Admin);
        assert!(authority.permit(&root, Action::ResetClocks).is_ok());
    }

    #[test]
    fn a_refusal_names_the_user_the_group_and_the_remedy() {
        let refusal = authority_with("").lease(&peer(1000, &[1000]), &example_gpu()).unwrap_err();
        let text = refusal.to_string();
        assert!(text.contains("user 1000 may not lease GPUs: that requires group pfo"), "{text}");
        assert!(text.contains("usermod -aG pfo USER"), "{text}");
        let root = Caller::new(peer(0, &[0]), Door::Users);
        let text = authority_with("").permit(&root, Action::Reload).unwrap_err().to_string();
        assert!(text.contains("/run/pfo/admin.sock"), "{text}");
    }

    #[test]
    fn a_rule_that_denies_a_gpu_is_named_in_the_refusal_even_to_root() {
        let authority = authority_with("[[rule]]\ngpus = ['A100']\nallow = false");
        for peer in [peer(1000, &[50]), peer(1000, &[51]), peer(0, &[0])] {
            let refusal = authority.lease(&peer, &example_gpu()).unwrap_err();
            let by = "may not lease GPU GPU-1 (A100): pfod.toml, line 1 denies it";
            assert_eq!(refusal.message, format!("user {} {by}", peer.uid));
        }
    }

    #[test]
    fn a_user_that_a_rule_lets_in_may_see_and_change_its_own_jobs_only() {
        let authority = authority_with("[[rule]]\nusers = [1000]\ngpus = ['H100']");
        let guest = Caller::new(peer(1000, &[1000]), Door::Users);
        assert!(authority.permit(&guest, Action::SeeStatus).is_ok());
        assert!(authority.permit(&guest, Action::ChangeJob(Some(Uid(1000)))).is_ok());
        assert!(authority.permit(&guest, Action::ChangeJob(Some(Uid(1001)))).is_err());
        assert!(authority.permit(&guest, Action::ResetClocks).is_err());
        assert!(authority.lease(&guest.peer, &example_gpu()).is_err());
    }
}

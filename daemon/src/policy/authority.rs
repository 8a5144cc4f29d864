//! The one place that decides who may do what.

use pfo_protocol::{Refusal, RefusalCode};

use crate::accounts::{Accounts, Lookup, UnknownName};
use crate::config::{Config, Groups};
use crate::gpu::GpuFacts;
use crate::peer::Peer;
use crate::policy::{Place, Policy, Subject, Verdict};
use crate::terms::Terms;

/// What a peer wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// See the daemon, the GPUs and its own jobs.
    Status,
    /// Load or swap the plan of a job of this user.
    ChangePlan {
        /// Whose job.
        owner: u32,
    },
    /// Measure a job of this user.
    Measure {
        /// Whose job.
        owner: u32,
    },
    /// End a lease of a job of this user.
    EndLease {
        /// Whose job.
        owner: u32,
    },
    /// Say what GPUs draw while they wait.
    SetP2pPower,
    /// See or change the jobs of every user.
    EveryJob,
    /// Ask what another user may lease.
    ExplainOthers,
    /// Have the configuration read again.
    Reload,
    /// Reset clocks.
    ResetClocks,
}

impl Action {
    const fn in_words(self) -> &'static str {
        match self {
            Self::Status => "see the status of pfo",
            Self::ChangePlan { .. } => "change the plan of another user's job",
            Self::Measure { .. } => "measure another user's job",
            Self::EndLease { .. } => "end another user's lease",
            Self::SetP2pPower => "set P2P-blocking powers",
            Self::EveryJob => "see or change other users' jobs",
            Self::ExplainOthers => "ask what other users may lease",
            Self::Reload => "have the configuration read again",
            Self::ResetClocks => "reset clocks",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Nobody,
    Trainer,
    Administrator,
}

/// Who has which role on this node.
#[derive(Clone, Debug)]
pub struct Authority {
    names: Groups,
    trainers: Option<u32>,
    administrators: Option<u32>,
    policy: Policy,
    unknown_names: Vec<UnknownName>,
}

impl Authority {
    /// Looks up who is behind the names of a configuration. One that does not exist means nobody.
    #[must_use]
    pub fn new(config: &Config, node: &str, accounts: &impl Accounts) -> Self {
        let names = config.groups.clone();
        let mut lookup = Lookup::new(accounts);
        Self {
            trainers: lookup.group(&names.trainers, "groups.trainers"),
            administrators: lookup.group(&names.administrators, "groups.administrators"),
            policy: Policy::new(config, node, &mut lookup),
            unknown_names: lookup.unknown_names,
            names,
        }
    }

    /// The names that lead to nobody.
    #[must_use]
    pub fn unknown_names(&self) -> &[UnknownName] {
        &self.unknown_names
    }

    /// The group that may use the trainers' socket and the one that may use the admin socket.
    #[must_use]
    pub fn socket_groups(&self) -> (Option<u32>, Option<u32>) {
        (self.trainers, self.administrators)
    }

    fn role(&self, peer: &Peer) -> Role {
        if peer.uid == 0 || is_in(peer, self.administrators) {
            Role::Administrator
        } else if is_in(peer, self.trainers) || self.policy.lets_in(self.subject(peer)) {
            Role::Trainer
        } else {
            Role::Nobody
        }
    }

    fn subject<'p>(&self, peer: &'p Peer) -> Subject<'p> {
        let member =
            peer.uid == 0 || is_in(peer, self.trainers) || is_in(peer, self.administrators);
        Subject { uid: peer.uid, groups: &peer.groups, member }
    }

    /// Whether a peer may lease a GPU, on which terms, and what decided.
    #[must_use]
    pub fn verdict(&self, peer: &Peer, gpu: &GpuFacts) -> Verdict<'_> {
        self.policy.decide(self.subject(peer), gpu)
    }

    /// The terms on which a peer may lease a GPU, and what decided them.
    ///
    /// # Errors
    /// A refusal that names the peer, the GPU and what decided.
    pub fn lease(&self, peer: &Peer, gpu: &GpuFacts) -> Result<(Terms, Place), Refusal> {
        let Verdict { place, terms } = self.verdict(peer, gpu);
        match terms {
            Some(terms) => Ok((terms.clone(), place)),
            None if place == Place::Nothing => {
                Err(not_a_member(peer, "run jobs with pfo", &self.names.trainers))
            }
            None => Err(Refusal::new(
                RefusalCode::NotAuthorized,
                format!(
                    "user {} may not lease GPU {} ({}): {place} says so",
                    peer.uid, gpu.uuid, gpu.model
                ),
                "`pfoctl policy explain` shows which GPUs you may lease",
            )),
        }
    }

    /// Says whether a peer may do something.
    ///
    /// # Errors
    /// A refusal that names the peer, the action and the group that may.
    pub fn authorize(&self, peer: &Peer, action: Action) -> Result<(), Refusal> {
        let needed = match action {
            Action::Status => Role::Trainer,
            Action::ChangePlan { owner }
            | Action::Measure { owner }
            | Action::EndLease { owner }
                if owner == peer.uid =>
            {
                Role::Trainer
            }
            Action::ChangePlan { .. }
            | Action::Measure { .. }
            | Action::EndLease { .. }
            | Action::SetP2pPower
            | Action::EveryJob
            | Action::ExplainOthers
            | Action::Reload
            | Action::ResetClocks => Role::Administrator,
        };
        if self.role(peer) >= needed {
            return Ok(());
        }
        let group = match needed {
            Role::Administrator => &self.names.administrators,
            Role::Trainer | Role::Nobody => &self.names.trainers,
        };
        Err(not_a_member(peer, action.in_words(), group))
    }
}

fn is_in(peer: &Peer, group: Option<u32>) -> bool {
    group.is_some_and(|gid| peer.groups.contains(&gid))
}

fn not_a_member(peer: &Peer, action: &str, group: &str) -> Refusal {
    Refusal::new(
        RefusalCode::NotAuthorized,
        format!("user {} may not {action}: that takes membership in group {group}", peer.uid),
        format!("ask an administrator for `usermod -aG {group} USER`, then log in again"),
    )
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;
    use crate::gpu;

    /// Groups pfo and pfo-admin, and no users.
    struct Usual;

    impl Accounts for Usual {
        fn user(&self, _: &str) -> Result<Option<u32>, Errno> {
            Ok(None)
        }

        fn group(&self, name: &str) -> Result<Option<u32>, Errno> {
            let known = [("pfo", 50), ("pfo-admin", 51)];
            Ok(known.into_iter().find(|(known, _)| *known == name).map(|(_, gid)| gid))
        }
    }

    fn authority_with(rules: &str) -> Authority {
        Authority::new(&Config::parse(rules, "pfod.toml".as_ref()).unwrap(), "node", &Usual)
    }

    fn authority() -> Authority {
        authority_with("")
    }

    fn peer(uid: u32, groups: &[u32]) -> Peer {
        Peer { uid, pid: 1, groups: groups.to_vec() }
    }

    #[test]
    fn everybody_may_do_exactly_what_the_table_of_the_design_says() {
        let own = |peer: &Peer| Action::ChangePlan { owner: peer.uid };
        let foreign = |peer: &Peer| Action::ChangePlan { owner: peer.uid + 1 };
        let measure = |owner| Action::Measure { owner };
        let rows: [(Peer, [bool; 8]); 4] = [
            (peer(1000, &[1000]), [false; 8]),
            (peer(1000, &[1000, 50]), [true, true, true, false, true, false, false, false]),
            (peer(1000, &[1000, 51]), [true; 8]),
            (peer(0, &[0]), [true; 8]),
        ];
        for (peer, may) in rows {
            let actions = [
                Action::Status,
                own(&peer),
                foreign(&peer),
                measure(peer.uid),
                measure(peer.uid + 1),
                Action::EveryJob,
                Action::ResetClocks,
            ];
            for (action, may) in actions.into_iter().zip(&may[1..]) {
                let decision = authority().authorize(&peer, action);
                assert_eq!(decision.is_ok(), *may, "{peer:?} {action:?}");
            }
            assert_eq!(authority().lease(&peer, &gpu::example()).is_ok(), may[0], "{peer:?}");
        }
    }

    #[test]
    fn a_group_that_does_not_exist_has_no_members() {
        let authority =
            authority_with("[groups]\ntrainers = 'no-such-a'\nadministrators = 'no-such-b'");
        assert_eq!(authority.unknown_names().len(), 2);
        assert!(authority.authorize(&peer(1000, &[1000]), Action::Status).is_err());
        assert!(authority.authorize(&peer(0, &[0]), Action::ResetClocks).is_ok());
    }

    #[test]
    fn a_refusal_names_the_user_the_group_and_the_remedy() {
        let refusal = authority().lease(&peer(1000, &[1000]), &gpu::example()).unwrap_err();
        let text = refusal.to_string();
        assert!(text.contains("user 1000 may not run jobs with pfo"), "{text}");
        assert!(text.contains("usermod -aG pfo USER"), "{text}");
    }

    #[test]
    fn a_rule_that_denies_a_gpu_is_named_to_whoever_wanted_it_even_to_root() {
        let authority = authority_with("[[rule]]\ngpus = ['A100']\nallow = false");
        for peer in [peer(1000, &[50]), peer(1000, &[51]), peer(0, &[0])] {
            let refusal = authority.lease(&peer, &gpu::example()).unwrap_err();
            assert_eq!(
                refusal.message,
                format!(
                    "user {} may not lease GPU GPU-1 (A100): pfod.toml, line 1 says so",
                    peer.uid
                )
            );
            assert!(authority.authorize(&peer, Action::Status).is_ok());
        }
    }

    #[test]
    fn whom_a_rule_lets_in_may_see_the_status_and_change_own_plans_and_no_more() {
        let authority = authority_with("[[rule]]\nusers = [1000]\ngpus = ['H100']");
        let guest = peer(1000, &[1000]);
        assert!(authority.authorize(&guest, Action::Status).is_ok());
        assert!(authority.authorize(&guest, Action::ChangePlan { owner: 1000 }).is_ok());
        assert!(authority.authorize(&guest, Action::ChangePlan { owner: 1001 }).is_err());
        assert!(authority.authorize(&guest, Action::ResetClocks).is_err());
        assert!(authority.lease(&guest, &gpu::example()).is_err());
    }
}

//! The one place that decides who may do what.

use nix::unistd::Group;
use pfo_protocol::{Refusal, RefusalCode};

use crate::config::Groups;
use crate::peer::Peer;

/// What a peer wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// See the daemon, the GPUs and its own jobs.
    Status,
    /// Open a session and lease a GPU.
    Train,
    /// Load or swap the plan of a job of this user.
    ChangePlan {
        /// Whose job.
        owner: u32,
    },
    /// See or change the jobs of every user.
    EveryJob,
    /// Reset clocks.
    ResetClocks,
}

impl Action {
    const fn in_words(self) -> &'static str {
        match self {
            Self::Status => "see the status of pfo",
            Self::Train => "run jobs with pfo",
            Self::ChangePlan { .. } => "change the plan of another user's job",
            Self::EveryJob => "see or change other users' jobs",
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
}

impl Authority {
    /// Looks the configured groups up. One that does not exist has no members.
    #[must_use]
    pub fn new(names: &Groups) -> Self {
        let gid =
            |name: &str| Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw());
        Self {
            trainers: gid(&names.trainers),
            administrators: gid(&names.administrators),
            names: names.clone(),
        }
    }

    /// The configured groups that do not exist.
    pub fn missing_groups(&self) -> impl Iterator<Item = &str> {
        let trainers = self.trainers.is_none().then_some(self.names.trainers.as_str());
        let admins = self.administrators.is_none().then_some(self.names.administrators.as_str());
        trainers.into_iter().chain(admins)
    }

    /// The group that may use the trainers' socket and the one that may use the admin socket.
    #[must_use]
    pub fn socket_groups(&self) -> (Option<u32>, Option<u32>) {
        (self.trainers, self.administrators)
    }

    fn role(&self, peer: &Peer) -> Role {
        let member = |gid: Option<u32>| gid.is_some_and(|gid| peer.groups.contains(&gid));
        if peer.uid == 0 || member(self.administrators) {
            Role::Administrator
        } else if member(self.trainers) {
            Role::Trainer
        } else {
            Role::Nobody
        }
    }

    /// Says whether a peer may do something.
    ///
    /// # Errors
    /// A refusal that names the peer, the action and the group that may.
    pub fn authorize(&self, peer: &Peer, action: Action) -> Result<(), Refusal> {
        let needed = match action {
            Action::Status | Action::Train => Role::Trainer,
            Action::ChangePlan { owner } if owner == peer.uid => Role::Trainer,
            Action::ChangePlan { .. } | Action::EveryJob | Action::ResetClocks => {
                Role::Administrator
            }
        };
        if self.role(peer) >= needed {
            return Ok(());
        }
        let group = match needed {
            Role::Administrator => &self.names.administrators,
            Role::Trainer | Role::Nobody => &self.names.trainers,
        };
        let uid = peer.uid;
        Err(Refusal::new(
            RefusalCode::NotAuthorized,
            format!(
                "user {uid} may not {}: that takes membership in group {group}",
                action.in_words()
            ),
            format!("ask an administrator for `usermod -aG {group} USER`, then log in again"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority() -> Authority {
        let names = Groups { trainers: "pfo".into(), administrators: "pfo-admin".into() };
        Authority { names, trainers: Some(50), administrators: Some(51) }
    }

    fn peer(uid: u32, groups: &[u32]) -> Peer {
        Peer { uid, pid: 1, groups: groups.to_vec() }
    }

    #[test]
    fn everybody_may_do_exactly_what_the_table_of_the_design_says() {
        let own = |peer: &Peer| Action::ChangePlan { owner: peer.uid };
        let foreign = |peer: &Peer| Action::ChangePlan { owner: peer.uid + 1 };
        let rows: [(Peer, [bool; 6]); 4] = [
            (peer(1000, &[1000]), [false, false, false, false, false, false]),
            (peer(1000, &[1000, 50]), [true, true, true, false, false, false]),
            (peer(1000, &[1000, 51]), [true; 6]),
            (peer(0, &[0]), [true; 6]),
        ];
        for (peer, may) in rows {
            let actions = [
                Action::Status,
                Action::Train,
                own(&peer),
                foreign(&peer),
                Action::EveryJob,
                Action::ResetClocks,
            ];
            for (action, may) in actions.into_iter().zip(may) {
                let decision = authority().authorize(&peer, action);
                assert_eq!(decision.is_ok(), may, "{peer:?} {action:?}");
            }
        }
    }

    #[test]
    fn a_group_that_does_not_exist_has_no_members() {
        let names =
            Groups { trainers: "no-such-group-a".into(), administrators: "no-such-group-b".into() };
        let authority = Authority::new(&names);
        assert_eq!(authority.missing_groups().count(), 2);
        assert!(authority.authorize(&peer(1000, &[1000]), Action::Status).is_err());
        assert!(authority.authorize(&peer(0, &[0]), Action::ResetClocks).is_ok());
    }

    #[test]
    fn a_refusal_names_the_user_the_group_and_the_remedy() {
        let refusal = authority().authorize(&peer(1000, &[1000]), Action::Train).unwrap_err();
        let text = refusal.to_string();
        assert!(text.contains("user 1000 may not run jobs with pfo"), "{text}");
        assert!(text.contains("usermod -aG pfo USER"), "{text}");
    }
}

//! Being another user: who, and how to become that one.

use nix::unistd::{Gid, Group, Uid, User, getgrouplist, setgid, setgroups, setuid};
use serde::{Deserialize, Serialize};
use std::ffi::CString;

use crate::error::TrainerError;

/// A user, with groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl Identity {
    /// A user of the system, with the groups that a login would have, and these.
    pub(crate) fn of_user(name: &str, more_groups: &[String]) -> Result<Self, TrainerError> {
        let no_user = || TrainerError::NoUser(name.to_owned());
        let user = User::from_name(name).ok().flatten().ok_or_else(no_user)?;
        let c_name = CString::new(name).map_err(|_| no_user())?;
        let member_of = getgrouplist(&c_name, user.gid).map_err(|_| no_user())?;
        let mut groups: Vec<_> = member_of.into_iter().map(Gid::as_raw).collect();
        groups.extend(gids(more_groups)?);
        Ok(Self { uid: user.uid.as_raw(), gid: user.gid.as_raw(), groups })
    }

    /// Any uid, known to the system or not.
    pub(crate) fn of_uid(
        uid: u32,
        gid: Option<u32>,
        groups: &[String],
    ) -> Result<Self, TrainerError> {
        Ok(Self { uid, gid: gid.unwrap_or(uid), groups: gids(groups)? })
    }

    /// Becomes that user for good.
    pub(crate) fn assume(&self) -> Result<(), TrainerError> {
        let groups: Vec<_> = self.groups.iter().copied().map(Gid::from_raw).collect();
        setgroups(&groups)
            .and_then(|()| setgid(Gid::from_raw(self.gid)))
            .and_then(|()| setuid(Uid::from_raw(self.uid)))
            .map_err(|source| TrainerError::Become { uid: self.uid, source })
    }
}

/// Group names or gids, as gids.
fn gids(names: &[String]) -> Result<Vec<u32>, TrainerError> {
    names
        .iter()
        .map(|name| {
            if let Ok(gid) = name.parse() {
                return Ok(gid);
            }
            let group = Group::from_name(name).ok().flatten();
            group.map(|group| group.gid.as_raw()).ok_or_else(|| TrainerError::NoGroup(name.clone()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_of_the_system_comes_with_its_groups_and_an_unknown_one_is_named() {
        let root = Identity::of_user("root", &["77".to_owned()]).unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0) && root.groups.contains(&77));
        let message = Identity::of_user("nobody-at-all", &[]).unwrap_err().to_string();
        assert!(message.contains("nobody-at-all"), "{message}");
        let message = Identity::of_uid(5, None, &["no-such".to_owned()]).unwrap_err().to_string();
        assert!(message.contains("no-such"), "{message}");
    }
}

//! The users and groups behind the names in a configuration.

use std::fmt;

use nix::errno::Errno;
use nix::unistd::{Group, User, getgrouplist};
use pfo_vocabulary::{Gid, Uid};
use std::ffi::CString;

/// Finds the numbers behind names.
pub trait Accounts {
    /// The number of a user; `None` if no user has the name.
    ///
    /// # Errors
    /// If the accounts cannot be read now.
    fn user(&self, name: &str) -> Result<Option<Uid>, Errno>;

    /// The number of a group; `None` if no group has the name.
    ///
    /// # Errors
    /// If the accounts cannot be read now.
    fn group(&self, name: &str) -> Result<Option<Gid>, Errno>;

    /// The groups of a user; `None` if no user has the number.
    ///
    /// # Errors
    /// If the accounts cannot be read now.
    fn groups_of(&self, uid: Uid) -> Result<Vec<Gid>, Errno>;
}

/// The account database of this node.
#[derive(Clone, Copy, Debug)]
pub struct NodeAccounts;

impl Accounts for NodeAccounts {
    fn user(&self, name: &str) -> Result<Option<Uid>, Errno> {
        Ok(User::from_name(name)?.map(|user| Uid(user.uid.as_raw())))
    }

    fn group(&self, name: &str) -> Result<Option<Gid>, Errno> {
        let named = Group::from_name(name)?.map(|group| Gid(group.gid.as_raw()));
        // In a container, a group may have a number but no name.
        Ok(named.or_else(|| name.parse().ok().map(Gid)))
    }

    fn groups_of(&self, uid: Uid) -> Result<Vec<Gid>, Errno> {
        let Some(user) = User::from_uid(nix::unistd::Uid::from_raw(uid.0))? else {
            return Ok(Vec::new());
        };
        let name = CString::new(user.name).map_err(|_| Errno::EINVAL)?;
        let groups = getgrouplist(&name, user.gid)?;
        Ok(groups.into_iter().map(|gid| Gid(gid.as_raw())).collect())
    }
}

/// A name in the configuration that no account has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    what: String,
    failed: Option<Errno>,
}

impl UnknownName {
    /// Whether an account may have it nevertheless: the database did not answer.
    #[must_use]
    pub fn is_uncertain(&self) -> bool {
        self.failed.is_some()
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        self.failed.map_or(Ok(()), |errno| write!(f, ": {}", errno.desc()))
    }
}

/// Looks names up, and collects those that no account has.
pub struct Lookup<'a> {
    accounts: &'a dyn Accounts,
    /// Names that no account has.
    pub unknown_names: Vec<UnknownName>,
}

impl<'a> Lookup<'a> {
    /// A lookup in this database.
    #[must_use]
    pub fn new(accounts: &'a dyn Accounts) -> Self {
        Self { accounts, unknown_names: Vec::new() }
    }

    /// The number of a user named at `place`.
    pub fn user(&mut self, name: &str, place: &str) -> Option<Uid> {
        self.found(self.accounts.user(name), || format!("user {name} ({place})"))
    }

    /// The number of a group named at `place`.
    pub fn group(&mut self, name: &str, place: &str) -> Option<Gid> {
        self.found(self.accounts.group(name), || format!("group {name} ({place})"))
    }

    fn found<Number>(
        &mut self,
        answer: Result<Option<Number>, Errno>,
        what: impl FnOnce() -> String,
    ) -> Option<Number> {
        let (number, failed) = match answer {
            Ok(number) => (number, None),
            Err(errno) => (None, Some(errno)),
        };
        if number.is_none() {
            self.unknown_names.push(UnknownName { what: what(), failed });
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A database that does not answer.
    struct Down;

    impl Accounts for Down {
        fn user(&self, _: &str) -> Result<Option<Uid>, Errno> {
            Err(Errno::EIO)
        }

        fn group(&self, _: &str) -> Result<Option<Gid>, Errno> {
            Err(Errno::EIO)
        }

        fn groups_of(&self, _: Uid) -> Result<Vec<Gid>, Errno> {
            Err(Errno::EIO)
        }
    }

    #[test]
    fn the_groups_of_root_are_known_and_nobody_has_none() {
        assert!(NodeAccounts.groups_of(Uid::ROOT).unwrap().contains(&Gid(0)));
        assert_eq!(NodeAccounts.groups_of(Uid(u32::MAX - 7)), Ok(Vec::new()));
    }

    #[test]
    fn a_group_without_a_name_is_named_by_its_number() {
        assert_eq!(NodeAccounts.group("4321"), Ok(Some(Gid(4321))));
        assert_eq!(NodeAccounts.group("-1"), Ok(None));
    }

    #[test]
    fn a_name_that_nobody_has_is_told_from_one_that_cannot_be_looked_up() {
        let mut lookup = Lookup::new(&NodeAccounts);
        assert_eq!(lookup.user("root", "x"), Some(Uid::ROOT));
        assert_eq!(lookup.group("no-such-group", "line 7"), None);
        assert_eq!(lookup.unknown_names[0].to_string(), "group no-such-group (line 7)");
        assert!(!lookup.unknown_names[0].is_uncertain());
        let mut lookup = Lookup::new(&Down);
        assert_eq!(lookup.user("root", "line 7"), None);
        assert!(lookup.unknown_names[0].is_uncertain());
        assert!(lookup.unknown_names[0].to_string().starts_with("user root (line 7): "));
    }
}

//! Who is behind the names in the configuration.

use std::fmt;

use nix::errno::Errno;
use nix::unistd::{Group, User};

/// Where the numbers behind names come from.
pub trait Accounts {
    /// The number of a user; none if nobody has the name.
    ///
    /// # Errors
    /// If that cannot be told now.
    fn user(&self, name: &str) -> Result<Option<u32>, Errno>;

    /// The number of a group; none if no group has the name.
    ///
    /// # Errors
    /// If that cannot be told now.
    fn group(&self, name: &str) -> Result<Option<u32>, Errno>;
}

/// The accounts of this node.
#[derive(Clone, Copy, Debug)]
pub struct NodeAccounts;

impl Accounts for NodeAccounts {
    fn user(&self, name: &str) -> Result<Option<u32>, Errno> {
        Ok(User::from_name(name)?.map(|user| user.uid.as_raw()))
    }

    fn group(&self, name: &str) -> Result<Option<u32>, Errno> {
        Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()))
    }
}

/// A name that leads to nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    what: String,
    failed: Option<Errno>,
}

impl UnknownName {
    /// Whether it may lead to somebody all the same.
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

/// Looks names up, and remembers those that lead to nobody.
pub struct Lookup<'a> {
    accounts: &'a dyn Accounts,
    /// Names that lead to nobody.
    pub unknown_names: Vec<UnknownName>,
}

impl<'a> Lookup<'a> {
    /// A lookup that has not looked anything up.
    #[must_use]
    pub fn new(accounts: &'a dyn Accounts) -> Self {
        Self { accounts, unknown_names: Vec::new() }
    }

    /// The number of a user that is named at some place.
    pub fn user(&mut self, name: &str, place: &str) -> Option<u32> {
        self.found(self.accounts.user(name), || format!("user {name} ({place})"))
    }

    /// The number of a group that is named at some place.
    pub fn group(&mut self, name: &str, place: &str) -> Option<u32> {
        self.found(self.accounts.group(name), || format!("group {name} ({place})"))
    }

    fn found(
        &mut self,
        answer: Result<Option<u32>, Errno>,
        what: impl FnOnce() -> String,
    ) -> Option<u32> {
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
        fn user(&self, _: &str) -> Result<Option<u32>, Errno> {
            Err(Errno::EIO)
        }

        fn group(&self, _: &str) -> Result<Option<u32>, Errno> {
            Err(Errno::EIO)
        }
    }

    #[test]
    fn a_name_that_nobody_has_is_told_from_one_that_cannot_be_looked_up() {
        let mut lookup = Lookup::new(&NodeAccounts);
        assert_eq!(lookup.user("root", "x"), Some(0));
        assert_eq!(lookup.group("no-such-group", "line 7"), None);
        assert_eq!(lookup.unknown_names[0].to_string(), "group no-such-group (line 7)");
        assert!(!lookup.unknown_names[0].is_uncertain());
        let mut lookup = Lookup::new(&Down);
        assert_eq!(lookup.user("root", "line 7"), None);
        assert!(lookup.unknown_names[0].is_uncertain());
        assert!(lookup.unknown_names[0].to_string().starts_with("user root (line 7): "));
    }
}

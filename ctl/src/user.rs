//! Users by name for people, by number for the daemons.

use std::ffi::CString;

use nix::unistd::{self, User, geteuid, getgrouplist};
use pfo_protocol::{Gid, Uid};

/// The name of a user, or its number if it has no name, as a user of a container may.
pub(crate) fn name_of(uid: Uid) -> String {
    match User::from_uid(unistd::Uid::from_raw(uid.0)) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}

/// What a daemon says, with the names of users in place of their numbers: the daemons look up no
/// names.
pub(crate) fn with_names(said: &str) -> String {
    const USER: &str = "user ";
    let mut parts = said.split(USER);
    let mut named = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let (number, rest) = part.split_at(digits);
        named += USER;
        named += &number.parse().map_or_else(|_| number.to_owned(), |uid| name_of(Uid(uid)));
        named += rest;
    }
    named
}

/// Who runs this process.
pub(crate) fn own() -> Uid {
    Uid(geteuid().as_raw())
}

/// The same by name.
pub(crate) fn own_name() -> String {
    name_of(own())
}

/// What a new member of a group does before its processes are in the group.
pub(crate) fn how_to_use_new_groups() -> &'static str {
    match std::env::var_os("SLURM_JOB_ID") {
        Some(_) => {
            "wait until Slurm looks up groups again (GroupUpdateTime, 10 minutes by default) and \
             submit the job again; if that does not help, slurmctld has other accounts than this \
             node: LaunchParameters=disable_send_gids"
        }
        None => "log in again",
    }
}

/// The number of the user that an argument names. A name wins over a number, as with `chown`.
pub(crate) fn parse(text: &str) -> Result<Uid, String> {
    match User::from_name(text) {
        Ok(Some(user)) => Ok(Uid(user.uid.as_raw())),
        Ok(None) => text.parse().map(Uid).map_err(|_| {
            format!("this node has no user named {text:?}; give a user name or a number")
        }),
        Err(error) => Err(format!("the user database cannot be read: {error}")),
    }
}

/// The user that an argument names, with the groups that its processes have after a login.
pub(crate) fn parse_with_groups(text: &str) -> Result<pfo_protocol::User, String> {
    let uid = parse(text)?;
    let unreadable = |error| format!("the user database cannot be read: {error}");
    let groups = match User::from_uid(unistd::Uid::from_raw(uid.0)).map_err(unreadable)? {
        Some(user) => {
            let name = CString::new(user.name).map_err(|error| error.to_string())?;
            getgrouplist(&name, user.gid).map_err(unreadable)?
        }
        // A number without a name is in no group.
        None => Vec::new(),
    };
    Ok(pfo_protocol::User {
        uid,
        groups: groups.into_iter().map(|gid| Gid(gid.as_raw())).collect(),
        cgroup: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_name_and_by_number() {
        assert_eq!(parse("root"), Ok(Uid::ROOT));
        assert_eq!(parse("4000000001"), Ok(Uid(4_000_000_001)));
        assert_eq!(name_of(Uid::ROOT), "root");
        assert_eq!(name_of(Uid(4_000_000_001)), "4000000001");
    }

    #[test]
    fn users_are_named_in_what_a_daemon_says() {
        let cases = [
            (
                "user 0 holds job j, not user 4000000001",
                "user root holds job j, not user 4000000001",
            ),
            ("job j of user 0", "job j of user root"),
            ("user 99999999999 and a user may", "user 99999999999 and a user may"),
            ("another user's job", "another user's job"),
            ("", ""),
        ];
        for (said, named) in cases {
            assert_eq!(with_names(said), named);
        }
    }

    #[test]
    fn a_users_groups_come_with_it_and_a_bare_number_has_none() {
        let root = parse_with_groups("root").unwrap();
        assert!(root.uid == Uid::ROOT && root.groups.contains(&Gid(0)), "{root:?}");
        assert!(parse_with_groups("4000000001").unwrap().groups.is_empty());
    }

    #[test]
    fn an_unknown_name_is_named_in_the_error() {
        let error = parse("nobody-like-this").unwrap_err();
        assert!(error.contains("nobody-like-this"), "{error}");
    }
}

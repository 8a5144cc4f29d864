//! The sockets of both daemons: whether they exist, who owns them, and whether this process may
//! open them.

use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use nix::unistd::{Group, getegid, geteuid, getgrouplist, getgroups};
use pfo_protocol::{
    ADMIN_SOCKET, Gid, PFO_AGENT_ADMIN_SOCKET, PFO_AGENT_SOCKET, TRAINER_SOCKET, Uid,
};

use super::finding::Finding;
use super::unit;
use crate::daemons::{Daemons, Which};
use crate::user;

const CHECK: &str = "sockets";
const GROUPS: &str = "groups";

/// A socket and its group, as they are on disk, and the groups of this process.
#[derive(Clone, Debug)]
struct Found {
    path: String,
    is_socket: bool,
    uid: Uid,
    mode: u32,
    group: GroupFound,
    asker: Asker,
}

#[derive(Clone, Debug)]
struct GroupFound {
    name: String,
    members: usize,
}

/// Whether this process is in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asker {
    Root,
    Member,
    /// In the database, but this process began before.
    MemberAfterLogin,
    Outside,
}

/// Looks at each socket of a daemon. The last one is the one that is open to most users.
pub(crate) fn check(which: Which, daemons: &Daemons) -> Vec<Finding> {
    let paths = match which {
        Which::Pfod => daemons.pfod_sockets(),
        Which::Agent => daemons.agent_sockets(),
    };
    let mut findings = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        match find(path) {
            Ok(found) => findings.extend(judge(&found, index + 1 == paths.len())),
            Err(error) => {
                findings.push(missing(which, path, &error));
                findings.extend(missing_group(path));
            }
        }
    }
    findings
}

fn missing(which: Which, path: &Path, error: &io::Error) -> Finding {
    let path = path.display();
    match error.kind() {
        ErrorKind::NotFound => Finding::wrong(
            CHECK,
            format!("there is no {path}"),
            format!("`systemctl enable --now {}`, or start {which}", unit::sockets(which)),
        ),
        _ => Finding::unknown(CHECK, format!("{path}: {error}"), "run as root"),
    }
}

/// Without its group, systemd cannot make one of the packaged sockets.
fn missing_group(path: &Path) -> Option<Finding> {
    let packaged = [
        (TRAINER_SOCKET, "pfo"),
        (ADMIN_SOCKET, "pfo-admin"),
        (PFO_AGENT_SOCKET, "pfo"),
        (PFO_AGENT_ADMIN_SOCKET, "pfo-admin"),
    ];
    let (_, name) = packaged.into_iter().find(|(socket, _)| Path::new(socket) == path)?;
    let exists = Group::from_name(name).is_ok_and(|group| group.is_some());
    (!exists).then(|| {
        Finding::wrong(
            GROUPS,
            format!("there is no group {name}"),
            "run `systemd-sysusers` as root",
        )
    })
}

fn find(path: &Path) -> io::Result<Found> {
    let metadata = path.metadata()?;
    let group = Group::from_gid(nix::unistd::Gid::from_raw(metadata.gid())).ok().flatten();
    Ok(Found {
        path: path.display().to_string(),
        is_socket: metadata.file_type().is_socket(),
        uid: Uid(metadata.uid()),
        mode: metadata.mode() & 0o777,
        asker: asker(Gid(metadata.gid())),
        group: group.map_or_else(
            || GroupFound { name: metadata.gid().to_string(), members: 0 },
            |group| GroupFound { name: group.name, members: group.mem.len() },
        ),
    })
}

fn asker(Gid(gid): Gid) -> Asker {
    let gid = nix::unistd::Gid::from_raw(gid);
    if geteuid().is_root() {
        return Asker::Root;
    }
    if getegid() == gid || getgroups().is_ok_and(|groups| groups.contains(&gid)) {
        return Asker::Member;
    }
    let listed = std::ffi::CString::new(user::own_name())
        .ok()
        .and_then(|name| getgrouplist(&name, getegid()).ok())
        .is_some_and(|groups| groups.contains(&gid));
    if listed { Asker::MemberAfterLogin } else { Asker::Outside }
}

/// Judges one socket; `for_trainers` is the one that every user of pfo needs.
fn judge(found: &Found, for_trainers: bool) -> Vec<Finding> {
    let Found { path, uid, mode, group, asker, .. } = found;
    if !found.is_socket {
        let remedy = "remove it, then `systemctl restart` its socket unit";
        return vec![Finding::wrong(CHECK, format!("{path} is not a socket"), remedy)];
    }
    let mut findings = vec![match *mode {
        0o660 if *uid == Uid::ROOT || *asker != Asker::Root => {
            Finding::ok(CHECK, format!("{path} is open to group {}", group.name))
        }
        0o660 => Finding::wrong(
            CHECK,
            format!("{path} belongs to user {}", user::name_of(*uid)),
            "its owner can replace it: `systemctl restart` its socket unit",
        ),
        mode if mode & 0o006 != 0 => Finding::warning(
            CHECK,
            format!("{path} is open to every user (mode {mode:o})"),
            "the daemon still decides who may do what; SocketMode=0660 keeps others out",
        ),
        mode => Finding::wrong(
            CHECK,
            format!("{path} has mode {mode:o}: group {} cannot open it", group.name),
            "set SocketMode=0660 in its socket unit, then `systemctl restart` it",
        ),
    }];
    if for_trainers && group.members == 0 && *mode == 0o660 && *asker != Asker::Member {
        findings.push(Finding::warning(
            GROUPS,
            format!(
                "group {} lists no members: only users whose primary group it is can run jobs with pfo",
                group.name
            ),
            format!("`usermod -aG {} USER`", group.name),
        ));
    }
    let name = &group.name;
    match asker {
        Asker::MemberAfterLogin => findings.push(Finding::warning(
            GROUPS,
            format!("you are in group {name}, but this process is older than that"),
            user::how_to_use_new_groups(),
        )),
        Asker::Outside if for_trainers && mode & 0o006 == 0 => findings.push(Finding::wrong(
            GROUPS,
            format!("you are not in group {name}, and cannot use pfo"),
            format!(
                "have an administrator run `usermod -aG {name} {}`, then {}",
                user::own_name(),
                user::how_to_use_new_groups()
            ),
        )),
        Asker::Member => findings.push(Finding::ok(GROUPS, format!("you are in group {name}"))),
        Asker::Root | Asker::Outside => {}
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    fn found(mode: u32, asker: Asker) -> Found {
        let group = GroupFound { name: "pfo".to_owned(), members: 3 };
        Found { path: "/run/s".to_owned(), is_socket: true, uid: Uid::ROOT, mode, group, asker }
    }

    fn levels(found: &Found, for_trainers: bool) -> Vec<Level> {
        judge(found, for_trainers).into_iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn modes_owners_and_members_that_are_not_as_they_should_be_are_found() {
        use Level::{Ok, Warning, Wrong};
        let root = found(0o660, Asker::Root);
        assert_eq!(levels(&root, true), [Ok]);
        assert_eq!(levels(&Found { uid: Uid(7), ..root.clone() }, true), [Wrong]);
        assert_eq!(levels(&Found { is_socket: false, ..root.clone() }, true), [Wrong]);
        assert_eq!(levels(&found(0o666, Asker::Root), true), [Warning]);
        assert_eq!(levels(&found(0o600, Asker::Root), true), [Wrong]);
        let alone = GroupFound { name: "pfo".to_owned(), members: 0 };
        let alone = Found { group: alone, ..root };
        assert_eq!((levels(&alone, true), levels(&alone, false)), (vec![Ok, Warning], vec![Ok]));
    }

    #[test]
    fn a_user_who_is_kept_out_learns_the_reason() {
        use Level::{Ok, Warning, Wrong};
        assert_eq!(levels(&found(0o660, Asker::Member), true), [Ok, Ok]);
        assert_eq!(levels(&found(0o660, Asker::MemberAfterLogin), true), [Ok, Warning]);
        assert_eq!(levels(&found(0o660, Asker::Outside), true), [Ok, Wrong]);
        assert_eq!(
            levels(&found(0o660, Asker::Outside), false),
            [Ok],
            "the administrators' socket"
        );
        assert_eq!(levels(&found(0o666, Asker::Outside), true), [Warning]);
    }

    #[test]
    fn a_socket_that_is_not_there_is_wrong_and_one_that_cannot_be_seen_unknown() {
        let error = |kind| missing(Which::Pfod, Path::new("/run/s"), &io::Error::from(kind)).level;
        assert_eq!(error(ErrorKind::NotFound), Level::Wrong);
        assert_eq!(error(ErrorKind::PermissionDenied), Level::Unknown);
    }
}

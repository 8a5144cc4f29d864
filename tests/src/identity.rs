//! Who a process of a test is. No user or group is added to the machine: as root, users are numbers
//! that nobody has, and the daemon's groups two that every Debian and Ubuntu has and nobody is in.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::unistd::{self, Gid, Group, getegid, geteuid, setgid, setgroups, setuid};
use pfo_protocol::Uid;

/// The groups in the daemon's configuration when the tests run as root.
const TRAINERS: &str = "games";
const ADMINISTRATORS: &str = "operator";

/// A user and its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub uid: Uid,
    gid: u32,
    groups: Vec<u32>,
}

/// Whether the tests run as root, and can be everybody.
#[must_use]
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Leaves a test that only root can run, and says so.
#[macro_export]
macro_rules! needs_root {
    () => {
        if !$crate::identity::is_root() {
            $crate::say_skipped("only root can be several users");
            return;
        }
    };
}

/// The trainers' and the administrators' group in the daemon's configuration.
#[must_use]
pub fn group_names() -> (String, String) {
    if is_root() {
        return (TRAINERS.into(), ADMINISTRATORS.into());
    }
    let own = Group::from_gid(getegid()).unwrap().unwrap().name;
    (own, "no-such-group".into())
}

fn first_subordinate(uid: Uid) -> u32 {
    uid.0 << 12
}

/// What gives the trainers their subordinate uids, in the format of subuid(5).
#[must_use]
pub fn subuid_text() -> String {
    [Identity::trainer(), Identity::other_trainer()]
        .map(|Identity { uid, .. }| format!("{uid}:{}:4096\n", first_subordinate(uid)))
        .concat()
}

fn gid_of(name: &str) -> u32 {
    Group::from_name(name).unwrap().unwrap().gid.as_raw()
}

impl Identity {
    /// Who runs the tests.
    #[must_use]
    pub fn own() -> Self {
        Self { uid: Uid(geteuid().as_raw()), gid: getegid().as_raw(), groups: Vec::new() }
    }

    fn in_group(uid: u32, group: Option<&str>) -> Self {
        Self { uid: Uid(uid), gid: uid, groups: group.map(gid_of).into_iter().collect() }
    }

    /// A user that may train: another one than root if that can be.
    #[must_use]
    pub fn trainer() -> Self {
        if is_root() { Self::in_group(61_234, Some(TRAINERS)) } else { Self::own() }
    }

    /// A second user that may train.
    #[must_use]
    pub fn other_trainer() -> Self {
        Self::in_group(61_235, Some(TRAINERS))
    }

    /// A user that is an administrator, and not root.
    #[must_use]
    pub fn administrator() -> Self {
        Self::in_group(61_236, Some(ADMINISTRATORS))
    }

    /// A user that is nobody to the daemon.
    #[must_use]
    pub fn outsider() -> Self {
        Self::in_group(61_237, None)
    }

    /// Another user in the same group.
    #[must_use]
    pub fn with_uid(&self, uid: u32) -> Self {
        Self { uid: Uid(uid), gid: uid, ..self.clone() }
    }

    /// One of the subordinate uids of this user on a simulated node.
    #[must_use]
    pub fn subordinate(&self, number: u32) -> Self {
        self.with_uid(first_subordinate(self.uid) + number)
    }

    /// A command that runs as this user.
    pub fn assume<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        if *self == Self::own() {
            return command;
        }
        let (uid, gid) = (unistd::Uid::from_raw(self.uid.0), Gid::from_raw(self.gid));
        let groups: Vec<_> = self.groups.iter().copied().map(Gid::from_raw).collect();
        let drop_root = move || {
            setgroups(&groups).and_then(|()| setgid(gid)).and_then(|()| setuid(uid))?;
            Ok::<_, io::Error>(())
        };
        // SAFETY: between fork and exec the closure makes three system calls and allocates nothing.
        unsafe { command.pre_exec(drop_root) }
    }

    /// Has the simulated trainer run its ranks as this user.
    pub fn pass_to_trainer(&self, command: &mut Command) {
        if *self == Self::own() {
            return;
        }
        command.args(["--uid", &self.uid.to_string(), "--gid", &self.gid.to_string()]);
        if !self.groups.is_empty() {
            let groups: Vec<_> = self.groups.iter().map(u32::to_string).collect();
            command.args(["--groups", &groups.join(",")]);
        }
    }
}

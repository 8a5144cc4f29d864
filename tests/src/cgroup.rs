//! A control group of a container's own.
//!
//! `systemd-nspawn` that is not to register its container puts it below the group it was started in, at
//! a place that is the same for all: two of them would kill each other's services.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the hierarchies are mounted, on every distribution.
const MOUNTS: &str = "/sys/fs/cgroup";

/// A group that goes when it is dropped; everything in it must have ended.
#[derive(Debug)]
pub(crate) struct Cgroup {
    /// One in every hierarchy that systemd uses.
    directories: Vec<PathBuf>,
}

impl Cgroup {
    /// Makes a group below that of this process.
    pub(crate) fn create(name: &str) -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let directories: Vec<_> =
            own.lines().filter_map(hierarchy).map(|own| own.join(name)).collect();
        for directory in &directories {
            fs::create_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
        }
        Self { directories }
    }

    /// A command that will run in the group.
    pub(crate) fn command(&self, program: &str) -> Command {
        let enter =
            r#"while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs"; shift; done; shift; exec "$@""#;
        let mut command = Command::new("/bin/sh");
        command.args(["-ec", enter, "enter"]).args(&self.directories).args(["--", program]);
        command
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for directory in &self.directories {
            remove(directory);
        }
    }
}

/// The directory of a line of `/proc/PID/cgroup`, if systemd uses that hierarchy.
fn hierarchy(line: &str) -> Option<PathBuf> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let mounts: &[&str] = match controllers {
        "" => &["unified", ""],
        "name=systemd" => &["systemd"],
        _ => return None,
    };
    let mut mounts = mounts.iter().map(|name| Path::new(MOUNTS).join(name));
    let mount = mounts.find(|mount| mount.join("cgroup.procs").exists())?;
    Some(mount.join(path.trim_start_matches('/')))
}

/// Removes a group and those below it, as far as nothing runs in them.
fn remove(directory: &Path) {
    let below = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in below.filter(|entry| entry.path().is_dir()) {
        remove(&entry.path());
    }
    let _ = fs::remove_dir(directory);
}

//! The Debians that are booted in tests. `scripts/debian-tree` makes their trees, once; tests write
//! to a layer above them that vanishes.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::cgroup::Cgroup;
use crate::identity;
use crate::programs;

/// Where the programs under test are in a booted Debian: what `cargo build` made, not what a package
/// installs.
pub const PROGRAMS: &str = "/opt/pfo-tests";

/// Makes tests of functions that take a [`Debian`], one for each release.
#[macro_export]
macro_rules! on_both_debians {
    ($($proof:ident)*) => {
        mod debian_12 {
            $(#[test]
            #[ignore = "boots Debian: make test-booted"]
            fn $proof() {
                super::$proof($crate::Debian::Bookworm);
            })*
        }
        mod debian_13 {
            $(#[test]
            #[ignore = "boots Debian: make test-booted"]
            fn $proof() {
                super::$proof($crate::Debian::Trixie);
            })*
        }
    };
}

/// A release of Debian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Debian {
    /// Debian 12, with systemd 252.
    Bookworm,
    /// Debian 13, with systemd 257.
    Trixie,
    /// The same with Podman and what its users need to run it without root.
    TrixieWithPodman,
}

impl Debian {
    fn codename(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::TrixieWithPodman => "trixie-podman",
        }
    }

    fn tree(self) -> PathBuf {
        let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(env::home_dir()?.join(".cache")));
        cache.unwrap_or_default().join("pfo").join(self.codename())
    }

    /// A container of this release that leaves the tree as it is, under a name of its own.
    pub(crate) fn container(self, name: &str, cgroup: &Cgroup) -> Command {
        let mut nspawn = cgroup.command("systemd-nspawn");
        nspawn
            // Where this machine has the old cgroups, a systemd of today would refuse to boot.
            .env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1")
            .arg("--directory")
            .arg(self.tree())
            .args(["--volatile=overlay", "--machine", name])
            // Nothing on this machine need manage it.
            .args(["--register=no", "--keep-unit", "--link-journal=no"])
            .args(["--private-network", "--resolv-conf=off", "--timezone=off"])
            // What its systemd takes for DeviceAllow=.
            .arg("--system-call-filter=bpf")
            .arg(format!("--bind-ro={}:{PROGRAMS}", programs::directory().display()))
            .stdin(Stdio::null());
        nspawn
    }

    /// Why this release cannot be booted here, if it cannot.
    #[must_use]
    pub fn obstacle(self) -> Option<String> {
        let (tree, name) = (self.tree(), self.codename());
        if !identity::is_root() {
            return Some("only root can boot a container".into());
        }
        if !tree.exists() {
            let tree = tree.display();
            return Some(format!("there is no {tree}: `scripts/debian-tree {name}` makes it"));
        }
        // Containers may be forbidden here, and our programs too new for the release's C library.
        static PROBES: AtomicU32 = AtomicU32::new(0);
        let probe = PROBES.fetch_add(1, Relaxed);
        let probe = format!("pfo-probe-{name}-{}-{probe}", std::process::id());
        let cgroup = Cgroup::create(&probe);
        let mut probe = self.container(&probe, &cgroup);
        match probe.args(["--quiet", &format!("{PROGRAMS}/pfo-sim"), "--version"]).output() {
            Ok(output) if output.status.success() => None,
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Some(format!("a container of {name} does not run our programs: {said}"))
            }
            Err(error) => Some(format!("cannot start systemd-nspawn: {error}")),
        }
    }
}

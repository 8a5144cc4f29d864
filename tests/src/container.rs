//! A booted Debian: a systemd of its own with its users, units and journal, which a test may break
//! as it likes.
//!
//! ```ignore
//! let Some(debian) = Container::boot(Debian::Bookworm) else { return }; // it has said why not
//! std::fs::write(debian.shared().join("pfod.deb"), b"...").unwrap(); // is /shared/pfod.deb inside
//! debian.run("dpkg --install /shared/pfod.deb && useradd alice").printed();
//! assert_eq!(debian.run_as("alice", "pfoctl status").code, Some(77));
//! debian.run("systemd-run --unit=training --uid=alice /opt/pfo-tests/pfo-sim-trainer").printed();
//! let ledger = std::fs::read(debian.file("/run/pfo/ledger.json"));
//! ```
//!
//! It goes when it is dropped: powered off, with everything that ran or was written in it. Processes in
//! it have other numbers inside than outside.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::cgroup::Cgroup;
use crate::debian::Debian;
use crate::log_text::tail;
use crate::process::Process;
use crate::ran::Ran;
use crate::skip;
use crate::wait;

/// Both sides write here.
const SHARED: &str = "/shared";

/// A machine that does a lot else as well has booted by then.
const BOOT_TIMEOUT: Duration = Duration::from_secs(90);

/// Seconds after which a command inside is taken for one that hangs.
const COMMAND_TIMEOUT_S: u32 = 300;

/// A booted Debian.
#[derive(Debug)]
pub struct Container {
    nspawn: Process,
    /// The process that is number 1 inside, by its number outside.
    leader: u32,
    directory: TempDir,
    _cgroup: Cgroup,
}

impl Container {
    /// Boots, or says why that is skipped.
    #[must_use]
    pub fn boot(debian: Debian) -> Option<Self> {
        Self::boot_with(debian, &[])
    }

    /// As [`boot`](Self::boot), with these files of this machine at other places inside.
    #[must_use]
    pub fn boot_with(debian: Debian, files: &[(&Path, &str)]) -> Option<Self> {
        if let Some(obstacle) = debian.obstacle() {
            skip::say_skipped(&obstacle);
            return None;
        }
        static BOOTED: AtomicU32 = AtomicU32::new(0);
        let number = BOOTED.fetch_add(1, Relaxed);
        let name = format!("pfo-test-{}-{number}", std::process::id());
        let directory = tempfile::Builder::new().prefix("pfo-test-").tempdir().unwrap();
        let shared = directory.path().join("shared");
        fs::create_dir(&shared).unwrap();
        // Other users have to reach what is shared with them.
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o755)).unwrap();
        let news = directory.path().join("notify");
        let socket = UnixDatagram::bind(&news).unwrap();
        socket.set_read_timeout(Some(BOOT_TIMEOUT)).unwrap();
        let cgroup = Cgroup::create(&name);
        let mut command = debian.container(&name, &cgroup);
        command
            .args(["--boot", "--notify-ready=yes"])
            .arg(format!("--bind={}:{SHARED}", shared.display()))
            .env("NOTIFY_SOCKET", &news);
        for (outside, inside) in files {
            command.arg(format!("--bind={}:{inside}", outside.display()));
        }
        let nspawn = Process::start("nspawn", directory.path(), &mut command);
        let leader = wait_for_boot(&socket, &nspawn);
        Some(Self { nspawn, leader, directory, _cgroup: cgroup })
    }

    /// The directory that is `/shared` inside.
    #[must_use]
    pub fn shared(&self) -> PathBuf {
        self.directory.path().join("shared")
    }

    /// A file inside, as the test reaches it. The path must have no absolute link in it.
    #[must_use]
    pub fn file(&self, path: &str) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.leader)).join(path.trim_start_matches('/'))
    }

    /// Runs shell commands inside, as root.
    pub fn run(&self, script: &str) -> Ran {
        self.run_as("root", script)
    }

    /// Runs shell commands inside, as a user, in a unit of their own and with the user's groups of now.
    pub fn run_as(&self, user: &str, script: &str) -> Ran {
        self.command(user, script).output().unwrap().into()
    }

    /// The command that [`run_as`](Self::run_as) runs, for a test that does not wait for its end.
    #[must_use]
    pub fn command(&self, user: &str, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.leader.to_string(), "--all"])
            .args(["systemd-run", "--quiet", "--pipe", "--wait", "--collect", "--uid", user])
            .arg(format!("--property=RuntimeMaxSec={COMMAND_TIMEOUT_S}"))
            // The shell is to expand variables, and not systemd.
            .args(["/bin/sh", "-c", &script.replace('$', "$$")])
            .stdin(Stdio::null());
        command
    }

    /// The number that a process has outside, by its number inside.
    #[must_use]
    pub fn outside(&self, pid: u32) -> Option<u32> {
        let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let inside = namespace(self.leader)?;
        let number = |status: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
            line.split_whitespace().last()?.parse::<u32>().ok()
        };
        let pids = fs::read_dir("/proc").ok()?.flatten();
        let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.find(|outside| {
            let status = fs::read_to_string(format!("/proc/{outside}/status")).unwrap_or_default();
            number(&status) == Some(pid) && namespace(*outside).as_ref() == Some(&inside)
        })
    }

    /// The journal, or what `options` of `journalctl` leave of it.
    #[must_use]
    pub fn journal(&self, options: &str) -> String {
        self.run(&format!("journalctl --no-pager {options}")).printed()
    }
}

/// Waits until all units of the boot have started; returns the process that is number 1 inside.
fn wait_for_boot(socket: &UnixDatagram, nspawn: &Process) -> u32 {
    let mut leader = None;
    let mut message = [0; 4096];
    loop {
        let received = socket.recv(&mut message).unwrap_or_else(|error| {
            panic!("the container does not boot: {error}\n{}", nspawn.errors())
        });
        let text = String::from_utf8_lossy(&message[..received]);
        for line in text.lines() {
            match line.split_once('=') {
                Some(("X_NSPAWN_LEADER_PID", pid)) => leader = Some(pid.parse().unwrap()),
                Some(("READY", "1")) => return leader.expect("nspawn names the leader first"),
                _ => {}
            }
        }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if thread::panicking() {
            let journal = self.run("journalctl --no-pager --boot").stdout;
            eprintln!("the container's journal:\n{}", tail(&journal));
        }
        // nspawn then has the container power itself off, and removes what is its own on this machine.
        self.nspawn.signal(Signal::SIGTERM);
        let _ = wait::until(|| self.nspawn.ended().ok_or(()));
    }
}

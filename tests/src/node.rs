//! A node in a temporary directory: simulated GPUs, and a daemon of its own.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;

use pfo_protocol::{JobStatus, RankStatus, Status};
use serde_json::Value;
use tempfile::TempDir;

use crate::client::Client;
use crate::daemon::Daemon;
use crate::identity;
use crate::log_text::tail;
use crate::machine::{Machine, MachineSetup};
use crate::wait;

/// What to make a node of.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its GPUs.
    pub machine: MachineSetup,
    /// `lease.idle_limit_s`
    pub idle_limit_s: u64,
    /// `lease.sessions_per_user`
    pub sessions_per_user: u32,
    /// `limits.connections`
    pub connections: u32,
    /// `lease.min_mhz`
    pub min_mhz: u32,
    /// `lease.max_mhz`
    pub max_mhz: u32,
    /// `clocks.suspend_after_mismatches`
    pub suspend_after: u32,
    /// The end of the file: rules.
    pub rules: &'static str,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            machine: MachineSetup::default(),
            idle_limit_s: 60,
            sessions_per_user: 64,
            connections: 1024,
            min_mhz: 0,
            max_mhz: 10_000,
            suspend_after: 3,
            rules: "",
        }
    }
}

/// A simulated node.
pub struct Node {
    /// Its GPUs.
    pub machine: Machine,
    /// Its daemon, while there is one.
    pub daemon: Option<Daemon>,
    settle_ms: u64,
    // Last: everything else lives in it.
    directory: TempDir,
}

impl Node {
    /// A node whose daemon serves.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&Setup::default())
    }

    /// A node of some setup whose daemon serves.
    #[must_use]
    pub fn start_with(setup: &Setup) -> Self {
        let mut node = Self::create(setup);
        node.start_daemon();
        node
    }

    /// A node whose daemon has not started.
    #[must_use]
    pub fn create(setup: &Setup) -> Self {
        let node = Self::without_driver(setup);
        node.machine.install_library();
        node
    }

    /// A node on which there is no driver library either.
    #[must_use]
    pub fn without_driver(setup: &Setup) -> Self {
        let directory = tempfile::Builder::new().prefix("pfo-test-").tempdir().unwrap();
        // Other users have to reach the sockets.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let machine = Machine::create(directory.path(), &setup.machine);
        let node = Self { machine, daemon: None, settle_ms: setup.machine.settle_ms, directory };
        fs::write(node.config(), node.config_text(setup)).unwrap();
        node
    }

    fn config_text(&self, setup: &Setup) -> String {
        let (trainers, administrators) = identity::group_names();
        let path = |path: PathBuf| path.display().to_string();
        format!(
            "[sockets]\ntrainers = {:?}\nadmin = {:?}\n\
             [groups]\ntrainers = {trainers:?}\nadministrators = {administrators:?}\n\
             [limits]\nconnections = {}\n\
             [lease]\nidle_limit_s = {}\nsessions_per_user = {}\nmin_mhz = {}\nmax_mhz = {}\n\
             [clocks]\nsettle_ms = {}\nsuspend_after_mismatches = {}\n\
             [driver]\nlibrary = {:?}\n\
             [paths]\nledger = {:?}\nstate = {:?}\n{}",
            path(self.socket()),
            path(self.admin_socket()),
            setup.connections,
            setup.idle_limit_s,
            setup.sessions_per_user,
            setup.min_mhz,
            setup.max_mhz,
            self.settle_ms,
            setup.suspend_after,
            path(self.machine.library()),
            path(self.ledger()),
            path(self.state()),
            setup.rules,
        )
    }

    /// Everything of the node.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    /// The daemon's configuration.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.file("pfod.toml")
    }

    /// The trainers' socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.file("pfod.sock")
    }

    /// The administrators' socket.
    #[must_use]
    pub fn admin_socket(&self) -> PathBuf {
        self.file("admin.sock")
    }

    /// The daemon's ledger.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.file("ledger.json")
    }

    /// What outlives a boot of the node.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.file("state")
    }

    /// How many GPUs the ledger says are locked.
    #[must_use]
    pub fn ledger_entries(&self) -> usize {
        let Ok(bytes) = fs::read(self.ledger()) else { return 0 };
        let ledger: Value = serde_json::from_slice(&bytes).unwrap();
        ledger["entries"].as_array().unwrap().len()
    }

    /// Starts the daemon, and waits until it answers.
    pub fn start_daemon(&mut self) {
        assert!(self.daemon.is_none(), "there is a daemon already");
        self.daemon = Some(Daemon::start(self, &[]));
        let connects = || std::os::unix::net::UnixStream::connect(self.socket());
        self.until("the daemon is there", || connects().map(drop).map_err(|e| e.to_string()));
        // It accepts nobody before it is ready.
        let _ = self.status();
    }

    /// The daemon that must be there.
    pub fn daemon(&mut self) -> &mut Daemon {
        self.daemon.as_mut().unwrap()
    }

    /// Kills the daemon without a warning.
    pub fn kill_daemon(&mut self) {
        self.daemon.take().unwrap().process.kill();
    }

    /// What the daemons of this node have logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.file("pfod.err")).unwrap_or_default()
    }

    /// A connection for requests.
    #[must_use]
    pub fn control(&self) -> Client {
        Client::connect(&self.socket())
    }

    /// The daemon's status.
    #[must_use]
    pub fn status(&self) -> Status {
        self.control().status()
    }

    /// The status of a job that must be there.
    #[must_use]
    pub fn job(&self, name: &str) -> JobStatus {
        self.find_job(name).unwrap_or_else(|| panic!("there is no job {name}"))
    }

    /// The status of a job.
    #[must_use]
    pub fn find_job(&self, name: &str) -> Option<JobStatus> {
        self.status().jobs.into_iter().find(|job| job.job.as_str() == name)
    }

    /// The status of a rank that must be there.
    #[must_use]
    pub fn rank(&self, job: &str, rank: u32) -> RankStatus {
        self.find_rank(job, rank).unwrap_or_else(|| panic!("job {job} has no rank {rank}"))
    }

    /// The status of a rank.
    #[must_use]
    pub fn find_rank(&self, job: &str, rank: u32) -> Option<RankStatus> {
        self.find_job(job)?.ranks.into_iter().find(|status| status.rank == rank)
    }

    /// Waits until something is so; fails with the last reason why not, and the daemon's log.
    pub fn until<T>(&self, what: &str, attempt: impl FnMut() -> Result<T, String>) -> T {
        wait::until_ok(what, attempt)
    }

    /// Waits until a condition holds.
    pub fn until_so(&self, what: &str, mut condition: impl FnMut() -> bool) {
        self.until(what, || if condition() { Ok(()) } else { Err("not so".into()) });
    }

    /// Waits until a value is what it should be.
    pub fn until_is<T: PartialEq + std::fmt::Debug>(
        &self,
        what: &str,
        expected: &T,
        value: impl FnMut() -> T,
    ) {
        wait::until_is(what, expected, value);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A daemon that hangs in a simulated driver could not even be killed otherwise.
        self.machine.clear_faults();
        if thread::panicking() {
            eprintln!("the daemon's log:\n{}", tail(&self.log()));
        }
    }
}

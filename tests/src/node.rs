//! A node in a temporary directory: simulated GPUs, and a pfod and a pfo-agent of its own.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use nix::sys::signal::Signal;
use pfo_protocol::{AgentStatus, JobStatus, Rank, RankStatus, Status, WatchedJob};
use serde_json::Value;
use tempfile::TempDir;

use crate::client::Client;
use crate::daemon::{Daemon, Program};
use crate::etcd::scratch::scratch;
use crate::identity;
use crate::log_text::tail;
use crate::machine::{Machine, MachineSetup};
use crate::programs;
use crate::wait;

/// `driver.mode` of nodes of which no test says another one: tests that set no clock run in both.
const MODE: &str = "PFO_TEST_MODE";

fn usual_mode() -> &'static str {
    if env::var_os(MODE).is_some_and(|mode| mode == "observe") { "observe" } else { "control" }
}

/// What to make a node of.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its GPUs.
    pub machine: MachineSetup,
    /// Whether an agent starts with pfod.
    pub agent: bool,
    /// `lease.idle_limit_s`
    pub idle_limit_s: u64,
    /// `lease.sessions_per_user`
    pub sessions_per_user: u32,
    /// `limits.connections`, of pfod and of the agent
    pub connections: u32,
    /// `lease.min_mhz`
    pub min_mhz: u32,
    /// `lease.max_mhz`
    pub max_mhz: u32,
    /// `lease.min_power_limit_w`
    pub min_power_limit_w: u32,
    /// `limits.tenant_check_s`
    pub tenant_check_s: u32,
    /// `limits.agent_silence_s`
    pub agent_silence_s: u32,
    /// `lease.changes_per_second`
    pub changes_per_second: u32,
    /// `clocks.suspend_after_mismatches`
    pub suspend_after: u32,
    /// `clocks.on_foreign_clock`
    pub on_foreign_clock: &'static str,
    /// `driver.mode`. In the mode "observe", the driver aborts whoever calls a setter.
    pub mode: &'static str,
    /// The end of the file of pfod: rules.
    pub rules: &'static str,
    /// The end of the file of the agent.
    pub agent_rules: &'static str,
    /// Whether the daemons count what they allocate.
    pub counted: bool,
    /// The network namespace of the agent, if not that of the test.
    pub agent_namespace: Option<String>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            machine: MachineSetup::default(),
            agent: true,
            idle_limit_s: 60,
            sessions_per_user: 64,
            connections: 1024,
            min_mhz: 1,
            max_mhz: 10_000,
            min_power_limit_w: 1,
            tenant_check_s: 5,
            agent_silence_s: 60,
            changes_per_second: 1000,
            suspend_after: 3,
            on_foreign_clock: "set-again",
            mode: usual_mode(),
            rules: "",
            agent_rules: "",
            counted: false,
            agent_namespace: None,
        }
    }
}

impl Setup {
    /// The usual setup without an agent.
    #[must_use]
    pub fn without_agent() -> Self {
        Self { agent: false, ..Self::default() }
    }
}

/// A simulated node.
pub struct Node {
    /// Its GPUs.
    pub machine: Machine,
    /// Its pfod, while there is one.
    pub daemon: Option<Daemon>,
    /// Its agent, while there is one.
    pub agent: Option<Daemon>,
    setup: Setup,
    // Last: everything else lives in it.
    directory: TempDir,
}

impl Node {
    /// A node whose daemons serve.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&Setup::default())
    }

    /// A node of some setup whose daemons serve.
    #[must_use]
    pub fn start_with(setup: &Setup) -> Self {
        let mut node = Self::create(setup);
        node.start_daemon();
        if setup.agent {
            node.start_agent();
        }
        node
    }

    /// A node whose daemons have not started.
    #[must_use]
    pub fn create(setup: &Setup) -> Self {
        let node = Self::without_driver(setup);
        node.machine.install_library();
        node
    }

    /// A node on which there is no driver library either.
    #[must_use]
    pub fn without_driver(setup: &Setup) -> Self {
        let directory = scratch();
        // Other users have to reach the sockets.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let machine = Machine::create(directory.path(), &setup.machine);
        let setup = setup.clone();
        if setup.mode == "observe" {
            machine.fault("setters", "crash", None);
        }
        let node = Self { machine, daemon: None, agent: None, setup, directory };
        fs::write(node.file("subuid"), identity::subuid_text()).unwrap();
        fs::write(node.config(), node.config_text()).unwrap();
        fs::write(node.agent_config(), node.agent_config_text()).unwrap();
        node
    }

    fn config_text(&self) -> String {
        let (trainers, administrators) = identity::group_names();
        let setup = &self.setup;
        format!(
            "limits = {{ connections = {}, tenant_check_s = {}, agent_silence_s = {} }}\n\
             [sockets]\ntrainers = {:?}\nadmin = {:?}\nagent = {:?}\n\
             [groups]\ntrainers = {trainers:?}\nadministrators = {administrators:?}\n\
             [lease]\nidle_limit_s = {}\nsessions_per_user = {}\nmin_mhz = {}\nmax_mhz = {}\n\
             min_power_limit_w = {}\n\
             changes_per_second = {}\n\
             [clocks]\nsettle_ms = {}\nsuspend_after_mismatches = {}\non_foreign_clock = {:?}\n\
             [driver]\nlibrary = {:?}\ndevices = {:?}\nmode = {:?}\n\
             [paths]\nledger = {:?}\nsubordinate_uids = {:?}\n{}",
            setup.connections,
            setup.tenant_check_s,
            setup.agent_silence_s,
            self.socket(),
            self.admin_socket(),
            self.daemon_socket_for_agent(),
            setup.idle_limit_s,
            setup.sessions_per_user,
            setup.min_mhz,
            setup.max_mhz,
            setup.min_power_limit_w,
            setup.changes_per_second,
            setup.machine.settle_ms,
            setup.suspend_after,
            setup.on_foreign_clock,
            self.machine.library(),
            self.machine.devices(),
            setup.mode,
            self.ledger(),
            self.file("subuid"),
            setup.rules,
        )
    }

    fn agent_config_text(&self) -> String {
        let (trainers, administrators) = identity::group_names();
        format!(
            "[sockets]\nusers = {:?}\nadmin = {:?}\npfod = {:?}\n\
             [groups]\ntrainers = {trainers:?}\nadministrators = {administrators:?}\n\
             [limits]\nconnections = {}\n\
             [paths]\nstate = {:?}\nruntime = {:?}\nsubordinate_uids = {:?}\n{}",
            self.agent_socket(),
            self.agent_admin_socket(),
            self.daemon_socket_for_agent(),
            self.setup.connections,
            self.state(),
            self.agent_runtime(),
            self.file("subuid"),
            self.setup.agent_rules,
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

    /// The file of a program of the node.
    #[must_use]
    pub fn program(&self, program: Program) -> PathBuf {
        programs::program(program.name())
    }

    /// The command of a program of the node.
    #[must_use]
    pub(crate) fn command(&self, program: Program) -> Command {
        let namespace = self.setup.agent_namespace.as_ref();
        if let Some(namespace) = namespace.filter(|_| program == Program::PfoAgent) {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace]).arg(self.program(program));
            return command;
        }
        if !self.setup.counted {
            return Command::new(self.program(program));
        }
        let mut command = Command::new(programs::program("pfo-counted"));
        command.arg(self.counts(program)).arg(self.program(program));
        command
    }

    fn counts(&self, program: Program) -> PathBuf {
        self.file(&format!("{}.memory", program.name()))
    }

    /// Bytes that a daemon that counts them has now, and the most that it has had.
    #[must_use]
    pub fn allocated(&self, program: Program) -> (u64, u64) {
        let text = fs::read_to_string(self.counts(program)).unwrap();
        let (now, most) = text.trim().split_once('\n').unwrap();
        (now.parse().unwrap(), most.parse().unwrap())
    }

    /// The configuration of pfod.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.file("pfod.toml")
    }

    /// The configuration of the agent.
    #[must_use]
    pub fn agent_config(&self) -> PathBuf {
        self.file("agent.toml")
    }

    /// The trainers' socket of pfod.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.file("pfod.sock")
    }

    /// The administrators' socket of pfod.
    #[must_use]
    pub fn admin_socket(&self) -> PathBuf {
        self.file("admin.sock")
    }

    /// The socket of pfod that only the agent may open.
    #[must_use]
    pub fn daemon_socket_for_agent(&self) -> PathBuf {
        self.file("agent.sock")
    }

    /// The users' socket of the agent.
    #[must_use]
    pub fn agent_socket(&self) -> PathBuf {
        self.file("pfo-agent.sock")
    }

    /// The administrators' socket of the agent.
    #[must_use]
    pub fn agent_admin_socket(&self) -> PathBuf {
        self.file("pfo-agent-admin.sock")
    }

    /// The ledger of pfod.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.file("ledger.json")
    }

    /// What of the agent outlives a boot of the node.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.file("agent-state")
    }

    /// What of the agent outlives only its restarts.
    #[must_use]
    pub fn agent_runtime(&self) -> PathBuf {
        self.file("agent-runtime")
    }

    /// How many GPUs the ledger says are locked.
    #[must_use]
    pub fn ledger_entries(&self) -> usize {
        let Ok(bytes) = fs::read(self.ledger()) else { return 0 };
        let ledger: Value = serde_json::from_slice(&bytes).unwrap();
        ledger["entries"].as_array().unwrap().len()
    }

    /// Starts pfod, and waits until it answers and knows its driver.
    pub fn start_daemon(&mut self) {
        self.start_daemon_without_driver();
        // It serves while it loads the driver.
        self.until("the driver is loaded, or is found to be wrong", || {
            let daemon = self.status().daemon;
            match daemon.driver_problem {
                Some(problem) if problem.contains("has been loading") => Err(problem),
                _ => Ok(()),
            }
        });
    }

    /// Starts pfod, and waits until it answers.
    pub fn start_daemon_without_driver(&mut self) {
        assert!(self.daemon.is_none(), "there is a pfod already");
        self.daemon = Some(Daemon::start(self, &[]));
        for socket in [self.socket(), self.admin_socket(), self.daemon_socket_for_agent()] {
            self.until_accepted(&socket);
        }
    }

    /// Starts the agent, and waits until it answers and reaches pfod, if there is one.
    pub fn start_agent(&mut self) {
        assert!(self.agent.is_none(), "there is an agent already");
        self.agent = Some(Daemon::start_agent(self));
        for socket in [self.agent_socket(), self.agent_admin_socket()] {
            self.until_accepted(&socket);
        }
        if self.daemon.is_some() {
            self.until_agent_reaches_daemon();
        }
    }

    fn until_accepted(&self, socket: &Path) {
        let what = format!("somebody listens on {}", socket.display());
        self.until(&what, || UnixStream::connect(socket).map(drop).map_err(|e| e.to_string()));
    }

    /// Waits until the agent says that it reaches pfod.
    pub fn until_agent_reaches_daemon(&self) {
        self.until("the agent reaches pfod", || match self.agent_status().pfod_problem {
            None => Ok(()),
            Some(problem) => Err(problem),
        });
    }

    /// The pfod that must be there.
    pub fn daemon(&mut self) -> &mut Daemon {
        self.daemon.as_mut().unwrap()
    }

    /// Kills pfod without a warning.
    pub fn kill_daemon(&mut self) {
        self.daemon.take().unwrap().process.kill();
    }

    /// Asks pfod to stop, and waits for its end.
    pub fn stop_daemon(&mut self) {
        let status = self.daemon.take().unwrap().stop();
        assert!(status.success(), "{status}: {}", self.log());
    }

    /// Kills the agent without a warning.
    pub fn kill_agent(&mut self) {
        self.agent.take().unwrap().process.kill();
    }

    /// Asks the agent to stop, and waits for its end.
    pub fn stop_agent(&mut self) {
        let status = self.agent.take().unwrap().stop();
        assert!(status.success(), "{status}: {}", self.agent_log());
    }

    /// What every pfod of this node has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.file("pfod.err")).unwrap_or_default()
    }

    /// What every agent of this node has logged.
    #[must_use]
    pub fn agent_log(&self) -> String {
        fs::read_to_string(self.file("pfo-agent.err")).unwrap_or_default()
    }

    /// Waits for a line of pfod's: a thread of its own writes them, after whoever asked has the answer.
    pub fn until_logged(&self, what: &str) {
        self.until("pfod logs it", || Self::found(what, &self.log()));
    }

    /// As [`Self::until_logged`], for the agent's.
    pub fn until_agent_logged(&self, what: &str) {
        self.until("the agent logs it", || Self::found(what, &self.agent_log()));
    }

    fn found(what: &str, log: &str) -> Result<(), String> {
        if log.contains(what) { Ok(()) } else { Err(format!("no {what:?} in {log}")) }
    }

    /// A connection to pfod as an administrator if this is root, as a trainer otherwise.
    #[must_use]
    pub fn control(&self) -> Client {
        let socket = if identity::is_root() { self.admin_socket() } else { self.socket() };
        Client::connect(&socket)
    }

    /// A connection to pfod as a trainer, root or not.
    #[must_use]
    pub fn trainer_control(&self) -> Client {
        Client::connect(&self.socket())
    }

    /// A connection to pfod where it expects the agent.
    #[must_use]
    pub fn control_as_agent(&self) -> Client {
        Client::connect(&self.daemon_socket_for_agent())
    }

    /// A connection to the agent as an administrator if this is root, as a user otherwise.
    #[must_use]
    pub fn agent_control(&self) -> Client {
        let root = identity::is_root();
        Client::connect(&if root { self.agent_admin_socket() } else { self.agent_socket() })
    }

    /// What pfod says of itself, its GPUs and jobs.
    #[must_use]
    pub fn status(&self) -> Status {
        self.control().status()
    }

    /// What the agent says of itself and the jobs that it watches.
    #[must_use]
    pub fn agent_status(&self) -> AgentStatus {
        self.agent_control().agent_status()
    }

    /// What pfod says of a job that must be there.
    #[must_use]
    pub fn job(&self, name: &str) -> JobStatus {
        self.find_job(name).unwrap_or_else(|| panic!("there is no job {name}"))
    }

    /// What pfod says of a job.
    #[must_use]
    pub fn find_job(&self, name: &str) -> Option<JobStatus> {
        self.status().jobs.into_iter().find(|job| job.job.as_str() == name)
    }

    /// What the agent says of a job.
    #[must_use]
    pub fn find_watched(&self, name: &str) -> Option<WatchedJob> {
        self.agent_status().jobs.into_iter().find(|job| job.job.as_str() == name)
    }

    /// What pfod says of a rank that must be there.
    #[must_use]
    pub fn rank(&self, job: &str, rank: u32) -> RankStatus {
        self.find_rank(job, rank).unwrap_or_else(|| panic!("job {job} has no rank {rank}"))
    }

    /// What pfod says of a rank.
    #[must_use]
    pub fn find_rank(&self, job: &str, rank: u32) -> Option<RankStatus> {
        self.find_job(job)?.ranks.into_iter().find(|status| status.rank == Rank(rank))
    }

    /// Waits until something is so; fails with the last reason why not.
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
            eprintln!("the log of pfod:\n{}", tail(&self.log()));
            eprintln!("the log of pfo-agent:\n{}", tail(&self.agent_log()));
        } else {
            let ended = self.daemon.as_mut().and_then(|daemon| daemon.process.ended());
            let signal = ended.and_then(|status| status.signal());
            assert_ne!(signal, Some(Signal::SIGABRT as i32), "pfod died of a setter");
        }
    }
}

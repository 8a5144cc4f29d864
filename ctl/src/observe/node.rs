//! A `pfod` that only observes and a `pfo-agent` of one's own, in a folder that ends with them.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, io};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Pid};
use pfo_protocol::Status;
use tempfile::TempDir;

use super::command::Signals;
use super::error::ObserveError;
use crate::daemons::Daemons;

/// How long a daemon may take until it answers.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long one may take to end.
const END_PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

/// The longest path of a folder in which sockets have room for their names, in bytes.
const LONGEST_FOLDER: usize = 80;

/// The daemons. They end with this.
pub(super) struct OwnNode {
    // Before the folder: fields are dropped in this order.
    agent: Option<Running>,
    pfod: Option<Running>,
    folder: TempDir,
    devices: Option<PathBuf>,
}

/// A daemon, which ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let Self(child) = self;
        let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM);
        let asked = Instant::now();
        while asked.elapsed() < END_PATIENCE {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            sleep(POLL);
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl OwnNode {
    /// Starts both daemons over a driver's library and device files, and returns when they answer.
    pub(super) fn start(
        library: Option<&Path>,
        devices: Option<PathBuf>,
        signals: &Signals,
    ) -> Result<Self, ObserveError> {
        let [pfod, pfo_agent] = [find("pfod")?, find("pfo-agent")?];
        let failed = |source| ObserveError::Folder { what: "the daemons", source };
        let folder = folder().map_err(failed)?;
        let mut node = Self { agent: None, pfod: None, folder, devices };
        node.configure(library).map_err(failed)?;
        node.pfod = Some(node.run("pfod", &pfod, &["--observe"], signals)?);
        let daemons = node.daemons();
        let ask = || daemons.pfod().ok()?.status().ok();
        let loaded = |status: &Status| {
            let problem = status.daemon.driver_problem.as_deref().unwrap_or_default();
            !problem.contains("has been loading")
        };
        let status = node.until_answered("pfod", signals, || ask().filter(loaded))?;
        if let Some(why) = status.daemon.driver_problem.filter(|_| status.gpus.is_empty()) {
            return Err(ObserveError::NoDriver { why });
        }
        node.agent = Some(node.run("pfo-agent", &pfo_agent, &[], signals)?);
        node.until_answered("pfo-agent", signals, || daemons.agent().ok()?.status().ok())?;
        Ok(node)
    }

    /// The way to the daemons.
    pub(super) fn daemons(&self) -> Daemons {
        let agent = self.path("pfo-agent-admin.sock");
        Daemons::from_environment(Some(self.path("admin.sock")), Some(agent))
    }

    /// What leads the shim of a trainer here, and names its job where nothing else does.
    pub(super) fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        let devices = self.devices.clone().map(|devices| ("PFO_DEVICES", devices));
        let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_named = is_set("PFO_JOB") || is_set("SLURM_JOB_ID");
        let job = (!is_named).then(|| ("PFO_JOB", PathBuf::from("observed")));
        let sockets = [
            ("PFO_SOCKET", self.path("pfod.sock")),
            ("PFO_ADMIN_SOCKET", self.path("admin.sock")),
            ("PFO_AGENT_SOCKET", self.path("pfo-agent-admin.sock")),
        ];
        sockets.into_iter().chain(devices).chain(job).collect()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn configure(&self, library: Option<&Path>) -> io::Result<()> {
        // A string of TOML is one of JSON.
        let text = |path: &Path| serde_json::Value::from(path.to_string_lossy()).to_string();
        let at = |name: &str| text(&self.path(name));
        let group = Gid::effective();
        let groups = format!("[groups]\ntrainers = \"{group}\"\nadministrators = \"{group}\"\n");
        let library = library.map(|path| format!("library = {}\n", text(path)));
        let devices = self.devices.as_deref().map(|path| format!("devices = {}\n", text(path)));
        let pfod = format!(
            "[sockets]\ntrainers = {}\nadmin = {}\nagent = {}\n{groups}[driver]\n{}{}[paths]\nledger = {}\n",
            at("pfod.sock"),
            at("admin.sock"),
            at("agent.sock"),
            library.unwrap_or_default(),
            devices.unwrap_or_default(),
            at("ledger.json"),
        );
        let agent = format!(
            "[sockets]\nusers = {}\nadmin = {}\npfod = {}\n{groups}[paths]\nstate = {}\nruntime = {}\n",
            at("pfo-agent.sock"),
            at("pfo-agent-admin.sock"),
            at("agent.sock"),
            at("agent"),
            at("agent-jobs"),
        );
        fs::write(self.path("pfod.toml"), pfod)?;
        fs::write(self.path("pfo-agent.toml"), agent)
    }

    fn run(
        &self,
        name: &'static str,
        program: &Path,
        more: &[&str],
        signals: &Signals,
    ) -> Result<Running, ObserveError> {
        signals.check()?;
        let log = File::create(self.path(name).with_extension("log"));
        let start = |log: File| {
            let mut command = ends_with_this(program);
            command.arg("--config").arg(self.path(name).with_extension("toml")).args(more);
            command.env_remove("NOTIFY_SOCKET").env_remove("LISTEN_FDS").env("NO_COLOR", "1");
            // Ctrl-C is for the command: what it does at its end is to be seen.
            command.process_group(0);
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            signals.start(&mut command)
        };
        let started = log.and_then(start).map(Running);
        started.map_err(|source| ObserveError::Start { name: name.to_owned(), source })
    }

    fn until_answered<T>(
        &self,
        name: &'static str,
        signals: &Signals,
        ask: impl Fn() -> Option<T>,
    ) -> Result<T, ObserveError> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if let Some(answer) = ask() {
                return Ok(answer);
            }
            signals.check()?;
            sleep(POLL);
        }
        let log = fs::read_to_string(self.path(name).with_extension("log")).unwrap_or_default();
        let said = log.lines().last().unwrap_or("nothing").to_owned();
        Err(ObserveError::NoAnswer { name, said })
    }
}

/// A program that the kernel ends with this process, however this ends, if there is `setpriv`.
fn ends_with_this(program: &Path) -> Command {
    match in_path("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "TERM", "--"]).arg(program);
            command
        }
        None => Command::new(program),
    }
}

fn folder() -> io::Result<TempDir> {
    let usual = env::temp_dir();
    let short = usual.as_os_str().len() < LONGEST_FOLDER - 20;
    let parent = if short { usual } else { "/tmp".into() };
    tempfile::Builder::new().prefix("pfo-observe-").tempdir_in(parent)
}

/// A program beside this one or, if it is not there, in PATH.
fn find(name: &'static str) -> Result<PathBuf, ObserveError> {
    let own = env::current_exe().ok();
    let beside = own.map(|own| own.with_file_name(name)).filter(|path| path.is_file());
    beside.or_else(|| in_path(name)).ok_or(ObserveError::NoProgram { name })
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
}

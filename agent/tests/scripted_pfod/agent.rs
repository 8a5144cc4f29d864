//! The agent as a process of its own, and a client of it.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use pfo_protocol::{
    AgentRequest, AgentResponse, AgentStatus, ClientMessage, DaemonMessage, JobSelector, Refusal,
    SweepStatus, Uid,
};
use tempfile::TempDir;

use crate::pfod::ScriptedPfod;

/// Longer than anything takes. No test passes because of it.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Agent {
    process: Option<Child>,
    // Last: everything else lives in it.
    directory: TempDir,
}

/// Which socket to connect to.
#[derive(Clone, Copy)]
pub(crate) enum Socket {
    Users,
    Admin,
}

pub(crate) fn own_uid() -> u32 {
    nix::unistd::getuid().as_raw()
}

impl Agent {
    /// One that has not started, and the `pfod` that it will connect to.
    pub(crate) fn create() -> (Self, ScriptedPfod) {
        let directory = tempfile::tempdir().unwrap();
        let agent = Self { process: None, directory };
        let group = nix::unistd::Group::from_gid(nix::unistd::getgid()).unwrap();
        let group = group.map_or("root".into(), |group| group.name);
        let path = |name: &str| agent.path(name).display().to_string();
        let config = format!(
            "[sockets]\nusers = {:?}\nadmin = {:?}\npfod = {:?}\n\
             [groups]\ntrainers = {group:?}\nadministrators = {group:?}\n\
             [paths]\nstate = {:?}\nruntime = {:?}\n",
            path("users.sock"),
            path("admin.sock"),
            path("pfod.sock"),
            path("state"),
            path("run"),
        );
        fs::write(agent.path("agent.toml"), config).unwrap();
        for name in ["state", "run"] {
            fs::create_dir(agent.path(name)).unwrap();
        }
        let pfod = ScriptedPfod::at(&agent.path("pfod.sock"), own_uid());
        (agent, pfod)
    }

    /// One that serves, with a `pfod` that listens.
    pub(crate) fn start() -> (Self, ScriptedPfod) {
        let (mut agent, pfod) = Self::create();
        pfod.listen();
        agent.run();
        (agent, pfod)
    }

    pub(crate) fn run(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pfo-agent"));
        command.arg("--config").arg(self.path("agent.toml"));
        command.env_remove("JOURNAL_STREAM");
        self.process = Some(command.spawn().unwrap());
        let socket = self.path("admin.sock");
        wait_until("the agent serves", || UnixStream::connect(&socket).is_ok());
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn connect(&self, socket: Socket) -> Client {
        let name = match socket {
            Socket::Users => "users.sock",
            Socket::Admin => "admin.sock",
        };
        Client::connect(&self.path(name))
    }

    pub(crate) fn ask(&self, request: AgentRequest) -> Result<AgentResponse, Refusal> {
        self.connect(Socket::Users).ask(request)
    }

    pub(crate) fn status(&self) -> AgentStatus {
        let Ok(AgentResponse::Status(status)) = self.ask(AgentRequest::Status) else { panic!() };
        *status
    }

    pub(crate) fn sweeps(&self) -> Vec<SweepStatus> {
        let Ok(AgentResponse::Sweeps(sweeps)) = self.ask(AgentRequest::Sweeps) else { panic!() };
        sweeps
    }

    pub(crate) fn sweep(&self) -> SweepStatus {
        self.sweeps().remove(0)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) struct Client(UnixStream);

impl Client {
    fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    pub(crate) fn send(&mut self, request: AgentRequest) {
        let frame = ClientMessage::AgentRequest(request).to_frame().unwrap();
        self.0.write_all(&frame).unwrap();
    }

    pub(crate) fn ask(&mut self, request: AgentRequest) -> Result<AgentResponse, Refusal> {
        self.send(request);
        match DaemonMessage::read_from(&mut self.0).unwrap() {
            DaemonMessage::AgentResponse(AgentResponse::Refused(refusal))
            | DaemonMessage::Refusal(refusal) => Err(refusal),
            DaemonMessage::AgentResponse(response) => Ok(response),
            other => panic!("{other:?}"),
        }
    }
}

/// The job of a user, or one's own.
pub(crate) fn selector(uid: Option<u32>) -> JobSelector {
    JobSelector { job: "j".parse().unwrap(), uid: uid.map(Uid) }
}

pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "waited in vain until {what}");
        sleep(Duration::from_millis(20));
    }
}

//! A booted Debian with pfod and pfo-agent under its systemd, on a simulated machine that the test sees too.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use pfo_protocol::{JobStatus, Pid, SessionId, Status, SweepStatus};
use serde_json::Value;

use crate::container::Container;
use crate::daemon::Program;
use crate::debian::{Debian, PROGRAMS};
use crate::machine::{Machine, MachineSetup};
use crate::packaged_node::UNITS;
use crate::plan::TestPlan;
use crate::programs;
use crate::ran::Ran;
use crate::trainer::{MICROBATCHES, STAGES};
use crate::wait;

/// Users that may train.
pub const USERS: [&str; 4] = ["alice", "bob", "carol", "dave"];

/// Its directory and that of the agent are small file systems of their own, which a test can fill.
const LEDGER: &str = "/run/pfo/ledger.json";
const STATE: &str = "/var/lib/pfo-agent";

/// What the simulated driver and an impatient test need of pfod. The rest is as it is installed.
const DROP_IN: &str = "\
[Service]
Environment=PFO_SIM_STATE=/shared/gpus.state
ReadWritePaths=/shared
WatchdogSec=4s
LimitNOFILE=256
";

/// What an impatient test needs of pfo-agent.
const AGENT_DROP_IN: &str = "\
[Service]
WatchdogSec=4s
";

const CONFIG: &str = "\
[lease]
idle_limit_s = 3
min_mhz = 1
min_power_limit_w = 1
";

/// A booted node.
pub struct BootedNode {
    /// The system.
    pub debian: Container,
    /// Its GPUs.
    pub machine: Machine,
}

impl BootedNode {
    /// Boots, or says why that is skipped. Both daemons serve.
    #[must_use]
    pub fn boot(release: Debian, gpus: &'static str) -> Option<Self> {
        let debian = Container::boot(release)?;
        let shared = debian.shared();
        let machine = Machine::create(&shared, &MachineSetup { gpus, ..MachineSetup::default() });
        machine.install_library();
        for unit in fs::read_dir(programs::source_root().join("systemd")).unwrap() {
            let unit = unit.unwrap().path();
            fs::copy(&unit, shared.join(unit.file_name().unwrap())).unwrap();
        }
        fs::write(shared.join("test.conf"), DROP_IN).unwrap();
        fs::write(shared.join("agent.conf"), AGENT_DROP_IN).unwrap();
        fs::write(shared.join("pfod.toml"), CONFIG).unwrap();
        let users = USERS.map(|user| format!("useradd --groups pfo {user}")).join(" && ");
        debian
            .run(&format!(
                "set -e
                install {PROGRAMS}/pfod {PROGRAMS}/pfo-agent /usr/sbin/
                install {PROGRAMS}/pfoctl /usr/bin/
                install {PROGRAMS}/libnvidia_ml.so /usr/lib/libnvidia-ml.so.1
                ldconfig
                ln -s /shared/gpus.state.dev/nvidia* /dev/
                mkdir /run/pfo {STATE}
                mount -t tmpfs -o size=1m,mode=0755 pfo /run/pfo
                mount -t tmpfs -o size=4m,mode=0700 pfo-agent {STATE}
                install -m 644 /shared/*.service /shared/*.socket /etc/systemd/system/
                install -D -m 644 /shared/test.conf -t /etc/systemd/system/pfod.service.d/
                install -D -m 644 /shared/agent.conf -t /etc/systemd/system/pfo-agent.service.d/
                install -D -m 644 /shared/pfod.sysusers /usr/lib/sysusers.d/pfod.conf
                install -D -m 644 /shared/pfod.tmpfiles /usr/lib/tmpfiles.d/pfod.conf
                install -D -m 644 /shared/pfod.toml -t /etc/pfo/
                systemd-sysusers && systemd-tmpfiles --create pfod.conf && {users}
                systemctl daemon-reload
                systemctl enable --now {UNITS}"
            ))
            .printed();
        Some(Self { debian, machine })
    }

    /// What pfod says of itself and its jobs.
    ///
    /// # Errors
    /// What `pfoctl` says, if pfod does not serve.
    pub fn status(&self) -> Result<Status, String> {
        let ran = self.debian.run("pfoctl status --json");
        serde_json::from_str(&ran.stdout).map_err(|error| format!("{error}: {ran:?}"))
    }

    /// How many GPUs the ledger says are locked.
    #[must_use]
    pub fn ledger_entries(&self) -> usize {
        let Ok(bytes) = fs::read(self.ledger()) else { return 0 };
        let ledger: Value = serde_json::from_slice(&bytes).unwrap();
        ledger["entries"].as_array().unwrap().len()
    }

    /// The file that pfod records its locks in.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.debian.file(LEDGER)
    }

    /// Fills the file system that the ledger is on, until the result is dropped.
    pub fn fill_ledger_disk(&self) -> Filler {
        Filler::fill(self.ledger().with_file_name("filler"))
    }

    /// Fills the file system of what the agent keeps, until the result is dropped.
    pub fn fill_state_disk(&self) -> Filler {
        Filler::fill(self.debian.file(STATE).join("filler"))
    }

    /// Waits until something is so; fails with the last reason why not.
    pub fn until<T>(&self, what: &str, attempt: impl FnMut() -> Result<T, String>) -> T {
        wait::until(attempt).unwrap_or_else(|last| panic!("never came true: {what}; last: {last}"))
    }

    /// The process of a daemon, by its number inside; 0 while there is none.
    #[must_use]
    pub fn main_pid(&self, program: Program) -> Pid {
        let unit = program.name();
        let show = format!("systemctl show --property=MainPID --value {unit}.service");
        Pid(self.debian.run(&show).printed().trim().parse().unwrap())
    }

    /// Waits until a daemon runs again that was this process before.
    pub fn until_back(&self, program: Program, former: Pid) {
        self.until("the daemon is back", || match self.main_pid(program) {
            pid if pid == former || pid == Pid(0) => Err(format!("its process is {pid}")),
            _ => match self.debian.run(program.status_command()) {
                ran if ran.code == Some(0) => Ok(()),
                ran => Err(format!("{ran:?}")),
            },
        });
    }

    /// The sweep of a job, which must be there.
    ///
    /// # Errors
    /// What `pfoctl` says, if the agent does not serve, or knows no such sweep.
    pub fn sweep(&self, job: &str) -> Result<SweepStatus, String> {
        let ran = self.debian.run("pfoctl profile status --json");
        let sweeps: Vec<SweepStatus> =
            serde_json::from_str(&ran.stdout).map_err(|error| format!("{error}: {ran:?}"))?;
        let sweep = sweeps.into_iter().find(|sweep| sweep.job.as_str() == job);
        sweep.ok_or_else(|| format!("there is no sweep of {job}"))
    }

    /// Sends a process a signal, by its number inside. That it is gone already is no failure.
    pub fn signal(&self, pid: Pid, signal: Signal) {
        let kill = format!("kill -{} {pid}", signal as i32);
        if signal == Signal::SIGSEGV {
            // The first one meets Rust's own handler, which takes it for no stack overflow and gives way.
            self.debian.run(&format!("{kill}; sleep 0.3; {kill}"));
        } else {
            self.debian.run(&kill);
        }
    }
}

/// A file that takes all the space there is.
#[must_use]
#[derive(Debug)]
pub struct Filler(PathBuf);

impl Filler {
    fn fill(path: PathBuf) -> Self {
        let mut file = File::create(&path).unwrap();
        while file.write_all(&[0; 512]).is_ok() {}
        Self(path)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A training of [`STAGES`] ranks in a unit of its own, on neighbouring GPUs.
pub struct BootedJob<'n> {
    node: &'n BootedNode,
    name: String,
    user: &'static str,
    first_gpu: usize,
}

impl<'n> BootedJob<'n> {
    /// Starts one that trains until it is stopped, and waits until every rank has its lease.
    #[must_use]
    pub fn start(node: &'n BootedNode, name: &str, user: &'static str, first_gpu: usize) -> Self {
        let gpus: Vec<String> =
            (first_gpu..first_gpu + STAGES as usize).map(|gpu| gpu.to_string()).collect();
        node.debian
            .run(&format!(
                "systemctl reset-failed {name}.service 2>/dev/null
                systemd-run --quiet --unit={name} --uid={user} --collect \
                --property=KillMode=mixed --property=TimeoutStopSec=20 \
                --property=StandardOutput=truncate:/shared/{name}.json \
                {PROGRAMS}/pfo-sim-trainer launch --json --job {name} --steps 0 \
                --time-scale 0.05 --stages {STAGES} --microbatches {MICROBATCHES} \
                --gpus {} --state /shared/gpus.state",
                gpus.join(",")
            ))
            .printed();
        let job = Self { node, name: name.to_owned(), user, first_gpu };
        job.until_leased();
        job
    }

    /// Waits until every rank has its lease.
    pub fn until_leased(&self) {
        let leased = || match self.ranks()?.len() {
            found if found == STAGES as usize => Ok(()),
            found => Err(format!("{found} have")),
        };
        // Pauses between two attempts of a rank grow.
        wait::until_within(Duration::from_secs(60), leased)
            .unwrap_or_else(|last| panic!("not every rank of {} has its lease: {last}", self.name));
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its GPUs.
    #[must_use]
    pub fn gpus(&self) -> std::ops::Range<usize> {
        self.first_gpu..self.first_gpu + STAGES as usize
    }

    /// What pfod says of it.
    ///
    /// # Errors
    /// If pfod does not serve, or does not know it.
    pub fn status(&self) -> Result<JobStatus, String> {
        let jobs = self.node.status()?.jobs;
        let job = jobs.into_iter().find(|job| job.job.as_str() == self.name);
        job.ok_or_else(|| format!("there is no job {}", self.name))
    }

    /// The processes of its ranks that hold a lease, by their numbers inside.
    ///
    /// # Errors
    /// If pfod does not serve.
    pub fn ranks(&self) -> Result<Vec<Pid>, String> {
        let jobs = self.node.status()?.jobs;
        let job = jobs.into_iter().find(|job| job.job.as_str() == self.name);
        Ok(job.map_or_else(Vec::new, |job| job.ranks.iter().map(|rank| rank.pid).collect()))
    }

    /// The sessions of its ranks.
    ///
    /// # Errors
    /// If pfod does not serve, or does not know it.
    pub fn sessions(&self) -> Result<Vec<SessionId>, String> {
        Ok(self.status()?.ranks.iter().map(|rank| rank.session).collect())
    }

    /// Begins to run `pfoctl` in its user's name, with these arguments behind `plan swap JOB`.
    pub fn begin_swap(&self, arguments: &str) -> Child {
        let script = format!("exec pfoctl plan swap {} {arguments}", self.name);
        let mut command = self.node.debian.command(self.user, &script);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Swaps to a plan, and waits until every rank runs it.
    pub fn take_up(&self, plan: &TestPlan) {
        self.swap(plan).printed();
    }

    /// Swaps its plan, and waits until it is in force or cannot be.
    pub fn swap(&self, plan: &TestPlan) -> Ran {
        let file = format!("{}.plan.json", self.name);
        fs::write(self.node.debian.shared().join(&file), plan.to_json()).unwrap();
        self.begin_swap(&format!("/shared/{file} --wait")).wait_with_output().unwrap().into()
    }

    /// Waits until every rank has its clock locked at one of its plan.
    pub fn until_on(&self, plan: &TestPlan) {
        for (stage, gpu) in (0..STAGES).zip(self.gpus()) {
            self.node.until("a rank runs on its plan", || match self.node.machine.sm_lock(gpu) {
                Some(mhz) if plan.clocks(stage).contains(&mhz) => Ok(()),
                lock => Err(format!("GPU {gpu} is locked at {lock:?}")),
            });
        }
    }

    /// Asks it to stop, and checks that no step of it has failed.
    pub fn stop(self) {
        self.node.debian.run(&format!("systemctl stop {}.service", self.name)).printed();
        let report = fs::read(self.node.debian.shared().join(format!("{}.json", self.name)));
        let report: Value = serde_json::from_slice(&report.unwrap()).unwrap();
        assert_eq!(report["failed_steps"], 0, "{report}");
    }

    /// Ends what is left of it after some of its ranks were killed.
    pub fn clear_away(self) {
        self.node.debian.run(&format!("systemctl kill --signal=KILL {}.service", self.name));
    }
}

//! pfod as it was before pfo-agent took over what needs no privilege, to measure both in one run.
//!
//! `tests/bench/build-before` builds it. Its sessions are those of today, but its requests are not, so that
//! its own `pfoctl` asks it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pfo_tests::{Machine, TestPlan, identity, process, programs, tail};
use tempfile::TempDir;

use crate::Result;
use crate::node::{CHANGES_PER_SECOND, Measured, machine_setup, wait_until};
use crate::proc_status::Process;

/// Where `tests/bench/build-before` leaves the programs.
const PROGRAMS: &str = "target/before/target/release";

/// A node of that version.
pub(crate) struct Before {
    machine: Machine,
    pfod: process::Process,
    programs: PathBuf,
    // Last: everything else lives in it.
    directory: TempDir,
}

impl Before {
    /// A node whose pfod serves; none if that version was not built.
    pub(crate) fn start() -> Result<Option<Self>> {
        let programs = programs::source_root().join(PROGRAMS);
        if !programs.join("pfod").exists() {
            return Ok(None);
        }
        let directory = TempDir::with_prefix("pfo-bench-before-")?;
        let machine = Machine::create(directory.path(), &machine_setup());
        machine.install_library();
        let config = directory.path().join("pfod.toml");
        fs::write(&config, config_text(directory.path(), &machine))?;
        let mut command = Command::new(programs.join("pfod"));
        command.arg("--config").arg(config).env("PFO_SIM_STATE", machine.state());
        command.env_remove("NOTIFY_SOCKET").env_remove("JOURNAL_STREAM").env_remove("PFO_LOG");
        let pfod = process::Process::start("pfod", directory.path(), &mut command);
        let before = Self { machine, pfod, programs, directory };
        wait_until("the former pfod answers", || Ok(before.pfoctl(&["status"]).is_ok()))?;
        Ok(Some(before))
    }

    /// Asks as the user that this is, over the trainers' socket.
    fn pfoctl(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(self.programs.join("pfoctl"));
        command.args(arguments).arg("--socket").arg(self.socket()).stdin(Stdio::null());
        let output = command.output()?;
        match output.status.success() {
            true => Ok(()),
            false => {
                Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
            }
        }
    }
}

fn config_text(directory: &Path, machine: &Machine) -> String {
    let path = |name: &str| directory.join(name);
    let (trainers, administrators) = identity::group_names();
    format!(
        "[sockets]\ntrainers = {:?}\nadmin = {:?}\n\
         [groups]\ntrainers = {trainers:?}\nadministrators = {administrators:?}\n\
         [lease]\nchanges_per_second = {}\n\
         [clocks]\nsettle_ms = 0\n\
         [driver]\nlibrary = {:?}\n\
         [paths]\nledger = {:?}\nstate = {:?}\n",
        path("pfod.sock"),
        path("admin.sock"),
        CHANGES_PER_SECOND,
        machine.library(),
        path("ledger.json"),
        path("state"),
    )
}

impl Measured for Before {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("pfod.sock")
    }

    fn pfod(&self) -> Result<Process> {
        Ok(Process(self.pfod.pid()))
    }

    fn agent(&self) -> Option<Process> {
        None
    }

    fn run_plan(&self, job: &str, plan: &TestPlan) -> Result<()> {
        let file = self.directory.path().join("plan.json");
        fs::write(&file, plan.to_json())?;
        self.pfoctl(&["plan", "swap", job, &file.display().to_string()])
    }

    fn record(&self, job: &str, steps: u32) -> Result<()> {
        let output = self.directory.path().join("samples.csv").display().to_string();
        let steps = steps.to_string();
        self.pfoctl(&["profile", "samples", job, "--steps", &steps, "--output", &output])
    }

    fn log(&self) -> String {
        tail(&self.pfod.errors())
    }
}

//! A booted Debian with simulated GPUs: what is installed in it is a package's, unchanged.
//!
//! Its units need no setting for tests. The GPUs are where the simulated driver looks by itself, and the
//! driver is a library that is installed, or not yet.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::container::Container;
use crate::debian::{Debian, PROGRAMS};
use crate::machine::{LIBRARY, Machine, MachineSetup};
use crate::plan::TestPlan;
use crate::programs;
use crate::ran::Ran;
use crate::wait;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Where the simulated driver looks for its GPUs.
const GPUS: &str = "/dev/shm/pfo-sim.state";

/// Where the device files of these GPUs are, and the daemon finds them by links in /dev.
pub const DEVICES: &str = "/dev/shm/pfo-sim.state.dev";

/// The ledger of the packaged daemon.
const LEDGER: &str = "/run/pfo/ledger.json";

/// The units of pfo.
pub const UNITS: &str = "pfod.service pfod.socket pfod-admin.socket pfod-agent.socket \
                         pfo-agent.service pfo-agent.socket pfo-agent-admin.socket";

/// How many these are.
pub const UNIT_COUNT: usize = 7;

/// The sockets of pfo as only their users can open them.
const SOCKETS: &str = "\
/run/pfo/admin.sock root:pfo-admin 660
/run/pfo/agent.sock root:pfo-agent 660
/run/pfo/pfo-agent-admin.sock root:pfo-admin 660
/run/pfo/pfo-agent.sock root:pfo 660
/run/pfo/pfod.sock root:pfo 660
";

/// Stages of a training here, one rank each.
const STAGES: u32 = 4;

/// Microbatches of its steps.
const MICROBATCHES: u32 = 3;

/// A booted machine with GPUs.
pub struct PackagedNode {
    /// Its GPUs.
    pub machine: Machine,
    /// Its Debian.
    pub debian: Container,
    _directory: TempDir,
}

impl PackagedNode {
    /// Boots a machine on which the driver is installed, and pfo is not; or says why that is skipped.
    #[must_use]
    pub fn boot(debian: Debian) -> Option<Self> {
        Self::boot_with_gpus(debian, MachineSetup::default().gpus)
    }

    /// As [`boot`](Self::boot), with these GPUs.
    #[must_use]
    pub fn boot_with_gpus(debian: Debian, gpus: &'static str) -> Option<Self> {
        let node = Self::boot_machine(debian, &MachineSetup { gpus, ..MachineSetup::default() })?;
        node.install_driver();
        Some(node)
    }

    /// As [`boot`](Self::boot), without the driver.
    #[must_use]
    pub fn without_driver(debian: Debian) -> Option<Self> {
        Self::boot_machine(debian, &MachineSetup::default())
    }

    fn boot_machine(debian: Debian, setup: &MachineSetup) -> Option<Self> {
        let directory = tempfile::Builder::new().prefix("pfo-test-").tempdir().unwrap();
        let machine = Machine::create(directory.path(), setup);
        machine.install_library();
        let mounts = [(machine.state(), GPUS), (&machine.devices(), DEVICES)];
        let debian = Container::boot_with(debian, &mounts)?;
        Some(Self { machine, debian, _directory: directory })
    }

    /// Installs the driver.
    pub fn install_driver(&self) {
        let link = format!(
            "ln -s {PROGRAMS}/libnvidia_ml.so /usr/lib/{LIBRARY} && ln -s {DEVICES}/nvidia* /dev/"
        );
        self.debian.run(&link).printed();
    }

    /// Makes a file reachable inside, under this name; returns its path there.
    fn bring(&self, file: &Path, name: &str) -> String {
        fs::copy(file, self.debian.shared().join(name)).unwrap();
        format!("/shared/{name}")
    }

    /// Installs packages of `make deb`, which are then in `/shared/NAME.deb`, too.
    pub fn install(&self, packages: &[&str]) {
        let bring = |package: &&str| self.bring(&built_deb(package), &format!("{package}.deb"));
        let paths: Vec<_> = packages.iter().map(bring).collect();
        self.debian.run(&format!("dpkg --install {}", paths.join(" "))).printed();
    }

    /// Runs `rpm`, which knows nothing of what dpkg has installed.
    pub fn rpm(&self, arguments: &str) -> Ran {
        // Debian 12 wants to be asked twice, Debian 13 does not know the question.
        let force = "$(rpm --help | grep --only-matching -- --force-debian)";
        self.debian.run(&format!("rpm {force} --nodeps {arguments}"))
    }

    /// Installs packages of `make rpm`.
    pub fn install_rpms(&self, packages: &[&str]) {
        let bring = |package: &&str| self.bring(&built_rpm(package), &format!("{package}.rpm"));
        let paths: Vec<_> = packages.iter().map(bring).collect();
        self.rpm(&format!("--install {}", paths.join(" "))).printed();
    }

    /// Adds alice, who may train, carol, who administers, and mallory, who may do nothing.
    pub fn add_users(&self) {
        let add =
            "useradd --groups pfo alice && useradd --groups pfo-admin carol && useradd mallory";
        self.debian.run(add).printed();
    }

    /// Checks that both daemons serve whom they should, through sockets that only they can open.
    pub fn assert_serves(&self) {
        let debian = &self.debian;
        for (asked, answer) in [("is-active", "active\n"), ("is-enabled", "enabled\n")] {
            let units = debian.run(&format!("systemctl {asked} {UNITS}")).stdout;
            assert_eq!(units, answer.repeat(UNIT_COUNT));
        }
        let sockets = debian.run("stat --format='%n %U:%G %a' /run/pfo/*.sock").printed();
        assert_eq!(sockets, SOCKETS);
        for user in ["alice", "carol", "root"] {
            let status = debian.run_as(user, "pfoctl status").printed();
            assert!(status.contains("A40"), "{user} sees {status}");
            debian.run_as(user, "pfoctl profile list").printed();
        }
        for command in ["pfoctl status", "pfoctl profile list"] {
            let refused = debian.run_as("mallory", command);
            assert!(refused.code != Some(0) && refused.stderr.contains("pfo"), "{refused:?}");
        }
        assert_eq!(debian.run_as("alice", "pfoctl clocks reset --all").code, Some(4));
        debian.run_as("carol", "pfoctl clocks reset --all").printed();
    }

    /// The daemon's process.
    #[must_use]
    pub fn daemon(&self) -> String {
        self.debian.run("systemctl show --property=MainPID pfod.service").printed()
    }

    /// What must not change at an upgrade: the sockets, what an administrator has written, and the
    /// sessions of the training.
    #[must_use]
    pub fn lasting(&self) -> (String, Vec<Value>) {
        let system = "stat --format='%i %U:%G %a' /run/pfo/*.sock; cat /etc/pfo/pfod.toml; \
                      systemctl show --property=ActiveEnterTimestampMonotonic pfod.socket; \
                      systemctl is-enabled pfod-admin.socket";
        let status = self.debian.pfo_status();
        let ranks = status["jobs"][0]["ranks"].as_array().unwrap();
        let sessions = ranks.iter().map(|rank| rank["session"].clone()).collect();
        (self.debian.run(system).stdout, sessions)
    }

    /// Starts a training as a user, in the unit of that name, and waits until it has locked every GPU.
    pub fn train(&self, job: &str, user: &str) {
        let train = format!(
            "{PROGRAMS}/pfo-sim-trainer launch --time-scale 0.02 --job {job} --steps 0 \
             --stages {STAGES} --microbatches {MICROBATCHES}"
        );
        self.debian.run(&format!("systemd-run --unit={job} --uid={user} {train}")).printed();
        let plan = TestPlan::distinct(STAGES, MICROBATCHES, 900).to_json();
        fs::write(self.debian.shared().join("plan.json"), plan).unwrap();
        wait::until_ok("the job runs a plan", || {
            let swap = format!("pfoctl plan swap {job} /shared/plan.json --wait");
            let ran = self.debian.run_as(user, &swap);
            if ran.code == Some(0) { Ok(()) } else { Err(ran.stderr) }
        });
        self.until_locked();
    }

    /// Builds the example trainer as `/shared/trainer`, against the packages of `make deb`.
    pub fn build_trainer(&self) {
        let tree = self.debian.shared().join("dev");
        for package in ["libpfo0", "libpfo-dev"] {
            here(Command::new("dpkg-deb").arg("--extract").arg(built_deb(package)).arg(&tree));
        }
        let pkg_config = here(Command::new("sh").current_dir(&tree).args([
            "-c",
            "PKG_CONFIG_PATH=$(echo usr/lib/*/pkgconfig) PKG_CONFIG_SYSROOT_DIR=$PWD \
             PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1 \
             pkg-config --cflags --libs pfo",
        ]));
        let source = programs::source_root().join("shim/examples/c/trainer.c");
        let trainer = self.debian.shared().join("trainer");
        let flags = pkg_config.split_whitespace();
        here(Command::new("cc").arg(source).args(flags).arg("-o").arg(&trainer));
    }

    /// Runs the example trainer, built as `/shared/trainer`, as a user and with this environment.
    pub fn train_in_c(&self, user: &str, environment: &str) -> Ran {
        let gpu = self.machine.uuid(0);
        let rank = format!("PFO_JOB=c PFO_GPU={gpu} RANK=0 WORLD_SIZE=1");
        self.debian.run_as(user, &format!("{rank} {environment} /shared/trainer 3 4"))
    }

    /// Waits until pfo has locked every GPU.
    pub fn until_locked(&self) {
        let gpus = self.machine.gpu_count();
        wait::until_is("GPUs are locked", &gpus, || {
            (0..gpus).filter(|gpu| self.machine.sm_lock(*gpu).is_some()).count()
        });
    }

    /// How many GPUs the ledger says are locked.
    #[must_use]
    pub fn ledger_entries(&self) -> usize {
        let Ok(bytes) = fs::read(self.debian.file(LEDGER)) else { return 0 };
        let ledger: Value = serde_json::from_slice(&bytes).unwrap();
        ledger["entries"].as_array().unwrap().len()
    }

    /// Waits until the ledger is empty and nothing is locked.
    pub fn assert_nothing_locked(&self) {
        wait::until_is("the ledger names no lock", &0, || self.ledger_entries());
        self.machine.assert_locks_are(&[]);
    }
}

impl Drop for PackagedNode {
    fn drop(&mut self) {
        // A daemon that hangs in a simulated driver would keep the container from powering off.
        self.machine.clear_faults();
    }
}

/// Runs a command on this machine, not inside; returns what it printed.
pub(crate) fn here(command: &mut Command) -> String {
    Ran::from(command.output().unwrap()).printed()
}

/// A package of `make deb`.
#[must_use]
pub fn built_deb(package: &str) -> PathBuf {
    built("debian", &format!("{package}_{VERSION}-1_"), "deb")
}

/// A package of `make rpm`.
#[must_use]
pub fn built_rpm(package: &str) -> PathBuf {
    built("rpm", &format!("{package}-{VERSION}-1."), "rpm")
}

fn built(format: &str, start: &str, extension: &str) -> PathBuf {
    let directory = programs::source_root().join("target").join(format);
    let wanted = |name: &str| name.starts_with(start) && name.ends_with(extension);
    let files = fs::read_dir(&directory).into_iter().flatten();
    let mut paths = files.map(|entry| entry.unwrap().path());
    paths.find(|path| wanted(path.file_name().unwrap().to_str().unwrap())).unwrap_or_else(|| {
        panic!(
            "there is no {start}*.{extension} in {}: run `make test-booted`",
            directory.display()
        )
    })
}

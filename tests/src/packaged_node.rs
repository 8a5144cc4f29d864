//! A booted Debian with simulated GPUs: what is installed in it is a package's, unchanged.
//!
//! Its units need no setting for tests. The GPUs are where the simulated driver looks by itself, and the
//! driver is a library that is installed, or not yet.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::container::Container;
use crate::debian::{Debian, PROGRAMS};
use crate::machine::{LIBRARY, Machine, MachineSetup};
use crate::plan::TestPlan;
use crate::programs;
use crate::wait;

/// Where the simulated driver looks for its GPUs.
const GPUS: &str = "/dev/shm/pfo-sim.state";

/// The ledger of the packaged daemon.
const LEDGER: &str = "/run/pfo/ledger.json";

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
        let node = Self::without_driver(debian)?;
        node.install_driver();
        Some(node)
    }

    /// As [`boot`](Self::boot), without the driver.
    #[must_use]
    pub fn without_driver(debian: Debian) -> Option<Self> {
        let directory = tempfile::Builder::new().prefix("pfo-test-").tempdir().unwrap();
        let machine = Machine::create(directory.path(), &MachineSetup::default());
        machine.install_library();
        let debian = Container::boot_with(debian, &[(machine.state(), GPUS)])?;
        Some(Self { machine, debian, _directory: directory })
    }

    /// Installs the driver.
    pub fn install_driver(&self) {
        let link = format!("ln -s {PROGRAMS}/libnvidia_ml.so /usr/lib/{LIBRARY}");
        self.debian.run(&link).printed();
    }

    /// Makes a package of `make deb` reachable inside; returns its path there.
    #[must_use]
    pub fn bring(&self, package: &str) -> String {
        let name = package.to_owned() + ".deb";
        fs::copy(built(package), self.debian.shared().join(&name)).unwrap();
        format!("/shared/{name}")
    }

    /// Installs packages of `make deb`.
    pub fn install(&self, packages: &[&str]) {
        let paths: Vec<_> = packages.iter().map(|package| self.bring(package)).collect();
        self.debian.run(&format!("dpkg --install {}", paths.join(" "))).printed();
    }

    /// Adds a user.
    pub fn add_user(&self, name: &str, groups: &str) {
        self.debian.run(&format!("useradd --groups '{groups}' {name}")).printed();
    }

    /// Starts a training as a user, in the unit of that name, and waits until it has locked every GPU.
    pub fn train(&self, job: &str, user: &str) {
        let train = format!(
            "{PROGRAMS}/pfo-sim-trainer launch --time-scale 0.02 --job {job} --steps 0 \
             --stages {STAGES} --microbatches {MICROBATCHES}"
        );
        self.debian.run(&format!("systemd-run --unit={job} --uid={user} {train}")).printed();
        let plan = TestPlan::distinct(STAGES, MICROBATCHES, 600).to_json();
        fs::write(self.debian.shared().join("plan.json"), plan).unwrap();
        wait::until_ok("the job runs a plan", || {
            let swap = format!("pfoctl plan swap {job} /shared/plan.json --wait");
            let ran = self.debian.run_as(user, &swap);
            if ran.code == Some(0) { Ok(()) } else { Err(ran.stderr) }
        });
        self.until_locked();
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

/// A package of `make deb`, by its name without version.
#[must_use]
pub fn built(package: &str) -> PathBuf {
    let directory = programs::source_root().join("target/debian");
    let start = format!("{package}_");
    let named = |path: &PathBuf| {
        path.file_name().unwrap().to_str().unwrap().starts_with(&start)
            && path.extension() == Some("deb".as_ref())
    };
    let files = |directory: &Path| fs::read_dir(directory).ok().into_iter().flatten();
    let mut paths = files(&directory).map(|entry| entry.unwrap().path());
    paths.find(named).unwrap_or_else(|| {
        panic!("there is no {start}*.deb in {}: run `make deb`", directory.display())
    })
}

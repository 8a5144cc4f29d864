//! A simulated machine for one test.
//!
//! The driver library takes its state file from the environment and has one state per process, so
//! each test runs once more in a process of its own, with a machine of its own: [`test_on`]. From
//! there it can start further processes of itself in other roles.
use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvidia_ml::driver::Driver;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

const ROLE: &str = "PFO_SIM_TEST_ROLE";
const TEST: &str = "PFO_SIM_TEST";
const PROGRAM: &str = env!("CARGO_BIN_EXE_pfo-sim");

/// The machine of a test.
pub(crate) struct Machine {
    test: String,
    pub(crate) state: PathBuf,
}

/// What a process of a test is there for.
pub(crate) enum Role {
    /// The test itself.
    Main,
    /// Something that the test started.
    Other,
}

/// Runs `body` in a process with a machine made by `pfo-sim create` with these arguments.
pub(crate) fn test_on(create: &[&str], body: impl FnOnce(&Machine, Role)) {
    let name = std::thread::current().name().expect("tests have names").to_owned();
    if env::var_os(TEST).is_some() {
        let machine = Machine { test: name, state: nvidia_ml::state_path() };
        let role = env::var_os(ROLE).map_or(Role::Main, |_| Role::Other);
        return body(&machine, role);
    }
    let directory = tempfile::tempdir().expect("a directory for the machine");
    let state = directory.path().join("state");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).unwrap();
    let created =
        Command::new(PROGRAM).arg("create").args(create).arg("--state").arg(&state).status();
    assert!(created.expect("pfo-sim runs").success());
    let status = again(&name).env(TEST, "1").env("PFO_SIM_STATE", &state).status();
    assert!(status.expect("the test runs").success(), "the test failed in its own process");
}

fn again(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("the test's own path"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command
}

/// The simulated library, as cargo built it.
pub(crate) fn library() -> PathBuf {
    Path::new(PROGRAM).with_file_name("libnvidia_ml.so")
}

/// A directory with the library under the name that NVML's users load.
pub(crate) fn library_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    symlink(library(), directory.path().join("libnvidia-ml.so.1")).unwrap();
    directory
}

impl Machine {
    /// The driver library through its unchanged Rust wrapper.
    pub(crate) fn nvml(&self) -> Nvml {
        self.try_nvml().expect("the library loads")
    }

    /// As [`nvml`](Self::nvml), where NVML may refuse.
    pub(crate) fn try_nvml(&self) -> Result<Nvml, NvmlError> {
        assert_eq!(self.state, nvidia_ml::state_path(), "the library finds another machine");
        Nvml::builder().lib_path(library().as_os_str()).init()
    }

    /// The hardware behind it.
    pub(crate) fn driver(&self) -> Arc<Driver> {
        Arc::new(Driver::open(&self.state).expect("the machine is there"))
    }

    /// This test in another role, to be started.
    pub(crate) fn role(&self, role: &str) -> Command {
        let mut command = again(&self.test);
        command.env(ROLE, role).stdin(Stdio::null());
        command
    }

    /// Starts another role and waits until it says `ready`.
    pub(crate) fn start(&self, role: &str) -> Running {
        let mut child = self.role(role).stdout(Stdio::piped()).spawn().expect("the role starts");
        let output = BufReader::new(child.stdout.take().unwrap());
        let is_ready = output.lines().map_while(Result::ok).any(|line| line.ends_with("ready"));
        assert!(is_ready, "role {role} did not get ready");
        Running(child)
    }

    /// `pfo-sim` on this machine.
    pub(crate) fn pfo_sim<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Output {
        let output = Command::new(PROGRAM)
            .args(arguments)
            .env("PFO_SIM_STATE", &self.state)
            .output()
            .expect("pfo-sim runs");
        if !output.status.success() {
            eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        }
        output
    }
}

/// Says that a role is ready.
pub(crate) fn ready() {
    println!("ready");
}

/// A process of the test, killed when this is dropped.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// SIGKILL; the zombie stays until this is dropped.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until something holds; fails if it takes more than ten seconds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

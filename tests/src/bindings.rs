//! The GPUs as NVIDIA's own Python bindings see them: what shows that no clock stays locked must not
//! be our code.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde::Deserialize;

use crate::machine::Machine;
use crate::programs;
use crate::skip;

/// The Python with the bindings, unless it is found beside the sources or on the path.
const VARIABLE: &str = "PFO_PYTHON";

/// What the bindings tell of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Reading {
    /// The SM clock now.
    pub sm_mhz: u32,
    /// The lowest that the GPU supports: what it idles at when nobody locked it.
    pub lowest_sm_mhz: u32,
    /// The highest: what it computes at when nobody locked it.
    pub highest_sm_mhz: u32,
    /// The memory clock now.
    pub memory_mhz: u32,
    /// The highest.
    pub highest_memory_mhz: u32,
    /// The power limit.
    pub power_limit_mw: u32,
    /// What it is when nobody set one.
    pub default_power_limit_mw: u32,
    /// The energy counter.
    pub energy_mj: u64,
}

/// A Python that has the bindings.
fn python() -> Option<&'static PathBuf> {
    static PYTHON: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let own = programs::source_root().join(".venv/bin/python");
        let named = env::var_os(VARIABLE).map(PathBuf::from);
        let has_bindings = |python: &PathBuf| {
            let mut command = Command::new(python);
            command.args(["-c", "import pynvml"]).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        let found = named.into_iter().chain([own, "python3".into()]).find(has_bindings);
        if found.is_none() {
            skip::say_skipped(
                "reading the GPUs by NVIDIA's bindings, so our own simulator has to be believed: no \
                 Python has them (`pip install nvidia-ml-py`; PFO_PYTHON names the Python)",
            );
        }
        found
    };
    PYTHON.get_or_init(find).as_ref()
}

/// NVIDIA's bindings on a simulated machine.
pub struct Bindings<'m>(&'m Machine);

impl<'m> Bindings<'m> {
    /// The bindings, or none where they are not installed.
    pub fn on(machine: &'m Machine) -> Option<Self> {
        python().map(|_| Self(machine))
    }

    fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(python().unwrap());
        command
            .args(["-c", include_str!("bindings.py")])
            .args(arguments)
            .env("LD_LIBRARY_PATH", self.0.library_directory())
            .env("PFO_SIM_STATE", self.0.state());
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "NVIDIA's bindings fail: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Every GPU as it is now.
    #[must_use]
    pub fn read(&self) -> Vec<Reading> {
        serde_json::from_str(&self.run(&["read"])).unwrap()
    }

    /// Locks the SM clock of a GPU, as any tool of an administrator may.
    pub fn lock(&self, gpu: usize, mhz: u32) {
        self.run(&["lock", &gpu.to_string(), &mhz.to_string()]);
    }
}

//! pfo in a booted Debian as `make install` leaves it: the units of the source tree, the programs under
//! test, and the simulated GPUs in the place of the driver.

use std::fs;

use serde_json::Value;

use crate::container::Container;
use crate::debian::PROGRAMS;
use crate::packaged_node::{DEVICES, UNITS};
use crate::programs;

/// `MESSAGE_ID` of a lease that is given.
const LEASED: &str = "68a35a0d90d845e5859f688b637bab95";

/// Where the dynamic linker finds it.
const LIBRARY: &str = "/usr/lib/libnvidia-ml.so.1";

impl Container {
    /// Installs pfo with simulated GPUs, as `pfo-sim create --gpus` takes them, and starts it.
    pub fn install_pfo(&self, gpus: &str) {
        let units = self.shared().join("systemd");
        fs::create_dir(&units).unwrap();
        for file in fs::read_dir(programs::source_root().join("systemd")).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), units.join(file.file_name())).unwrap();
        }
        let script = format!(
            "set -e
            cp /shared/systemd/*.service /shared/systemd/*.socket /etc/systemd/system
            ln -s {PROGRAMS}/pfod {PROGRAMS}/pfo-agent /usr/sbin
            ln -s {PROGRAMS}/pfoctl {PROGRAMS}/pfo-sim {PROGRAMS}/pfo-sim-trainer /usr/bin
            ln -s {PROGRAMS}/libnvidia_ml.so {LIBRARY} && ldconfig
            systemd-sysusers /shared/systemd/pfod.sysusers
            systemd-tmpfiles --create /shared/systemd/pfod.tmpfiles
            pfo-sim create --gpus {gpus}
            ln -s {DEVICES}/nvidia* /dev/
            systemctl daemon-reload
            systemctl enable --now {UNITS}"
        );
        self.run(&script).printed();
    }

    /// What `pfoctl status` says.
    #[must_use]
    pub fn pfo_status(&self) -> Value {
        self.run("pfoctl status --json").json()
    }

    /// The entries of the journal about the leases that a job was given so far.
    #[must_use]
    pub fn leases(&self, job: &str) -> Vec<Value> {
        let entries = self.journal(&format!("--output=json MESSAGE_ID={LEASED}"));
        let entries = entries.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        entries.filter(|entry| entry["PFO_JOB"] == job).collect()
    }

    /// What the simulated hardware knows of its GPUs, with every call that locked a clock.
    #[must_use]
    pub fn simulated_gpus(&self) -> Vec<Value> {
        self.run("pfo-sim show --json --calls").json()["gpus"].as_array().unwrap().clone()
    }
}

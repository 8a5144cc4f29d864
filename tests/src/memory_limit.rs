//! The memory limit of a unit in a container to which the machine delegates none.
//!
//! Where a machine has its memory controller in the old hierarchy, the systemd of a container cannot
//! hold `MemoryMax=`. The same kernel does from outside.

use std::fs;
use std::path::{Path, PathBuf};

use pfo_protocol::Pid;

use crate::container::Container;
use crate::daemon::Program;
use crate::programs;

/// The old hierarchy of the memory controller.
const HIERARCHY: &str = "/sys/fs/cgroup/memory";

/// `MemoryMax=` of the unit of a program, in bytes.
#[must_use]
pub fn memory_max(program: Program) -> u64 {
    let unit = programs::source_root().join(format!("systemd/{}.service", program.name()));
    let unit = fs::read_to_string(unit).unwrap();
    let max = unit.lines().find_map(|line| line.strip_prefix("MemoryMax=")).unwrap();
    max.trim_end_matches('M').parse::<u64>().unwrap() << 20
}

/// A limit that holds for a unit's process until this is dropped.
#[derive(Debug)]
pub struct MemoryLimit {
    /// None where the container's own systemd holds the limit.
    group: Option<PathBuf>,
    bytes: u64,
}

impl MemoryLimit {
    /// Holds `MemoryMax=` of a unit of the container for its main process.
    #[must_use]
    pub fn of(container: &Container, unit: &str) -> Self {
        let show = |property: &str| -> u64 {
            let show = format!("systemctl show --property={property} --value {unit}");
            container.run(&show).printed().trim().parse().unwrap()
        };
        let (bytes, pid) = (show("MemoryMax"), show("MainPID"));
        let controllers = container.run("cat /sys/fs/cgroup/cgroup.controllers").stdout;
        if controllers.split_whitespace().any(|controller| controller == "memory") {
            return Self { group: None, bytes };
        }
        Self::hold(Pid(container.outside(pid as u32).expect("a process that is there")), bytes)
    }

    /// Holds a limit for a process from now on, if this machine has the old hierarchy.
    #[must_use]
    pub fn hold(pid: Pid, bytes: u64) -> Self {
        let group = Path::new(HIERARCHY).join(format!("pfo-test-{pid}"));
        if !Path::new(HIERARCHY).join("memory.limit_in_bytes").exists() {
            return Self { group: None, bytes };
        }
        fs::create_dir(&group).unwrap();
        fs::write(group.join("memory.limit_in_bytes"), bytes.to_string()).unwrap();
        fs::write(group.join("cgroup.procs"), pid.to_string()).unwrap();
        Self { group: Some(group), bytes }
    }

    /// The limit, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The most that was taken so far, in bytes, if it is held from outside.
    #[must_use]
    pub fn most_used(&self) -> Option<u64> {
        let used = self.group.as_ref()?.join("memory.max_usage_in_bytes");
        fs::read_to_string(used).ok()?.trim().parse().ok()
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        let Some(group) = &self.group else { return };
        let processes = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        for pid in processes.lines() {
            let _ = fs::write(Path::new(HIERARCHY).join("cgroup.procs"), pid);
        }
        let _ = fs::remove_dir(group);
    }
}

//! The identity of a process, distinct from a later process with the same number: while the daemon
//! runs, a descriptor identifies it; for the next daemon, the time of its start does.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pfo_protocol::{Pid, Uid};
use serde::{Deserialize, Serialize};

use crate::sys::pidfd_open;

/// The identity of a process within one boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessRecord {
    pid: Pid,
    /// In clock ticks since boot.
    started: u64,
}

/// A process that may have ended.
#[derive(Debug)]
pub struct Process {
    descriptor: OwnedFd,
    record: Option<ProcessRecord>,
}

impl Process {
    /// The process of a descriptor and its number.
    #[must_use]
    pub fn new(descriptor: OwnedFd, pid: Pid) -> Self {
        let started = started(pid);
        let process = Self { descriptor, record: None };
        // As long as the process lives, its number is not given again.
        let record =
            started.filter(|_| process.lives()).map(|started| ProcessRecord { pid, started });
        Self { record, ..process }
    }

    /// The process of a record, if it still lives.
    #[must_use]
    pub fn again(record: ProcessRecord) -> Option<Self> {
        let process = Self::new(pidfd_open(record.pid).ok()?, record.pid);
        (process.record == Some(record)).then_some(process)
    }

    /// How the next daemon identifies the process, if the kernel reported the time of its start.
    #[must_use]
    pub fn record(&self) -> Option<ProcessRecord> {
        self.record
    }

    /// Whether the process lives.
    #[must_use]
    pub fn lives(&self) -> bool {
        // A process descriptor becomes readable when the process ends.
        let descriptor = PollFd::new(self.descriptor.as_fd(), PollFlags::POLLIN);
        poll(&mut [descriptor], PollTimeout::ZERO) == Ok(0)
    }
}

/// The effective user of a process; `None` if it has ended.
#[must_use]
pub fn user_of(pid: Pid) -> Option<Uid> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|process| Uid(process.uid()))
}

fn started(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may have spaces and parentheses; the start is the 20th field after
    // it.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example_process::Running;

    #[test]
    fn a_process_is_found_again_while_it_lives() {
        let mut running = Running::start();
        let process = running.process();
        let record = process.record().unwrap();
        assert!(process.lives());
        assert_eq!(Process::again(record).unwrap().record(), Some(record));
        running.end();
        assert!(!process.lives());
        assert!(Process::again(record).is_none());
    }

    #[test]
    fn another_process_with_the_same_number_is_another_one() {
        let mut running = Running::start();
        let record = running.process().record().unwrap();
        let earlier = ProcessRecord { started: record.started - 1, ..record };
        assert!(Process::again(earlier).is_none());
        running.end();
    }
}

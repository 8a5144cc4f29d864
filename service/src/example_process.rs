//! A process for tests.

use std::process::{Child, Command, Stdio};

use pfo_protocol::Pid;

use crate::process::Process;
use crate::sys::pidfd_open;

/// A process that ends on demand.
pub struct Running(Child);

impl Running {
    /// Starts it.
    pub fn start() -> Self {
        Self(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    /// Its identity.
    pub fn process(&self) -> Process {
        let pid = Pid(self.0.id());
        Process::new(pidfd_open(pid).unwrap(), pid)
    }

    /// Ends it.
    pub fn end(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

//! A running daemon.

use std::process::{Command, ExitStatus};

use nix::sys::signal::Signal;

use crate::node::Node;
use crate::process::Process;
use crate::programs;

/// A daemon of one node.
#[derive(Debug)]
pub struct Daemon {
    /// Its process.
    pub process: Process,
}

impl Daemon {
    /// Starts one with further arguments.
    pub fn start(node: &Node, arguments: &[&str]) -> Self {
        let mut command = Self::command(node, arguments);
        Self { process: Process::start("pfod", node.directory(), &mut command) }
    }

    /// Asks it to stop, and waits for its end.
    pub fn stop(mut self) -> ExitStatus {
        self.process.signal(Signal::SIGTERM);
        self.process.wait()
    }

    fn command(node: &Node, arguments: &[&str]) -> Command {
        let mut command = Command::new(programs::program("pfod"));
        command
            .arg("--config")
            .arg(node.config())
            .args(arguments)
            .env("PFO_SIM_STATE", node.machine.state())
            .env_remove("JOURNAL_STREAM")
            .env_remove("NOTIFY_SOCKET")
            .env_remove("PFO_LOG")
            .env("NO_COLOR", "1");
        command
    }
}

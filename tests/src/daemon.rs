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
        let mut command = Command::new(programs::program("pfod"));
        command.env_remove("NOTIFY_SOCKET");
        Self::run(node, command.arg("--config").arg(node.config()).args(arguments))
    }

    /// Starts one through a command that runs its last arguments.
    pub fn start_under(node: &Node, mut command: Command) -> Self {
        Self::run(node, command.arg(programs::program("pfod")).arg("--config").arg(node.config()))
    }

    /// Asks it to stop, and waits for its end.
    pub fn stop(mut self) -> ExitStatus {
        self.process.signal(Signal::SIGTERM);
        self.process.wait()
    }

    fn run(node: &Node, command: &mut Command) -> Self {
        command
            .env("PFO_SIM_STATE", node.machine.state())
            .env_remove("JOURNAL_STREAM")
            .env_remove("PFO_LOG")
            .env("NO_COLOR", "1");
        Self { process: Process::start("pfod", node.directory(), command) }
    }
}

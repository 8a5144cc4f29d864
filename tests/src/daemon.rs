//! The two daemons of a node: pfod and pfo-agent.

use std::path::Path;
use std::process::{Command, ExitStatus};

use nix::sys::signal::Signal;

use crate::node::Node;
use crate::process::Process;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    /// The daemon that owns the GPUs.
    Pfod,
    /// The agent.
    PfoAgent,
}

impl Program {
    /// The name of its file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pfod => "pfod",
            Self::PfoAgent => "pfo-agent",
        }
    }

    /// A command that succeeds only if it answers.
    #[must_use]
    pub fn status_command(self) -> &'static str {
        match self {
            Self::Pfod => "pfoctl status",
            Self::PfoAgent => "pfoctl profile status",
        }
    }
}

/// A running pfod or pfo-agent of one node.
#[derive(Debug)]
pub struct Daemon {
    /// Its process.
    pub process: Process,
}

impl Daemon {
    /// Starts pfod with further arguments.
    pub fn start(node: &Node, arguments: &[&str]) -> Self {
        let mut command = node.command(Program::Pfod);
        command.env_remove("NOTIFY_SOCKET").arg("--config").arg(node.config()).args(arguments);
        Self::run(node, Program::Pfod, &mut command)
    }

    /// Starts pfod with further arguments, through a command that runs its last arguments.
    pub fn start_under(node: &Node, mut command: Command, arguments: &[&str]) -> Self {
        command.arg(node.program(Program::Pfod)).arg("--config").arg(node.config()).args(arguments);
        Self::run(node, Program::Pfod, &mut command)
    }

    /// Starts pfo-agent, with nothing of the driver in its environment.
    pub fn start_agent(node: &Node) -> Self {
        let mut command = node.command(Program::PfoAgent);
        command.env_remove("NOTIFY_SOCKET").arg("--config").arg(node.agent_config());
        Self::run(node, Program::PfoAgent, &mut command)
    }

    /// Asks it to stop, and waits for its end.
    pub fn stop(mut self) -> ExitStatus {
        self.process.signal(Signal::SIGTERM);
        self.process.wait()
    }

    fn run(node: &Node, program: Program, command: &mut Command) -> Self {
        command.env_remove("JOURNAL_STREAM").env_remove("PFO_LOG").env("NO_COLOR", "1");
        match program {
            Program::Pfod => command.env("PFO_SIM_STATE", node.machine.state()),
            Program::PfoAgent => command.env_remove("PFO_SIM_STATE"),
        };
        let directory: &Path = node.directory();
        Self { process: Process::start(program.name(), directory, command) }
    }
}

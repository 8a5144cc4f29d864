//! The command: run as if nobody looked, with its signals and its exit code.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::error::ObserveError;
use crate::signals::{self, SignalError};

/// Starts it in an environment. It inherits which signals are blocked: none may be yet.
pub(super) fn start(
    (program, arguments): (&OsStr, &[OsString]),
    environment: Vec<(&'static str, PathBuf)>,
) -> Result<Child, ObserveError> {
    let child = Command::new(program).args(arguments).envs(environment).spawn();
    let name = program.to_string_lossy().into_owned();
    child.map_err(|source| ObserveError::Start { name, source })
}

/// Passes on what of the signals that end this process comes to it. There must be no other thread yet.
pub(super) fn pass_signals(child: &Child) -> Result<(), SignalError> {
    let signals = signals::ending();
    signals::block(signals)?;
    let pid = Pid::from_raw(child.id().cast_signed());
    thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            // A terminal has sent Ctrl-C to the command, too.
            if signal != Signal::SIGINT || !io::stdin().is_terminal() {
                let _ = kill(pid, signal);
            }
        }
    });
    Ok(())
}

/// What a shell would say of how it ended.
pub(super) fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1)
}

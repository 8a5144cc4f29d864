//! A process that a test started, and that does not outlive it.

use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sys::signal::{self, Signal};
use pfo_protocol::Pid;

use crate::wait;

/// A running process with its output in files.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    output: PathBuf,
}

impl Process {
    /// Starts a command; what it prints goes to `DIRECTORY/NAME.out` and `.err`.
    pub fn start(name: &str, directory: &Path, command: &mut Command) -> Self {
        let output = directory.join(name);
        let file = |extension| {
            let options = File::options().create(true).append(true).to_owned();
            options.open(output.with_extension(extension)).unwrap()
        };
        let child = command.stdout(file("out")).stderr(file("err")).stdin(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        Self { name: name.to_owned(), child, output }
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        let ended = wait::until(|| self.ended().ok_or(()));
        ended.unwrap_or_else(|()| panic!("{} does not end\n{}", self.name, self.errors()))
    }

    /// Kills it without a warning, and waits for its end.
    pub fn kill(&mut self) {
        if self.ended().is_none() {
            self.signal(Signal::SIGKILL);
            assert_eq!(self.wait().signal(), Some(Signal::SIGKILL as i32));
        }
    }

    /// What it has printed.
    #[must_use]
    pub fn printed(&self) -> String {
        read(&self.output.with_extension("out"))
    }

    /// What it has complained about.
    #[must_use]
    pub fn errors(&self) -> String {
        read(&self.output.with_extension("err"))
    }
}

/// Sends a process a signal.
pub fn send(pid: Pid, signal: Signal) {
    signal::kill(nix::unistd::Pid::from_raw(pid.0.cast_signed()), signal).unwrap();
}

impl Drop for Process {
    fn drop(&mut self) {
        // Its own child: the number cannot belong to another process yet.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(path: &Path) -> String {
    match std::fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => panic!("cannot read {}: {error}", path.display()),
    }
}

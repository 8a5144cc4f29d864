//! The command: run as if nobody looked, with its signals and its exit code.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::unistd::Pid;
use signal_hook::flag::register_usize;

use super::error::ObserveError;
use crate::signals::{self, SignalError};

/// `si_code` of what the kernel sends by itself, as for Ctrl-C.
const SI_KERNEL: i32 = 0x80;

/// The signals that end this process, which this holds back.
pub(super) struct Signals {
    set: SigSet,
    arrivals: SignalFd,
    /// One that came while a program started; 0 is none.
    meanwhile: Arc<AtomicUsize>,
}

impl Signals {
    /// Holds them back. There must be no other thread yet.
    pub(super) fn hold_back() -> Result<Self, SignalError> {
        let set = signals::ending();
        signals::block(set)?;
        let arrivals =
            SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC).map_err(io::Error::from)?;
        let meanwhile = Arc::new(AtomicUsize::new(0));
        for signal in &set {
            let number = signal as i32;
            register_usize(number, Arc::clone(&meanwhile), number.unsigned_abs() as usize)?;
        }
        Ok(Self { set, arrivals, meanwhile })
    }

    /// Fails if one has arrived: the command has not started, and must not.
    pub(super) fn check(&self) -> Result<(), ObserveError> {
        let mut arrived = [PollFd::new(self.arrivals.as_fd(), PollFlags::POLLIN)];
        match (poll(&mut arrived, PollTimeout::ZERO), self.meanwhile.load(Relaxed)) {
            (Ok(0) | Err(_), 0) => Ok(()),
            _ => Err(ObserveError::Interrupted),
        }
    }

    /// Starts a program, which inherits what is held back: nothing.
    pub(super) fn start(&self, command: &mut Command) -> io::Result<Child> {
        self.set.thread_unblock()?;
        let child = command.spawn();
        self.set.thread_block()?;
        child
    }

    /// Passes them on to the command until it has ended.
    pub(super) fn pass_to(self, child: &Child) -> Arc<AtomicBool> {
        let ended = Arc::new(AtomicBool::new(false));
        let (pid, until) = (Pid::from_raw(child.id().cast_signed()), Arc::clone(&ended));
        if let Ok(signal) = Signal::try_from(self.meanwhile.load(Relaxed) as i32) {
            let _ = kill(pid, signal);
        }
        thread::spawn(move || {
            while let Ok(Some(arrived)) = self.arrivals.read_signal() {
                if let Some(signal) = passed_on(&arrived).filter(|_| !until.load(Relaxed)) {
                    let _ = kill(pid, signal);
                }
            }
        });
        ended
    }
}

/// What the command does not get by itself: a terminal sends Ctrl-C and its end to the command, too.
fn passed_on(arrived: &siginfo) -> Option<Signal> {
    let signal = Signal::try_from(arrived.ssi_signo.cast_signed()).ok()?;
    (arrived.ssi_code != SI_KERNEL).then_some(signal)
}

/// Starts it in an environment.
pub(super) fn start(
    (program, arguments): (&OsStr, &[OsString]),
    environment: Vec<(&'static str, PathBuf)>,
    signals: &Signals,
) -> Result<Child, ObserveError> {
    let child = signals.start(Command::new(program).args(arguments).envs(environment));
    let name = program.to_string_lossy().into_owned();
    child.map_err(|source| ObserveError::Start { name, source })
}

/// What a shell would say of how it ended.
pub(super) fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1)
}

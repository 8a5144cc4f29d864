//! Signals while a tune is watched. The tune does not end with this process: Ctrl-C asks what is to become
//! of it, and a lost terminal leaves it running.

use std::io::{IsTerminal, Write, stderr, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::thread;

use nix::sys::signal::Signal;
use pfo_protocol::JobName;

use crate::exit::Exit;
use crate::signals::{self, SignalError};

/// What is to become of a tune.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parting {
    Stop,
    Leave,
}

/// The signal that has come, if any.
pub(super) struct Leaving(Arc<AtomicI32>);

impl Leaving {
    /// From here on no signal ends the process at once, but a second one does. Threads that start later
    /// take part; there must not be any yet.
    pub(super) fn prepare() -> Result<Self, SignalError> {
        let signals = signals::ending();
        signals::block(signals)?;
        let come = Arc::new(AtomicI32::new(0));
        let taken = Arc::clone(&come);
        thread::spawn(move || {
            if let Ok(signal) = signals.wait() {
                taken.store(signal as i32, SeqCst);
            }
            if signals.wait().is_ok() {
                std::process::exit(Exit::Interrupted as i32);
            }
        });
        Ok(Self(come))
    }

    /// Whether a signal has come.
    pub(super) fn has_come(&self) -> bool {
        self.0.load(SeqCst) != 0
    }

    /// What is to become of the tune; none if no signal has come. Asks the person at the terminal, so nothing may
    /// be drawn there meanwhile.
    pub(super) fn parting(&self, job: &JobName) -> Option<Parting> {
        let signal = Signal::try_from(self.0.load(SeqCst)).ok()?;
        let is_terminal = stdin().is_terminal() && stderr().is_terminal();
        Some(match signal {
            Signal::SIGHUP => Parting::Leave,
            Signal::SIGINT if is_terminal => asked(job),
            _ => Parting::Stop,
        })
    }
}

/// Asks the person at the terminal. If there is no answer any more, the tune is left running.
fn asked(job: &JobName) -> Parting {
    let question = format!(
        "\nStop tuning job {job} and return to default clocks, or leave it running? [stop/LEAVE] "
    );
    let mut answer = String::new();
    let is_asked = stderr().write_all(question.as_bytes()).and_then(|()| stderr().flush());
    if is_asked.is_err() || stdin().read_line(&mut answer).is_err() {
        return Parting::Leave;
    }
    of_answer(&answer)
}

fn of_answer(answer: &str) -> Parting {
    match answer.trim().to_lowercase().as_str() {
        "s" | "stop" => Parting::Stop,
        _ => Parting::Leave,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_says_stop_stops_it() {
        assert_eq!(["s\n", "STOP\n"].map(of_answer), [Parting::Stop; 2]);
        assert_eq!(["", "\n", "leave\n", "yes\n"].map(of_answer), [Parting::Leave; 4]);
    }
}

//! A long wait for the daemon: a spinner where somebody watches, and a Ctrl-C that says what it
//! does not stop.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};

use crate::error::Error;
use crate::exit::Exit;

/// How long a wait may be before it deserves a spinner, in milliseconds.
const SHORT_WAIT_MS: u16 = 1000;

/// A wait for something that goes on without us.
pub(crate) struct Waiting {
    interrupt: SigSet,
    spinner: ProgressBar,
}

impl Waiting {
    /// Holds Ctrl-C back, so that it cannot fall between the request and the wait. `what` is what
    /// the spinner will say.
    pub(crate) fn prepare(what: &str) -> Result<Self, Error> {
        let mut interrupt = SigSet::empty();
        interrupt.add(Signal::SIGINT);
        // Threads that start later inherit this.
        interrupt.thread_block().map_err(Error::Signals)?;
        let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
            .with_style(ProgressStyle::default_spinner())
            .with_message(what.to_owned());
        Ok(Self { interrupt, spinner })
    }

    /// From here on Ctrl-C says `goes_on` and ends the process. Returns when the answer begins to
    /// arrive or the wait has become a long one; the spinner turns from then on. It draws nothing
    /// where standard error is no terminal.
    pub(crate) fn begin(&self, answer: &UnixStream, goes_on: String) {
        let spinner = self.spinner.clone();
        let interrupt = self.interrupt;
        // Taken by a thread, the signal needs no handler, nor obeys a handler's restrictions.
        std::thread::spawn(move || {
            if interrupt.wait().is_ok() {
                spinner.finish_and_clear();
                let _ = writeln!(std::io::stderr(), "pfoctl: {goes_on}");
                std::process::exit(Exit::Interrupted as i32);
            }
        });
        let mut answer = [PollFd::new(answer.as_fd(), PollFlags::POLLIN)];
        // An error shows again when the answer is read.
        if let Ok(0) = poll(&mut answer, PollTimeout::from(SHORT_WAIT_MS)) {
            self.spinner.set_draw_target(ProgressDrawTarget::stderr());
            self.spinner.enable_steady_tick(Duration::from_millis(100));
        }
    }

    /// The answer is there.
    pub(crate) fn end(self) {
        self.spinner.finish_and_clear();
    }
}

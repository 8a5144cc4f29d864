//! A long wait for a daemon: a spinner on a terminal, and a Ctrl-C that says what continues.

use std::io::Write;
use std::os::fd::AsFd;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use interprocess::os::unix::uds_local_socket::Stream;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};

use crate::exit::Exit;
use crate::signals::{self, SignalError};

/// How long a wait may be before it deserves a spinner, in milliseconds.
const SHORT_WAIT_MS: u16 = 1000;

/// A wait for something that continues without us.
pub(crate) struct Waiting {
    interrupt: SigSet,
    spinner: ProgressBar,
}

impl Waiting {
    /// Holds Ctrl-C back, so that it cannot fall between the request and the wait. `what` is what
    /// the spinner will say.
    pub(crate) fn prepare(what: &str) -> Result<Self, SignalError> {
        let mut interrupt = SigSet::empty();
        interrupt.add(Signal::SIGINT);
        signals::block(interrupt)?;
        let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
            .with_style(ProgressStyle::default_spinner())
            .with_message(what.to_owned());
        Ok(Self { interrupt, spinner })
    }

    /// From here on Ctrl-C prints `continues` and ends the process. Returns when the answer begins
    /// to arrive or the wait has become a long one; the spinner turns from then on. It draws
    /// nothing where standard error is no terminal.
    pub(crate) fn begin(&self, answer: &Stream, continues: String) {
        let spinner = self.spinner.clone();
        let interrupt = self.interrupt;
        std::thread::spawn(move || {
            if interrupt.wait().is_ok() {
                spinner.finish_and_clear();
                let _ = writeln!(std::io::stderr(), "pfoctl: {continues}");
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

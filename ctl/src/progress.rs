//! A bar on a terminal for what takes longer than a second, and elsewhere a line now and then for
//! what takes longer than a minute.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::status::quantity::span;

const PATIENCE: Duration = Duration::from_secs(1);
const REDRAWN_EVERY: Duration = Duration::from_millis(100);
const STEPS: u64 = 1000;

/// How often a line is printed where standard error is no terminal, such as the log of a batch job.
const PRINTED_EVERY: Duration = Duration::from_secs(60);

/// Shows nothing in the first second, and where standard error is no terminal in the first minute.
pub(crate) struct Progress {
    bar: ProgressBar,
    work: Option<Sender<()>>,
    patience: Option<JoinHandle<()>>,
}

impl Progress {
    /// A bar for what is being done until this is dropped, such as `writing plans`.
    pub(crate) fn new(what: &'static str) -> Self {
        let style = ProgressStyle::with_template("{msg} {wide_bar} {percent} % {elapsed}");
        let bar = ProgressBar::with_draw_target(Some(STEPS), ProgressDrawTarget::hidden())
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
            .with_message(what);
        let (work, is_done) = channel::<()>();
        let shown = bar.clone();
        let patience = thread::spawn(move || {
            if !stderr().is_terminal() {
                print_until(&is_done, &shown);
            } else if is_done.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                shown.set_draw_target(ProgressDrawTarget::stderr());
                shown.enable_steady_tick(REDRAWN_EVERY);
            }
        });
        Self { bar, work: Some(work), patience: Some(patience) }
    }

    /// How much is done, from 0 to 1.
    pub(crate) fn show(&self, done: f64) {
        self.bar.set_position((done * STEPS as f64) as u64);
    }

    /// What is being done now.
    pub(crate) fn now(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Prints a line above the bar. A reader that is gone is no error.
    pub(crate) fn tell(&self, line: &str) {
        self.bar.suspend(|| {
            let _ = writeln!(stderr(), "{line}");
        });
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.work.take());
        if let Some(patience) = self.patience.take() {
            let _ = patience.join();
        }
        self.bar.finish_and_clear();
    }
}

fn print_until(is_done: &Receiver<()>, bar: &ProgressBar) {
    while is_done.recv_timeout(PRINTED_EVERY) == Err(RecvTimeoutError::Timeout) {
        let line = line(&bar.message(), bar.position(), bar.elapsed());
        // A reader that is gone is no error.
        let _ = writeln!(stderr(), "pfoctl: {line}");
    }
}

fn line(what: &str, done: u64, elapsed: Duration) -> String {
    let elapsed = span(elapsed.as_secs_f64());
    match done * 100 / STEPS {
        0 => format!("{what} for {elapsed}"),
        percent => format!("{what}, {percent} % after {elapsed}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_done_and_how_much_of_it() {
        let after = Duration::from_secs(130);
        assert_eq!(line("calibrating", 0, after), "calibrating for 2 min 10 s");
        assert_eq!(line("turn 4 of 8", 385, after), "turn 4 of 8, 38 % after 2 min 10 s");
    }
}

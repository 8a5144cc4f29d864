//! A bar on a terminal for what takes longer than a second.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const PATIENCE: Duration = Duration::from_secs(1);
const REDRAWN_EVERY: Duration = Duration::from_millis(100);
const STEPS: u64 = 1000;

/// Shows nothing in the first second, and nothing where standard error is no terminal.
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
            if is_done.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
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
            let _ = writeln!(std::io::stderr(), "{line}");
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

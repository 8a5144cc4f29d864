//! A bar on a terminal for what takes longer than a second.

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

const PATIENCE: Duration = Duration::from_secs(1);
const STEPS: u64 = 1000;

/// Shows nothing before its time, and nothing at all where nobody watches.
pub(super) struct Progress {
    began: Instant,
    is_watched: bool,
    bar: OnceLock<ProgressBar>,
}

impl Progress {
    pub(super) fn new() -> Self {
        let is_watched = std::io::stderr().is_terminal();
        Self { began: Instant::now(), is_watched, bar: OnceLock::new() }
    }

    /// Shows how much is done, from 0 to 1.
    pub(super) fn show(&self, done: f64) {
        if self.is_watched && self.began.elapsed() > PATIENCE {
            let bar = self.bar.get_or_init(|| {
                let style = ProgressStyle::with_template("{wide_bar} {percent} % {elapsed}");
                ProgressBar::new(STEPS)
                    .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
            });
            bar.set_position((done * STEPS as f64) as u64);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
    }
}

//! The progress of a sweep as a bar on a terminal, and what it waits for.

use pfo_protocol::{JobName, SweepState, SweepStatus};

use super::status::progress;
use crate::progress::Progress;
use crate::text::harmless;

/// The bar of one sweep, and what was printed above it last.
pub(crate) struct SweepBar {
    bar: Progress,
    said: Option<String>,
    is_announced: bool,
}

impl SweepBar {
    pub(crate) fn new() -> Self {
        Self { bar: Progress::new("sweeping"), said: None, is_announced: false }
    }

    /// Says once what the sweep does to the job.
    pub(crate) fn announce(&mut self, job: &JobName) {
        if !std::mem::replace(&mut self.is_announced, true) {
            self.bar.tell(&format!(
                "pfoctl: a sweep measures the profile of job {job} first; until it ends, steps take longer, the \
                 more the lower the clock"
            ));
        }
    }

    pub(crate) fn show(&mut self, sweep: &SweepStatus) {
        if let SweepState::Waiting { why } = &sweep.state
            && self.said.as_ref() != Some(why)
        {
            self.bar.tell(&format!("pfoctl: the sweep waits: {}", harmless(why)));
            self.said = Some(why.clone());
        }
        self.bar.show(f64::from(sweep.measured) / f64::from(sweep.clocks.max(1)));
        self.bar.now(progress(sweep));
    }

    pub(crate) fn bar(&self) -> &Progress {
        &self.bar
    }
}

//! The progress of a sweep as a bar on a terminal, and what it waits for.

use pfo_protocol::{SweepState, SweepStatus};

use super::status::progress;
use crate::progress::Progress;
use crate::text::harmless;

/// The bar of one sweep, and what was printed above it last.
pub(super) struct SweepBar {
    bar: Progress,
    said: Option<String>,
}

impl SweepBar {
    pub(super) fn new() -> Self {
        Self { bar: Progress::new("sweeping"), said: None }
    }

    pub(super) fn show(&mut self, sweep: &SweepStatus) {
        if let SweepState::Waiting { why } = &sweep.state
            && self.said.as_ref() != Some(why)
        {
            self.bar.tell(&format!("pfoctl: the sweep waits: {}", harmless(why)));
            self.said = Some(why.clone());
        }
        self.bar.show(f64::from(sweep.measured) / f64::from(sweep.clocks.max(1)));
        self.bar.now(progress(sweep));
    }

    pub(super) fn bar(&self) -> &Progress {
        &self.bar
    }
}

//! How far a sweep is, as a bar where somebody watches, and what it waits for.

use pfo_protocol::{SweepState, SweepStatus};

use super::status::progress;
use crate::progress::Progress;
use crate::text::harmless;

/// The bar of one sweep, and what was told above it last.
pub(super) struct SweepBar {
    bar: Progress,
    told: Option<String>,
}

impl SweepBar {
    pub(super) fn new() -> Self {
        Self { bar: Progress::new("sweeping"), told: None }
    }

    pub(super) fn show(&mut self, sweep: &SweepStatus) {
        if let SweepState::Waiting { why } = &sweep.state
            && self.told.as_ref() != Some(why)
        {
            self.bar.tell(&format!("pfoctl: {}; waiting for that", harmless(why)));
            self.told = Some(why.clone());
        }
        self.bar.show(f64::from(sweep.measured) / f64::from(sweep.clocks.max(1)));
        self.bar.now(progress(sweep));
    }

    pub(super) fn bar(&self) -> &Progress {
        &self.bar
    }
}

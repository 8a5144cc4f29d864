//! Waiting for the end of a sweep that continues only meanwhile: a program that waits may be
//! killed, and then the job returns to default clocks.

use std::sync::Arc;

use pfo_protocol::{Refusal, SweepStatus};
use tokio::runtime::Handle;

use crate::sweep::sweeps::{Attendant, Sweep};

/// A sweep that is paused when this is dropped, unless it is over by then or continues for another
/// else.
#[derive(Debug)]
pub(crate) struct Attended {
    sweep: Arc<Sweep>,
    attendant: Attendant,
    runtime: Handle,
}

impl Attended {
    /// Continues a sweep. To be called on the runtime, or on a thread of it.
    ///
    /// # Errors
    /// If it is over, or its state cannot be kept on disk.
    pub(super) fn begin(sweep: Arc<Sweep>) -> Result<Self, Refusal> {
        let attendant = sweep.attend()?;
        Ok(Self { sweep, attendant, runtime: Handle::current() })
    }

    /// Waits until the sweep is over or paused.
    pub(crate) async fn rest(&self) -> SweepStatus {
        self.sweep.rest().await
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        let (sweep, attendant) = (Arc::clone(&self.sweep), self.attendant);
        // A pause is written to disk.
        self.runtime.spawn_blocking(move || sweep.leave(attendant));
    }
}

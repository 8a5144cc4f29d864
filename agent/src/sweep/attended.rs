//! Waiting for the end of a sweep that goes on only meanwhile: whoever waits may be killed, and then the
//! job is to be at default clocks again.

use std::sync::Arc;
use std::time::Duration;

use pfo_protocol::{Refusal, SweepStatus};
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::node::Node;
use crate::sweep::sweeps::{Attendant, Sweep};

/// How often to look whether it is over.
const POLL: Duration = Duration::from_millis(50);

/// A sweep that is paused when this is dropped, unless it is over by then or goes on for somebody else.
#[derive(Debug)]
pub(crate) struct Attended {
    sweep: Arc<Sweep>,
    attendant: Attendant,
    runtime: Handle,
}

impl Attended {
    /// Has a sweep go on. To be called on the runtime, or on a thread of it.
    ///
    /// # Errors
    /// If it is over, or what becomes of it cannot be kept on disk.
    pub(crate) fn begin(node: &Arc<Node>, sweep: Arc<Sweep>) -> Result<Self, Refusal> {
        let attendant = sweep.attend(node)?;
        Ok(Self { sweep, attendant, runtime: Handle::current() })
    }

    /// Returns the sweep when it is over or paused.
    pub(crate) async fn over(&self) -> SweepStatus {
        loop {
            if let Some(status) = self.sweep.at_rest() {
                return status;
            }
            sleep(POLL).await;
        }
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        let (sweep, attendant) = (Arc::clone(&self.sweep), self.attendant);
        // A pause is written to disk.
        self.runtime.spawn_blocking(move || sweep.is_left_by(attendant));
    }
}

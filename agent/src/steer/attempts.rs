//! Changes that depend on what a job runs are tried again when that has changed meanwhile.

use std::time::Duration;

use pfo_protocol::Refusal;
use tokio::time::{Instant, sleep};

use crate::steer::SteerError;

/// How often to try again.
const POLL: Duration = Duration::from_millis(200);

/// How long to try again while others change the job: as long as several swaps and a comparison take.
const PATIENCE: Duration = Duration::from_secs(5 * 60);

/// Attempts to change a job.
pub(crate) struct Attempts(Instant);

impl Attempts {
    pub(crate) fn begin() -> Self {
        Self(Instant::now())
    }

    /// Waits until the next attempt.
    ///
    /// # Errors
    /// If another attempt is of no use.
    pub(crate) async fn after(&self, failed: SteerError) -> Result<(), Refusal> {
        match failed {
            SteerError::Meanwhile(_) if self.0.elapsed() < PATIENCE => {
                sleep(POLL).await;
                Ok(())
            }
            failed => Err(failed.into()),
        }
    }
}

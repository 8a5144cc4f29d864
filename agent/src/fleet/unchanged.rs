//! Changes of a whole job that depend on what it runs, and are tried again when that has changed.

use std::time::Duration;

use pfo_protocol::Refusal;
use tokio::time::{Instant, sleep};

use super::swap::POLL;

/// How long to try again while others change the job: as long as several swaps and a comparison take.
const PATIENCE: Duration = Duration::from_secs(5 * 60);

/// Why a whole job has not changed.
#[derive(Debug)]
pub(crate) enum Unchanged {
    /// It runs something else than was known when that was decided.
    Meanwhile(Refusal),
    /// Anything else.
    Refused(Refusal),
}

impl From<Refusal> for Unchanged {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Unchanged> for Refusal {
    fn from(unchanged: Unchanged) -> Self {
        let (Unchanged::Meanwhile(refusal) | Unchanged::Refused(refusal)) = unchanged;
        refusal
    }
}

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
    pub(crate) async fn after(&self, failed: Unchanged) -> Result<(), Refusal> {
        match failed {
            Unchanged::Meanwhile(_) if self.0.elapsed() < PATIENCE => {
                sleep(POLL).await;
                Ok(())
            }
            failed => Err(failed.into()),
        }
    }
}

//! Waiting for the end of a sweep, with a bar on a terminal.

use std::thread::sleep;
use std::time::{Duration, Instant};

use pfo_protocol::{JobName, SweepState, SweepStatus};

use super::ProfileError;
use super::status::ask;
use super::sweep_bar::SweepBar;
use crate::daemons::Daemons;
use crate::error::Error;
use crate::exit::Exit;
use crate::explained::Explained;
use crate::trial::RESTART;

const POLL: Duration = Duration::from_millis(500);

/// Returns the sweep when it is over.
///
/// # Errors
/// If it continues only on request, or no longer exists.
pub(super) fn until_over(daemons: &Daemons, mut sweep: SweepStatus) -> Result<SweepStatus, Error> {
    let mut bar = SweepBar::new();
    let mut seen = Instant::now();
    loop {
        match sweep.state {
            SweepState::Ended(_) => return Ok(sweep),
            SweepState::Paused { why } => return Err(paused(&sweep.job, why)),
            SweepState::Running | SweepState::Waiting { .. } => bar.show(&sweep),
        }
        sleep(POLL);
        sweep = match ask(daemons) {
            Ok(sweeps) => {
                seen = Instant::now();
                let (job, uid) = (sweep.job, sweep.profile.uid);
                let is_it = |other: &SweepStatus| other.job == job && other.profile.uid == uid;
                let gone = || ProfileError::NoSuchSweep { job: job.clone() };
                sweeps.into_iter().find(is_it).ok_or_else(gone)?
            }
            // The agent continues it after a restart.
            Err(error) if error.exit() == Exit::Unreachable && seen.elapsed() < RESTART => sweep,
            Err(error) => return Err(error),
        };
    }
}

/// The error for a sweep that another client has paused.
pub(super) fn paused(job: &JobName, why: Option<String>) -> Error {
    let why = why.unwrap_or_else(|| "on request".to_owned());
    ProfileError::SweepPaused { job: job.clone(), why }.into()
}

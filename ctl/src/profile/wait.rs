//! Waiting for the end of a sweep, with a bar where somebody watches.

use std::thread::sleep;
use std::time::{Duration, Instant};

use pfo_protocol::{JobName, SweepState, SweepStatus};

use super::status::ask;
use super::sweep_bar::SweepBar;
use crate::error::Error;
use crate::exit::Exit;
use crate::socket::Sockets;
use crate::trial::RESTART;

const POLL: Duration = Duration::from_millis(500);

/// Returns the sweep when it is over.
///
/// # Errors
/// If it needs somebody to go on, or is gone.
pub(super) fn until_over(sockets: &Sockets, mut sweep: SweepStatus) -> Result<SweepStatus, Error> {
    let mut bar = SweepBar::new();
    let mut seen = Instant::now();
    loop {
        match sweep.state {
            SweepState::Ended(_) => return Ok(sweep),
            SweepState::Paused { why } => return Err(paused(&sweep.job, why)),
            SweepState::Running | SweepState::Waiting { .. } => bar.show(&sweep),
        }
        sleep(POLL);
        sweep = match ask(sockets) {
            Ok(sweeps) => {
                seen = Instant::now();
                let (job, uid) = (sweep.job, sweep.profile.uid);
                let is_it = |other: &SweepStatus| other.job == job && other.profile.uid == uid;
                let gone = || Error::NoSuchSweep { job: job.to_string() };
                sweeps.into_iter().find(is_it).ok_or_else(gone)?
            }
            // The next daemon goes on with it.
            Err(error) if error.exit() == Exit::Unreachable && seen.elapsed() < RESTART => sweep,
            Err(error) => return Err(error),
        };
    }
}

/// Why a sweep does not go on that nobody here has paused.
pub(super) fn paused(job: &JobName, why: Option<String>) -> Error {
    let why = why.unwrap_or_else(|| "somebody asked for that".to_owned());
    Error::SweepPaused { job: job.to_string(), why }
}

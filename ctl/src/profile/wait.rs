//! Waiting for the end of a sweep, with a bar on a terminal.

use std::thread::sleep;
use std::time::{Duration, Instant};

use pfo_protocol::{SweepState, SweepStatus};

use super::ProfileError;
use super::status::ask;
use super::sweep_bar::SweepBar;
use crate::daemons::Daemons;
use crate::error::Error;
use crate::exit::Exit;
use crate::explained::Explained;
use crate::trial::RESTART;

const POLL: Duration = Duration::from_millis(500);

/// For how long to look at the beginning of a sweep: the agent looks twice a second whether the driver
/// does what the first trial asks.
const BEGINNING: Duration = Duration::from_secs(3);

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
            SweepState::Paused { .. } => return Err(paused(sweep)),
            SweepState::Running | SweepState::Waiting { .. } => bar.show(&sweep),
        }
        sleep(POLL);
        sweep = match now(daemons, &sweep) {
            Ok(sweep) => {
                seen = Instant::now();
                sweep
            }
            // The agent continues it after a restart.
            Err(error) if error.exit() == Exit::Unreachable && seen.elapsed() < RESTART => sweep,
            Err(error) => return Err(error),
        };
    }
}

/// Returns the sweep when it has measured something, or soon: whether the driver does what a trial asks is
/// seen in the first one.
///
/// # Errors
/// If it is paused.
pub(super) fn until_begun(daemons: &Daemons, sweep: SweepStatus) -> Result<SweepStatus, Error> {
    let (began, before) = (Instant::now(), sweep.measured);
    let mut sweep = sweep;
    while began.elapsed() < BEGINNING && sweep.measured == before {
        match sweep.state {
            SweepState::Ended(_) => break,
            SweepState::Paused { .. } => return Err(paused(sweep)),
            SweepState::Running | SweepState::Waiting { .. } => sleep(POLL),
        }
        sweep = now(daemons, &sweep)?;
    }
    Ok(sweep)
}

/// A sweep as it is now.
fn now(daemons: &Daemons, sweep: &SweepStatus) -> Result<SweepStatus, Error> {
    let (job, uid) = (&sweep.job, sweep.profile.uid);
    let is_it = |other: &SweepStatus| other.job == *job && other.profile.uid == uid;
    let gone = || ProfileError::NoSuchSweep { job: job.clone() };
    Ok(ask(daemons)?.into_iter().find(is_it).ok_or_else(gone)?)
}

/// The error for a sweep that is paused.
pub(super) fn paused(sweep: SweepStatus) -> Error {
    let SweepStatus { job, state, not_in_force, .. } = sweep;
    let why = match state {
        SweepState::Paused { why: Some(why) } => why,
        _ => "on request".to_owned(),
    };
    ProfileError::SweepPaused { job, why, not_in_force }.into()
}

//! Waiting for the end of a sweep, with a bar where somebody watches.

use std::thread::sleep;
use std::time::{Duration, Instant};

use pfo_protocol::{SweepState, SweepStatus};

use super::status::{ask, progress};
use crate::error::Error;
use crate::exit::Exit;
use crate::progress::Progress;
use crate::socket::Sockets;
use crate::text::harmless;

const POLL: Duration = Duration::from_millis(500);

/// How long a daemon may be away: the next one goes on with the sweep.
const RESTART: Duration = Duration::from_secs(300);

/// Returns the sweep when it is over, or whoever waits does not go on.
///
/// # Errors
/// If it needs somebody to go on, or is gone.
pub(crate) fn until_over(
    sockets: &Sockets,
    mut sweep: SweepStatus,
    goes_on: impl Fn() -> bool,
) -> Result<SweepStatus, Error> {
    let bar = Progress::new("sweeping");
    let mut seen = Instant::now();
    let mut told = None;
    loop {
        match &sweep.state {
            SweepState::Ended(_) => return Ok(sweep),
            _ if !goes_on() => return Ok(sweep),
            SweepState::Paused { why } => {
                let job = sweep.job.to_string();
                let why = why.clone().unwrap_or_else(|| "somebody asked for that".to_owned());
                return Err(Error::SweepPaused { job, why });
            }
            SweepState::Waiting { why } if told.as_ref() != Some(why) => {
                bar.tell(&format!("pfoctl: {}; waiting for that", harmless(why)));
                told = Some(why.clone());
            }
            SweepState::Running | SweepState::Waiting { .. } => {}
        }
        bar.show(f64::from(sweep.measured) / f64::from(sweep.clocks.max(1)));
        bar.now(progress(&sweep));
        sleep(POLL);
        sweep = match ask(sockets) {
            Ok(sweeps) => {
                seen = Instant::now();
                let (job, uid) = (sweep.job, sweep.profile.uid);
                let is_it = |other: &SweepStatus| other.job == job && other.profile.uid == uid;
                let gone = || Error::NoSuchSweep { job: job.to_string() };
                sweeps.into_iter().find(is_it).ok_or_else(gone)?
            }
            Err(error) if error.exit() == Exit::Unreachable && seen.elapsed() < RESTART => sweep,
            Err(error) => return Err(error),
        };
    }
}

//! Trouble that may pass while a job is measured: a daemon that restarts, ranks that come back one
//! by one, a job that is busy with something else.

use std::thread::sleep;
use std::time::{Duration, Instant};

use pfo_protocol::{Refusal, RefusalCode};

use super::TrialError;
use crate::daemons::ConnectionError;
use crate::error::Error;
use crate::exit::Exit;
use crate::explained::Explained;
use crate::progress::Progress;
use crate::status::quantity::span;
use crate::text::harmless;

/// How long a daemon may be away, and after that its job: ranks come back one by one.
pub(crate) const RESTART: Duration = Duration::from_secs(300);

/// How long a job may be busy with something else.
const BUSY: Duration = Duration::from_secs(120);

const RETRY_EVERY: Duration = Duration::from_millis(250);

/// How long there has been trouble with one thing that is asked for, and how long there may be.
#[derive(Debug, Default)]
pub(crate) struct Trouble(Option<(Instant, Duration)>);

impl Trouble {
    /// Waits until it is time to ask again; the reason is reported once.
    ///
    /// # Errors
    /// This error, if it does not pass by itself, or has not for too long.
    pub(crate) fn wait_out(&mut self, error: Error, progress: &Progress) -> Result<(), Error> {
        let patience = patience_with(&error);
        let (since, most) = self.0.get_or_insert_with(|| {
            if !patience.is_zero() {
                progress.tell(&harmless(&format!(
                    "pfoctl: {error}; retrying for up to {}",
                    span(patience.as_secs_f64())
                )));
            }
            (Instant::now(), patience)
        });
        // Once it has restarted, its refusals pass as well.
        *most = patience.max(*most);
        if since.elapsed() >= *most || !passes_by_itself(&error) {
            return Err(error);
        }
        sleep(RETRY_EVERY);
        Ok(())
    }
}

/// Asks until it is answered, through a restart of a daemon.
///
/// # Errors
/// As [`Trouble::wait_out`].
pub(crate) fn patiently<T>(
    progress: &Progress,
    mut ask: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let mut trouble = Trouble::default();
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(error) => trouble.wait_out(error, progress)?,
        }
    }
}

/// How long to wait until what is wrong has passed.
fn patience_with(error: &Error) -> Duration {
    match error {
        // Such as a swap that is under way.
        Error::Connection(ConnectionError::Refused(Refusal {
            code: RefusalCode::LimitReached,
            ..
        })) => BUSY,
        error if error.exit() == Exit::Unreachable => RESTART,
        _ => Duration::ZERO,
    }
}

/// Whether it may be different when all of a job's ranks are back with a daemon that restarted.
fn passes_by_itself(error: &Error) -> bool {
    use RefusalCode::{Malformed, NotAuthorized, PlanDoesNotFit, Revoked};
    match error {
        Error::Connection(ConnectionError::Refused(refusal)) => {
            !matches!(refusal.code, Malformed | NotAuthorized | PlanDoesNotFit | Revoked)
        }
        Error::Trial(TrialError::OtherRanks { .. }) => true,
        error => error.exit() == Exit::Unreachable,
    }
}

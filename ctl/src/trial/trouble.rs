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

/// The first pause before something is asked again, and each one while a daemon is away.
const RETRY_EVERY: Duration = Duration::from_millis(250);

/// The longest pause. Each refusal is an entry in the journals, so pauses grow to it.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How long there has been trouble with one thing that is asked for, and how long there may be.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    since: Option<(Instant, Duration)>,
    refusals: u32,
}

impl Trouble {
    /// Waits until it is time to ask again; the reason is reported once.
    ///
    /// # Errors
    /// This error, if it does not pass by itself, or has not for too long.
    pub(crate) fn wait_out(&mut self, error: Error, progress: &Progress) -> Result<(), Error> {
        let patience = patience_with(&error);
        let (since, most) = self.since.get_or_insert_with(|| {
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
        sleep(self.pause(&error));
        Ok(())
    }
}

impl Trouble {
    /// How long to wait after this error.
    fn pause(&mut self, error: &Error) -> Duration {
        if error.exit() == Exit::Unreachable {
            return RETRY_EVERY;
        }
        let pause = RETRY_EVERY.saturating_mul(1 << self.refusals.min(16));
        self.refusals += 1;
        pause.min(LONGEST_PAUSE)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_minutes_of_refusals_are_few_entries_in_a_journal() {
        let refusal = Refusal::new(RefusalCode::LimitReached, "user 7 holds job j", "try again");
        let error = Error::from(ConnectionError::Refused(refusal));
        let (mut trouble, mut waited, mut refusals) = (Trouble::default(), Duration::ZERO, 0);
        while waited < patience_with(&error) {
            waited += trouble.pause(&error);
            refusals += 1;
        }
        assert!(refusals < 20, "{refusals}");
    }
}

//! Trouble that may pass while a job is measured: a daemon that restarts, ranks that come back one
//! by one, a job that is busy with something else.

use std::time::Duration;

use pfo_protocol::RefusalCode;

use crate::bench::Bench;
use crate::error::TuneError;
use crate::quantity::span;

/// How long a daemon may be away, and after that its job: ranks come back one by one.
const RESTART: Duration = Duration::from_secs(300);

/// How long a job may be busy with something else.
const BUSY: Duration = Duration::from_secs(120);

/// The first pause before something is asked again, and each one while a daemon is away.
const RETRY_EVERY: Duration = Duration::from_millis(250);

/// The longest pause. Each refusal is an entry in the journals, so pauses grow to it.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How long there has been trouble with one request, and how long there may be.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    since: Option<(Duration, Duration)>,
    refusals: u32,
}

impl Trouble {
    /// Waits until it is time to ask again; the reason is remarked once.
    ///
    /// # Errors
    /// This error, if it does not pass by itself, or has not for too long.
    pub(crate) async fn wait_out(
        &mut self,
        error: TuneError,
        bench: &mut impl Bench,
    ) -> Result<(), TuneError> {
        if !passes_by_itself(&error) {
            return Err(error);
        }
        let patience = match bench.is_resumed() {
            true => RESTART,
            false => patience_with(&error),
        };
        if self.since.is_none() && !patience.is_zero() {
            bench.remark(format!("{error}; retrying for up to {}", span(patience.as_secs())));
        }
        let now = bench.now();
        let (since, most) = self.since.get_or_insert((now, patience));
        // Once it has restarted, its refusals pass as well.
        *most = patience.max(*most);
        if now.saturating_sub(*since) >= *most {
            return Err(error);
        }
        let pause = self.next_pause(&error);
        bench.pause(pause).await;
        Ok(())
    }

    /// Whether something was waited for already.
    pub(crate) fn has_begun(&self) -> bool {
        self.since.is_some()
    }

    /// How long to wait after this error.
    fn next_pause(&mut self, error: &TuneError) -> Duration {
        if error.is_unreachable() {
            return RETRY_EVERY;
        }
        let pause = RETRY_EVERY.saturating_mul(1 << self.refusals.min(16));
        self.refusals += 1;
        pause.min(LONGEST_PAUSE)
    }
}

/// How long to wait until what is wrong has passed.
fn patience_with(error: &TuneError) -> Duration {
    match error {
        error if error.is_unreachable() => RESTART,
        // Such as a swap that is under way.
        TuneError::Refused(refusal) if refusal.code == RefusalCode::LimitReached => BUSY,
        _ => Duration::ZERO,
    }
}

/// Whether it may be different when all of a job's ranks are back with a daemon that restarted.
fn passes_by_itself(error: &TuneError) -> bool {
    use RefusalCode::{Malformed, NotAuthorized, PlanDoesNotFit, Revoked};
    match error {
        TuneError::Refused(refusal) => {
            !matches!(refusal.code, Malformed | NotAuthorized | PlanDoesNotFit | Revoked)
        }
        TuneError::OtherRanks { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Refusal;

    use super::*;

    #[test]
    fn two_minutes_of_refusals_are_few_entries_in_a_journal() {
        let refusal = Refusal::new(RefusalCode::LimitReached, "user 7 holds job j", "try again");
        let error = TuneError::Refused(refusal);
        let (mut trouble, mut waited, mut refusals) = (Trouble::default(), Duration::ZERO, 0);
        while waited < patience_with(&error) {
            waited += trouble.next_pause(&error);
            refusals += 1;
        }
        assert!(refusals < 20, "{refusals}");
    }
}

//! Telling `pfod` when the clocks of leased GPUs are in force.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pfo_protocol::{JobView, RefusalCode, Request, Response, SessionId, SettleTimes};

use crate::calibration::store::Calibrations;
use crate::pfod::{PfodError, Questions, SIGN_OF_LIFE, unexpected};

/// The settle times that `pfod` got, by session, and when it got them.
#[derive(Debug, Default)]
pub(crate) struct Told(BTreeMap<SessionId, (Option<SettleTimes>, Option<Instant>)>);

impl Told {
    /// When to tell `pfod` again at the latest; none if it knows nothing.
    pub(crate) fn again_within(&self) -> Option<Duration> {
        self.0.values().any(|(times, _)| times.is_some()).then_some(SIGN_OF_LIFE)
    }

    /// Tells `pfod` what is known of the GPUs of these jobs: when that has changed, and again before
    /// `pfod` forgets it.
    ///
    /// # Errors
    /// If `pfod` does not answer.
    pub(crate) async fn tell(
        &mut self,
        all: &Calibrations,
        questions: &Questions,
        jobs: &[JobView],
    ) -> Result<(), PfodError> {
        let mut ranks = Vec::new();
        for job in jobs {
            ranks.extend(job.ranks.iter().map(|rank| (job, rank)));
        }
        self.0.retain(|session, _| ranks.iter().any(|(_, rank)| rank.session == *session));
        if ranks.iter().any(|(_, rank)| !self.0.contains_key(&rank.session)) {
            all.set_driver(questions.driver().await?);
        }
        for (job, rank) in ranks {
            let times = all.of(job, rank).and_then(|of| all.settle_times(&of));
            let (told, at) = self.0.entry(rank.session).or_default();
            if *told == times && at.is_some_and(|at| at.elapsed() < SIGN_OF_LIFE) {
                continue;
            }
            if let Some(times) = times.clone() {
                let gpu = rank.gpu_uuid.clone();
                match questions.ask(Request::SettleTimes { gpu, times }).await {
                    Ok(Response::Done) => {}
                    Ok(other) => return Err(unexpected(&other)),
                    // The lease has just ended.
                    Err(PfodError::Refused(why)) if why.code == RefusalCode::UnknownGpu => {}
                    Err(error) => return Err(error),
                }
            }
            (*told, *at) = (times, Some(Instant::now()));
        }
        Ok(())
    }
}

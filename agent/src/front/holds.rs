//! The jobs that one connection holds for measuring. They return to default clocks when it ends.

use std::time::SystemTime;

use pfo_protocol::{JobSelector, Mhz, PlanStatus, RecordedTrial, Refusal, RefusalCode, TrialRun};
use pfo_service::unix_s;

use crate::authority::Permit;
use crate::job::JobKey;
use crate::ledger::Pairing;
use crate::p2p::Samples;
use crate::record::TrialSamples;
use crate::steer::{Hold, Steer, SteerError, Turn};

/// A job that is held.
#[derive(Debug)]
struct HeldJob {
    key: JobKey,
    hold: Box<dyn Hold>,
    /// What its turns have shown of waits.
    waits: Samples,
    /// The instructions of its last turn.
    samples: TrialSamples,
    /// Its last turn, if that may be half of a comparison.
    pairing: Pairing,
}

/// The jobs that one connection holds.
#[derive(Debug, Default)]
pub(crate) struct Holds(Vec<HeldJob>);

impl Holds {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records a turn of a job, which is held from then on, until this is dropped.
    ///
    /// # Errors
    /// If another connection, on any node, holds the job, or as a turn does.
    pub(super) async fn record(
        &mut self,
        job: &dyn Steer,
        permit: &Permit,
        turn: Turn,
    ) -> Result<RecordedTrial, SteerError> {
        let key = job.key().clone();
        // Until the turn is over, its hold is in no list: one that is dropped meanwhile is over.
        let held = self.index_of(&key).map(|index| self.0.swap_remove(index));
        let mut held = held.unwrap_or_else(|| HeldJob {
            key,
            hold: job.hold(permit.asker()),
            waits: Samples::default(),
            samples: TrialSamples::default(),
            pairing: Pairing::default(),
        });
        let recorded = held.record(turn).await;
        if held.hold.is_held() {
            self.0.push(held);
        }
        recorded
    }

    /// The instructions of the last trial of a job that were not fetched yet.
    ///
    /// # Errors
    /// If the connection does not hold the job.
    pub(super) fn samples(
        &mut self,
        permit: &Permit,
        job: &JobSelector,
    ) -> Result<&mut TrialSamples, Refusal> {
        self.held(permit, job).map(|hold| &mut hold.samples)
    }

    /// What the trials of a job have shown of waits.
    ///
    /// # Errors
    /// If the connection does not hold the job.
    pub(super) fn waits(
        &mut self,
        permit: &Permit,
        job: &JobSelector,
    ) -> Result<(JobKey, Samples), Refusal> {
        self.held(permit, job).map(|hold| (hold.key.clone(), hold.waits.clone()))
    }

    /// Ends the hold of a job. Returns what the job runs from then on.
    ///
    /// # Errors
    /// If the connection does not hold it, or what it runs cannot be kept.
    pub(super) async fn end(
        &mut self,
        permit: &Permit,
        job: &JobSelector,
        keep: bool,
    ) -> Result<Option<PlanStatus>, SteerError> {
        let index = self.index_held(permit, job)?;
        let mut held = self.0.swap_remove(index);
        let ended = held.hold.end(keep).await;
        if held.hold.is_held() {
            self.0.push(held);
        }
        ended
    }

    fn held(&mut self, permit: &Permit, selector: &JobSelector) -> Result<&mut HeldJob, Refusal> {
        let index = self.index_held(permit, selector)?;
        Ok(&mut self.0[index])
    }

    fn index_held(&self, permit: &Permit, selector: &JobSelector) -> Result<usize, Refusal> {
        let JobSelector { job: name, uid } = selector;
        let owner = uid.unwrap_or(permit.uid());
        let own = JobKey { uid: owner, name: name.clone() };
        let index = self.index_of(&own).or_else(|| {
            // An administrator may have left the owner out when the trial began, too.
            self.0.iter().position(|hold| uid.is_none() && hold.key.name == *name)
        });
        index.ok_or_else(|| {
            Refusal::new(
                RefusalCode::UnknownJob,
                format!("this connection does not hold job {name} for measuring"),
                "run a trial first",
            )
        })
    }

    fn index_of(&self, key: &JobKey) -> Option<usize> {
        self.0.iter().position(|hold| hold.key == *key)
    }
}

impl HeldJob {
    async fn record(&mut self, turn: Turn) -> Result<RecordedTrial, SteerError> {
        self.samples = TrialSamples::default();
        let clock = uniform_clock(&turn.setting);
        if clock.is_some() {
            self.pairing = Pairing::default();
        }
        // What waits draw under a power limit is not what they draw otherwise.
        let is_limited = matches!(turn.setting, TrialRun::PowerLimits { .. });
        let (recorded, samples) = self.hold.turn(turn).await?;
        if !is_limited {
            self.waits.add(clock, &recorded);
        }
        self.samples = samples;
        let compared = self.pairing.take(&recorded.trial, unix_s(SystemTime::now()));
        if let Some((plan, compared)) = compared {
            self.hold.take(plan, compared);
        }
        Ok(recorded)
    }
}

fn uniform_clock(run: &TrialRun) -> Option<Mhz> {
    match run {
        TrialRun::Uniform(mhz) => Some(*mhz),
        _ => None,
    }
}

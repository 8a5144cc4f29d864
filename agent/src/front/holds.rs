//! The jobs that one connection holds for measuring. Each is held by a connection to `pfod`, which
//! brings the job to default clocks when that ends.

use std::sync::Arc;
use std::time::SystemTime;

use pfo_protocol::{
    JobSelector, JobView, Mhz, PlanStatus, RecordedTrial, Refusal, RefusalCode, Request, Response,
    TrialLength, TrialRun,
};
use pfo_service::unix_s;

use crate::authority::Permit;
use crate::fleet::{Fleet, WholeHold};
use crate::job::JobKey;
use crate::ledger::{Compared, Pairing};
use crate::p2p::Samples;
use crate::pfod::{Connection, Pfod, PfodError, unexpected};
use crate::record::{self, Order, TrialSamples};

/// What holds a job.
#[derive(Debug)]
enum HeldBy {
    /// A connection to `pfod`, if all of it is on this node.
    Connection(Connection),
    /// The agents of its nodes.
    Fleet(WholeHold),
}

/// A job that is held.
#[derive(Debug)]
pub(crate) struct Hold {
    key: JobKey,
    by: HeldBy,
    /// What its trials have shown of waits.
    waits: Samples,
    /// The instructions of its last trial.
    samples: TrialSamples,
    /// Its last trial, if that may be half of a comparison.
    pairing: Pairing,
}

/// The jobs that one connection holds.
#[derive(Debug, Default)]
pub(crate) struct Holds(Vec<Hold>);

impl Holds {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records a trial of a job, which is held from then on. If this is dropped, the job is held no
    /// more.
    ///
    /// # Errors
    /// If another connection holds the job, or as a trial does.
    pub(super) async fn record(
        &mut self,
        pfod: &Pfod,
        permit: &Permit,
        key: JobKey,
        (run, length, room): (TrialRun, TrialLength, Option<usize>),
    ) -> Result<RecordedTrial, PfodError> {
        let asker = permit.asker();
        // Until the trial is over, its hold is in no list: a connection with an answer outstanding
        // is of no use.
        let held = self.index_of(&key).map(|index| self.0.swap_remove(index));
        let is_held = held.is_some();
        let mut hold = match held {
            Some(hold) => hold,
            None => {
                let connection = pfod.on_behalf(asker).await?;
                let (waits, samples) = (Samples::default(), TrialSamples::default());
                let by = HeldBy::Connection(connection);
                Hold { key, by, waits, samples, pairing: Pairing::default() }
            }
        };
        hold.samples = TrialSamples::default();
        let clock = uniform_clock(&run);
        if clock.is_some() {
            hold.pairing = Pairing::default();
        }
        // What waits draw under a power limit is not what they draw otherwise.
        let limited = matches!(run, TrialRun::PowerLimits { .. });
        let order = Order { run, length, room };
        let key = hold.key.clone();
        let HeldBy::Connection(connection) = &mut hold.by else {
            return Err(held_whole(&key).into());
        };
        let recorded = record::run(pfod, connection, &key, order).await;
        let recorded = recorded.map(|(trial, samples)| {
            if !limited {
                hold.waits.add(clock, &trial);
            }
            hold.samples = samples;
            trial
        });
        let stays = match &recorded {
            Ok(_) => true,
            // Without a trial before, another connection may hold the job.
            Err(PfodError::Refused(_)) => is_held,
            Err(PfodError::Away(_)) => false,
        };
        if stays {
            self.0.push(hold);
        }
        recorded
    }

    /// The same on all nodes of a job that has ranks on others, with its instructions one by one if they
    /// are wanted.
    ///
    /// # Errors
    /// If another connection, on any node, holds the job, or as a trial does.
    pub(super) async fn record_whole(
        &mut self,
        fleet: &Arc<Fleet>,
        permit: &Permit,
        job: &JobView,
        (run, length, samples): (TrialRun, TrialLength, bool),
    ) -> Result<RecordedTrial, Refusal> {
        let key = JobKey::of(job);
        let held = self.index_of(&key).map(|index| self.0.swap_remove(index));
        let (mut whole, mut waits, mut pairing) = match held {
            Some(Hold { by: HeldBy::Fleet(whole), waits, pairing, .. }) => {
                (Some(whole), waits, pairing)
            }
            _ => (None, Samples::default(), Pairing::default()),
        };
        let clock = uniform_clock(&run);
        if clock.is_some() {
            pairing = Pairing::default();
        }
        let limited = matches!(run, TrialRun::PowerLimits { .. });
        let recorded = fleet.trial(permit.uid(), job, (run, length, samples), &mut whole).await;
        let mut samples = TrialSamples::default();
        let recorded = recorded.map(|(trial, of_trial)| {
            if !limited {
                waits.add(clock, &trial);
            }
            samples = of_trial;
            trial
        });
        if let Some(mut whole) = whole {
            let now = unix_s(SystemTime::now());
            let compared = recorded.as_ref().ok().and_then(|one| pairing.take(&one.trial, now));
            if let Some((PlanStatus { label, predicted_energy_j, .. }, compared)) = compared {
                whole.take(compared.shared(label, predicted_energy_j));
            }
            let by = HeldBy::Fleet(whole);
            self.0.push(Hold { key, by, waits, samples, pairing });
        }
        recorded
    }

    /// What a trial completes, if that is a comparison of a plan with default clocks.
    pub(super) fn compared(
        &mut self,
        key: &JobKey,
        recorded: &RecordedTrial,
    ) -> Option<(PlanStatus, Compared)> {
        let index = self.index_of(key)?;
        self.0[index].pairing.take(&recorded.trial, unix_s(SystemTime::now()))
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
    ) -> Result<Option<PlanStatus>, PfodError> {
        let index = self.index_held(permit, job)?;
        let Hold { key, by, waits, samples, pairing } = self.0.swap_remove(index);
        let mut connection = match by {
            HeldBy::Fleet(whole) => return Ok(whole.end(keep).await?),
            HeldBy::Connection(connection) => connection,
        };
        let ended = connection.ask(Request::TrialsEnd { job: key.selector(), keep }).await;
        if matches!(ended, Err(PfodError::Refused(_))) {
            let by = HeldBy::Connection(connection);
            self.0.push(Hold { key, by, waits, samples, pairing });
        }
        match ended? {
            Response::TrialsEnded(plan) => Ok(plan),
            other => Err(unexpected(&other)),
        }
    }

    fn held(&mut self, permit: &Permit, selector: &JobSelector) -> Result<&mut Hold, Refusal> {
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

/// A job that had ranks on other nodes when its trials began, and has none now.
fn held_whole(key: &JobKey) -> Refusal {
    let message =
        format!("{key} was held on several nodes, and all of its ranks are on this one now");
    Refusal::new(RefusalCode::NoPlan, message, "begin again")
}

fn uniform_clock(run: &TrialRun) -> Option<Mhz> {
    match run {
        TrialRun::Uniform(mhz) => Some(*mhz),
        _ => None,
    }
}

//! Which hand steers which job.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use pfo_fleet::Standing;
use pfo_protocol::{JobView, Refusal, RefusalCode, Uid};

use crate::fleet::{Fleet, ForLedger, fleet_of, spans_nodes};
use crate::job::{JobKey, as_it_runs, before_swap};
use crate::ledger::Ledger;
use crate::pfod::{Pfod, PfodError, Questions};
use crate::steer::Steer;
use crate::steer::fleet::OnNodes;
use crate::steer::here::{Here, Standings};

/// The jobs that this node can steer.
#[derive(Debug)]
pub(crate) struct Steering {
    pub(crate) pfod: Pfod,
    pub(crate) questions: Arc<Questions>,
    pub(crate) fleet: Option<Arc<Fleet>>,
    pub(crate) ledger: Arc<Ledger>,
    /// The guards, straggler answers and budgets of the jobs of this node alone.
    pub(crate) standings: Standings,
}

impl Steering {
    /// The hand on a job.
    pub(crate) fn of(self: &Arc<Self>, job: &JobView) -> Arc<dyn Steer> {
        match fleet_of(self.fleet.as_ref(), job) {
            Some(fleet) => Arc::new(OnNodes::of(fleet, job)),
            None => Arc::new(Here::of(self, job)),
        }
    }

    /// Checks that this node's part of a job may be changed alone: agents of other nodes would undo it.
    ///
    /// # Errors
    /// If they would; with what to do instead.
    pub(crate) fn check_alone(&self, job: &JobView, remedy: &str) -> Result<(), Refusal> {
        if self.fleet.is_none() { Ok(()) } else { check_all_here(job, remedy) }
    }

    /// Brings up to date what is known of the jobs of this node alone, and forgets those that have left.
    pub(crate) async fn see(self: &Arc<Self>, jobs: &[JobView]) {
        for key in self.standings.see(jobs) {
            if let Some(job) = jobs.iter().find(|job| JobKey::of(job) == key) {
                // What `pfod` does not say now it says in a moment.
                let _ = self.of(job).stands().await;
            }
        }
    }

    /// The jobs whose energy counts for the ledger of savings, which gets the comparisons of the jobs
    /// that this node has a part of.
    ///
    /// # Errors
    /// If a swap waits for its step, and `pfod` does not say what the job runs until then.
    pub(crate) async fn counted<'a>(
        &self,
        jobs: &'a [JobView],
    ) -> Result<Cow<'a, [JobView]>, PfodError> {
        let mut counted = Cow::Borrowed(jobs);
        let waits = |job: &JobView| before_swap(job).is_some() && self.ledger.counts(job);
        if jobs.iter().any(waits) {
            let status = self.questions.status().await?;
            for job in counted.to_mut().iter_mut().filter(|job| waits(job)) {
                *job = as_it_runs(job, &status.jobs).unwrap_or_else(|| job.clone());
            }
        }
        for job in jobs {
            let Some(fleet) = fleet_of(self.fleet.as_ref(), job) else { continue };
            let key = JobKey::of(job);
            let ForLedger { in_trial, compared } = fleet.for_ledger(&key).await;
            compared.iter().for_each(|compared| self.ledger.take_whole(job, compared));
            if in_trial {
                self.ledger.try_out(job);
                counted.to_mut().retain(|job| JobKey::of(job) != key);
            }
        }
        Ok(counted)
    }

    /// The guard, straggler answer and budget of each job, of one user or of all.
    pub(crate) async fn standings(&self, only_of: Option<Uid>) -> BTreeMap<JobKey, Standing> {
        let mut standings = self.standings.all(only_of);
        if let Some(fleet) = &self.fleet {
            standings.extend(fleet.standings(only_of).await);
        }
        standings
    }

    /// That of a node without a `pfod`, for tests.
    #[cfg(test)]
    pub(crate) fn of_no_pfod(directory: &std::path::Path) -> Arc<Self> {
        let pfod = Pfod::at(directory.join("no-pfod.sock"));
        let settings = crate::settings::InForce::new(Default::default(), Default::default());
        Arc::new(Self {
            questions: Arc::new(Questions::to(pfod.clone())),
            pfod,
            fleet: None,
            ledger: Arc::new(Ledger::under(directory, Arc::new(settings))),
            standings: Standings::under(directory),
        })
    }
}

/// Checks that a job has no ranks on other nodes.
///
/// # Errors
/// If it has; with what to do instead.
pub(crate) fn check_all_here(job: &JobView, remedy: &str) -> Result<(), Refusal> {
    if !spans_nodes(job) {
        return Ok(());
    }
    let message = format!("job {} has ranks on other nodes, and all of it runs one plan", job.job);
    Err(Refusal::new(RefusalCode::Malformed, message, remedy))
}

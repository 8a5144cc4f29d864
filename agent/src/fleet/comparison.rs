//! The turns of a comparison of a whole job's plan with default clocks: trials of the whole job, after
//! which it runs its plan again, also if an agent dies meanwhile.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use pfo_fleet::{Compared, Length, Node, Proposal, Purpose, Run, Standing, Terms, Told, View};
use pfo_protocol::{RecordedTrial, Refusal, Uid};
use tokio::sync::oneshot;

use super::parts::Fleet;
use super::swap::{Wanted, refusal_of};
use crate::job::JobKey;

/// A comparison under way. When this is dropped before its end, the job runs its plan again.
pub(crate) struct WholeComparison {
    fleet: Arc<Fleet>,
    key: JobKey,
    /// The newest committed swap: nobody else's may come between.
    after: u64,
    holds: Option<oneshot::Sender<Infallible>>,
}

impl fmt::Debug for WholeComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WholeComparison").field("key", &self.key).finish_non_exhaustive()
    }
}

/// One turn.
pub(crate) struct WholeTurn {
    /// The step from which on the job ran it.
    pub(crate) step: u64,
    pub(crate) recorded: RecordedTrial,
}

impl WholeComparison {
    /// A comparison of what a job runs since a swap.
    pub(crate) fn of(fleet: &Arc<Fleet>, key: &JobKey, swap: u64) -> Self {
        Self { fleet: Arc::clone(fleet), key: key.clone(), after: swap, holds: None }
    }

    /// Measures what a job takes with this.
    ///
    /// # Errors
    /// If its nodes do not agree on it, or one of them does not measure all of it.
    pub(crate) async fn turn_of(&mut self, run: Run, length: Length) -> Result<WholeTurn, Refusal> {
        let (holds, holder) = oneshot::channel();
        let purpose = Purpose::Comparison(length);
        let terms = Terms { after: Some(self.after), ..Terms::default() };
        let (by_uid, run) = (self.by_uid(), Some(run));
        let wanted = Wanted { run, by_uid, purpose, terms, holder: Some(holder) };
        let told = self.fleet.agreement(&self.key, wanted).await?;
        let Told::Committed { number, step } = told else {
            return Err(refusal_of(&self.key, told));
        };
        (self.after, self.holds) = (number, Some(holds));
        let (recorded, _) = self.fleet.collect(&self.key, number).await?;
        Ok(WholeTurn { step, recorded })
    }

    /// Ends it with what it has shown: the job runs this for good, beside which this stands.
    ///
    /// # Errors
    /// If its nodes do not agree on it; then it runs its plan again when they do.
    pub(crate) async fn end_with(
        self,
        (run, standing): (Run, Standing),
        compared: Option<Compared>,
    ) -> Result<(), Refusal> {
        let (after, standing) = (Some(self.after), Some(standing));
        let compared = compared.into_iter().collect();
        let terms = Terms { at: None, after, standing, compared };
        let (by_uid, purpose) = (self.by_uid(), Purpose::LastOfTrials);
        let wanted = Wanted { run: Some(run), by_uid, purpose, terms, holder: None };
        match self.fleet.agreement(&self.key, wanted).await? {
            Told::Committed { number, .. } => {
                self.fleet.until_run(&self.key, number).await;
                Ok(())
            }
            told => Err(refusal_of(&self.key, told)),
        }
    }

    fn by_uid(&self) -> Uid {
        self.key.uid
    }
}

/// What a look at a job of several nodes says for the ledger of savings.
#[derive(Debug, Default)]
pub(crate) struct ForLedger {
    /// Whether the job is in a trial, so that what it uses is no matter of its plan.
    pub(crate) in_trial: bool,
    /// The comparisons that were not seen before.
    pub(crate) compared: Vec<Compared>,
}

impl Fleet {
    /// What there is about a job for the ledger of savings. A comparison in which this node took no part
    /// is none of its.
    pub(crate) async fn for_ledger(&self, key: &JobKey) -> ForLedger {
        let Some(shared) = self.show(key, View::Part).await.and_then(|shown| shown.shared) else {
            return ForLedger::default();
        };
        let newest = shared.committed().next();
        let seen = self.see_swaps(key, newest.map_or(0, |(number, _)| number));
        let is_new = |(number, proposal): &(u64, &Arc<Proposal>)| {
            *number > seen && proposal.members.contains(self.name())
        };
        let new: Vec<_> = shared.committed().filter(is_new).collect();
        let compared = new.into_iter().rev().flat_map(|(_, proposal)| proposal.compared.clone());
        let in_trial = newest.is_some_and(|(_, proposal)| proposal.trial.is_some());
        ForLedger { in_trial, compared: compared.collect() }
    }

    /// What this node is called.
    pub(crate) fn name(&self) -> &Node {
        self.node()
    }
}

//! The turns of a comparison of a whole job's plan with default clocks: trials of the whole job, after
//! which it runs its plan again, also if an agent dies meanwhile.

use std::convert::Infallible;
use std::sync::Arc;

use pfo_fleet::{Length, Node, Purpose, Run, Standing, Terms, Told};
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
    pub(crate) async fn turn(&mut self, run: Run, length: Length) -> Result<WholeTurn, Refusal> {
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

    /// Ends it: the job runs this for good, beside which this stands.
    ///
    /// # Errors
    /// If its nodes do not agree on it; then it runs its plan again when they do.
    pub(crate) async fn end(self, run: Run, standing: Standing) -> Result<(), Refusal> {
        let terms = Terms { at: None, after: Some(self.after), standing: Some(standing) };
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

impl Fleet {
    /// What this node is called.
    pub(crate) fn name(&self) -> &Node {
        self.node()
    }
}

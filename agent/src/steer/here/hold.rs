//! A job that this node holds for measuring.

use std::sync::Arc;

use pfo_protocol::{JobView, PlanStatus, Request, Response};

use crate::job::JobKey;
use crate::ledger::Compared;
use crate::pfod::{Asker, PfodError, Resting, unexpected};
use crate::record::{self, MOST_SAMPLES, Order};
use crate::steer::{Doing, Hold, Measured, SteerError, Steering, Turn};

/// A job that this node holds, by a connection to `pfod`.
#[derive(Debug)]
pub(super) struct HoldHere {
    pub(super) steering: Arc<Steering>,
    pub(super) job: JobView,
    pub(super) by: Asker,
    /// None before the first turn, and during each: a connection with an answer outstanding is of no
    /// use.
    pub(super) connection: Option<Resting>,
}

impl HoldHere {
    async fn measure(&mut self, turn: Turn) -> Result<Measured, SteerError> {
        let Steering { pfod, questions, .. } = &*self.steering;
        let (mut connection, is_held) = match self.connection.take() {
            Some(resting) => (resting.end().await?, true),
            None => (pfod.on_behalf(self.by).await?, false),
        };
        let Turn { setting, length, samples } = turn;
        let room = if samples {
            MOST_SAMPLES.checked_div(questions.gpus().await?.len()).or(Some(MOST_SAMPLES))
        } else {
            None
        };
        let order = Order { run: setting, length, room, after: None };
        let measured = record::run(pfod, &mut connection, &JobKey::of(&self.job), order).await;
        let stays = match &measured {
            Ok(_) => true,
            // Without a turn before, somebody else may hold the job.
            Err(PfodError::Refused(_)) => is_held,
            Err(PfodError::Away(_)) => false,
        };
        self.connection = stays.then(|| Resting::begin(connection));
        Ok(measured?)
    }

    async fn end_now(&mut self, keep: bool) -> Result<Option<PlanStatus>, SteerError> {
        let Some(resting) = self.connection.take() else { return Ok(None) };
        let mut connection = resting.end().await?;
        let job = JobKey::of(&self.job).selector();
        let ended = connection.ask(Request::TrialsEnd { job, keep }).await;
        if matches!(ended, Err(PfodError::Refused(_))) {
            self.connection = Some(Resting::begin(connection));
        }
        match ended? {
            Response::TrialsEnded(plan) => Ok(plan),
            other => Err(unexpected(&other).into()),
        }
    }
}

impl Hold for HoldHere {
    fn turn(&mut self, turn: Turn) -> Doing<'_, Measured> {
        Box::pin(self.measure(turn))
    }

    fn is_held(&self) -> bool {
        self.connection.is_some()
    }

    fn take(&mut self, plan: PlanStatus, compared: Compared) {
        self.steering.ledger.take(&self.job, &plan, compared);
    }

    fn end(&mut self, keep: bool) -> Doing<'_, Option<PlanStatus>> {
        Box::pin(self.end_now(keep))
    }
}

//! A job all of whose ranks are on this node, through its `pfod`.

use std::sync::Arc;

use pfo_protocol::{JobView, PlanStatus, Request, Response};

use crate::fleet::{Members, member_of};
use crate::job::{JobKey, no_job};
use crate::ledger::Compared;
use crate::pfod::{Asker, Connection, PfodError, unexpected};
use crate::record::{self, MOST_SAMPLES, Order};
use crate::steer::{
    Doing, Hold, Measured, Steer, SteerError, Steering, SwapRequest, Swapped, Turn, WholeJob,
};
use crate::straggler::Labelled;

/// What this node is called as the only one of a job.
const NODE: &str = "here";

/// The hand on a job of this node.
#[derive(Debug)]
pub(super) struct Here {
    steering: Arc<Steering>,
    job: JobView,
    key: JobKey,
}

impl Here {
    pub(super) fn of(steering: &Arc<Steering>, job: &JobView) -> Self {
        Self { steering: Arc::clone(steering), job: job.clone(), key: JobKey::of(job) }
    }

    async fn view(&self) -> Result<JobView, SteerError> {
        let job = self.steering.questions.job(&self.key).await?;
        job.ok_or_else(|| no_job(&self.key).into())
    }

    async fn swap_now(&self, request: SwapRequest) -> Result<Swapped, SteerError> {
        let SwapRequest { by, target, at_step, wait } = request;
        let mut connection = self.steering.pfod.on_behalf(by).await?;
        let job = self.key.selector();
        let request = Request::PlanSwap { job, target, at_step, after: None, wait };
        let answer = if wait {
            connection.ask_patiently(request).await?
        } else {
            connection.ask(request).await?
        };
        match answer {
            Response::Swapped(swapped) => Ok(Swapped::Here(swapped)),
            other => Err(unexpected(&other).into()),
        }
    }
}

impl Steer for Here {
    fn key(&self) -> &JobKey {
        &self.key
    }

    fn look(&self) -> Doing<'_, WholeJob> {
        Box::pin(async {
            let view = self.view().await?;
            let members = alone(&view);
            Ok(WholeJob { view, members })
        })
    }

    fn swap(&self, request: SwapRequest) -> Doing<'_, Swapped> {
        Box::pin(self.swap_now(request))
    }

    fn plan(&self) -> Doing<'_, Option<Labelled>> {
        Box::pin(async {
            let Some(PlanStatus { label, .. }) = self.view().await?.plan else { return Ok(None) };
            let table = self.steering.questions.plan(self.key.selector()).await?;
            Ok(table.map(|table| Labelled { label, table }))
        })
    }

    fn hold(&self, by: Asker) -> Box<dyn Hold> {
        let (steering, job) = (Arc::clone(&self.steering), self.job.clone());
        Box::new(HoldHere { steering, job, by, connection: None })
    }
}

/// This node as the only one of a job; none before the job has a rank.
pub(crate) fn alone(job: &JobView) -> Members {
    NODE.parse().ok().zip(member_of(job)).into_iter().collect()
}

/// A job that this node holds, by a connection to `pfod`.
#[derive(Debug)]
struct HoldHere {
    steering: Arc<Steering>,
    job: JobView,
    by: Asker,
    /// None before the first turn, and during each: a connection with an answer outstanding is of no
    /// use.
    connection: Option<Connection>,
}

impl HoldHere {
    async fn measure(&mut self, turn: Turn) -> Result<Measured, SteerError> {
        let Steering { pfod, questions, .. } = &*self.steering;
        let (mut connection, is_held) = match self.connection.take() {
            Some(connection) => (connection, true),
            None => (pfod.on_behalf(self.by).await?, false),
        };
        let Turn { setting, length, samples } = turn;
        let room = if samples {
            MOST_SAMPLES.checked_div(questions.gpus().await?.len()).or(Some(MOST_SAMPLES))
        } else {
            None
        };
        let order = Order { run: setting, length, room };
        let measured = record::run(pfod, &mut connection, &JobKey::of(&self.job), order).await;
        let stays = match &measured {
            Ok(_) => true,
            // Without a turn before, somebody else may hold the job.
            Err(PfodError::Refused(_)) => is_held,
            Err(PfodError::Away(_)) => false,
        };
        self.connection = Some(connection).filter(|_| stays);
        Ok(measured?)
    }

    async fn end_now(&mut self, keep: bool) -> Result<Option<PlanStatus>, SteerError> {
        let Some(mut connection) = self.connection.take() else { return Ok(None) };
        let job = JobKey::of(&self.job).selector();
        let ended = connection.ask(Request::TrialsEnd { job, keep }).await;
        if matches!(ended, Err(PfodError::Refused(_))) {
            self.connection = Some(connection);
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

//! A comparison of the plan of a job of this node with default clocks.

use std::time::Duration;

use pfo_fleet::{Run, Standing};
use pfo_protocol::{
    PlanStatus, RecordedTrial, RefusalCode, Request, Response, TrialLength, TrialRun,
};
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, sleep};

use crate::pfod::{Connection, PfodError, Resting, unexpected};
use crate::record::{self, TrialSamples};
use crate::steer::here::{Here, changed};
use crate::steer::{ComparedTurn, Comparison, Doing, SteerError, no_table, owner};
use crate::straggler::Labelled;

/// How long a plan that the job ran may not fit its steps any more, and how often to look whether it does.
const FITS_WITHIN: Duration = Duration::from_secs(120);
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// A comparison under way. `pfod` ends what it has not ended: the job runs its plan again.
#[derive(Debug)]
pub(super) struct ComparisonHere {
    here: Here,
    number: u64,
    begun: Option<Begun>,
}

/// What holds the job, and the plan that is compared.
#[derive(Debug)]
struct Begun {
    connection: Resting,
    changing: OwnedMutexGuard<()>,
    plan: Labelled,
    /// The newest swap before the first turn.
    after: Option<u64>,
}

impl ComparisonHere {
    pub(super) fn of(here: Here, number: u64) -> Self {
        Self { here, number, begun: None }
    }

    /// Notes on disk that the job is compared.
    async fn begin(&self) -> Result<Begun, SteerError> {
        let (changing, swap) = self.here.changing(self.number).await?;
        let run = self.here.standing.state().record.run.clone();
        let Some(plan) = self.here.plan(&run).await? else { return Err(no_table().into()) };
        self.here.standing.state().record.comparing = true;
        self.here.keep().await?;
        let connection = self.here.steering.pfod.on_behalf(owner(&self.here.key)).await?;
        Ok(Begun { connection: Resting::begin(connection), changing, plan, after: Some(swap) })
    }

    async fn measure(&mut self, run: Run, length: TrialLength) -> Result<ComparedTurn, SteerError> {
        let Begun { connection, changing, plan, after } = match self.begun.take() {
            Some(begun) => begun,
            None => self.begin().await?,
        };
        let mut connection = connection.end().await?;
        let setting = match run {
            Run::Plan(_) => TrialRun::Plan { label: plan.label.clone(), table: plan.table.clone() },
            _ => TrialRun::DefaultClocks,
        };
        let order = record::Order { run: setting, length, room: None, after };
        let (recorded, _) = tokio::select! {
            biased;
            () = self.here.standing.until_wanted() => return Err(changed(&self.here.key)),
            recorded = self.record(&mut connection, order) => recorded?,
        };
        let trial = recorded.trial;
        let connection = Resting::begin(connection);
        self.begun = Some(Begun { connection, changing, plan, after: None });
        let step = trial.first_step.saturating_sub(length.settling_steps.into());
        Ok(ComparedTurn { step, trial })
    }

    /// Records a turn. `pfod` refuses a plan that does not fit the last step, such as one with an
    /// evaluation. If a comparison has begun, the plan fits a later one, and without it the job would stay at
    /// default clocks.
    async fn record(
        &self,
        connection: &mut Connection,
        order: record::Order,
    ) -> Result<(RecordedTrial, TrialSamples), PfodError> {
        let (pfod, began) = (&self.here.steering.pfod, Instant::now());
        let has_begun = order.after.is_none();
        loop {
            match record::run(pfod, connection, &self.here.key, order.clone()).await {
                Err(PfodError::Refused(refusal))
                    if has_begun
                        && refusal.code == RefusalCode::PlanDoesNotFit
                        && began.elapsed() < FITS_WITHIN =>
                {
                    sleep(TRY_AGAIN_AFTER).await;
                }
                done => return done,
            }
        }
    }

    async fn finish(
        mut self,
        (run, standing): (Run, Standing),
        compared: Option<pfo_fleet::Compared>,
    ) -> Result<(), SteerError> {
        let Some(begun) = self.begun.take() else { return Err(no_table().into()) };
        let end = Request::TrialsEnd { job: self.here.key.selector(), keep: true };
        let plan: Option<PlanStatus> = match begun.connection.end().await?.ask(end).await? {
            Response::TrialsEnded(plan) => plan,
            other => return Err(unexpected(&other).into()),
        };
        if let Some(compared) = &compared {
            self.here.steering.ledger.take_whole(&self.here.job, compared);
        }
        let is_same = {
            let mut state = self.here.standing.state();
            (state.record.comparing, state.record.plan) = (false, plan.map(|plan| plan.number));
            // What a user has decided meanwhile about the guard goes first.
            let is_decided = state.record.number != self.number;
            let is_same = is_decided || state.record.run == run;
            if is_same && !is_decided {
                state.record.standing = standing.clone();
                state.record.number = state.record.number.saturating_add(1);
            }
            is_same
        };
        if is_same {
            self.here.standings().keep_if_possible(&self.here.key, &self.here.standing).await;
            return Ok(());
        }
        let by = owner(&self.here.key);
        let view = self.here.view().await?;
        if view.plan.as_ref().map(|plan| plan.number) != self.here.standing.state().record.plan {
            return Err(changed(&self.here.key));
        }
        self.here.swap_to(by, (run, standing), view.swap, false).await.map(drop)
    }
}

impl Comparison for ComparisonHere {
    fn turn(&mut self, run: Run, length: TrialLength) -> Doing<'_, ComparedTurn> {
        Box::pin(self.measure(run, length))
    }

    fn end(
        self: Box<Self>,
        outcome: (Run, Standing),
        compared: Option<pfo_fleet::Compared>,
    ) -> Doing<'static, ()> {
        Box::pin(self.finish(outcome, compared))
    }
}

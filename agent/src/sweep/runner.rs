//! A sweep that runs: trial after trial, for as long as the job is there to be measured.

use std::sync::Arc;
use std::time::Duration;

use pfo_protocol::{JobView, RecordedTrial, Refusal, RefusalCode, SweepState, TrialRun};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::fleet::{WholeHold, fleet_of};
use crate::job::check_free;
use crate::pfod::{Asker, Connection, PfodError};
use crate::record::{self, Order};
use crate::sweep::record::SweepRecord;
use crate::sweep::shape::JobShape;
use crate::sweep::sweeps::{Means, Run, Sweep};

/// How often to look whether the job can be measured.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// How long ranks or `pfod` may be away, such as for a restart from a checkpoint.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// Trials in a row that may fail. Each one changes the clocks of the job, and measures it for
/// nothing.
const MOST_FAILURES: u32 = 5;

/// What holds the job while it is swept.
enum Hold {
    /// A connection to `pfod`, of a job whose ranks are all here.
    Here(Connection),
    Whole(WholeHold),
}

/// Sweeps until there is nothing left to measure, or nothing could be measured for too long.
/// Between two trials the connection that holds the job stays open, and the job runs the last
/// clock; when this ends or is dropped, `pfod` brings the job to default clocks.
pub(super) async fn run(sweep: Arc<Sweep>, run: Run) {
    let mut hold = None;
    let mut hopeful_since = Instant::now();
    let mut failures = 0_u32;
    while let Some(record) = sweep.record(run) {
        let Some(what) = record.run() else {
            if let Some(Hold::Whole(hold)) = hold.take()
                && let Err(refusal) = hold.end(false).await
            {
                tracing::warn!("a sweep is over: {}", refusal.message);
            }
            let _ = spawn_blocking(move || sweep.finish(run)).await;
            return;
        };
        let error = match measure(&sweep, run, &record, what, &mut hold).await {
            Ok(trial) => {
                hopeful_since = Instant::now();
                failures = 0;
                let sweep = Arc::clone(&sweep);
                let _ = spawn_blocking(move || sweep.take(run, &trial)).await;
                continue;
            }
            Err(error) => error,
        };
        // Others who want the job need not wait for this.
        drop(hold.take());
        let hopeless = if error.is_temporary() {
            hopeful_since.elapsed() > PATIENCE
        } else {
            failures = failures.saturating_add(1);
            is_final(&error) || failures >= MOST_FAILURES
        };
        let why = in_words(error);
        if hopeless {
            let _ = spawn_blocking(move || sweep.give_up(run, why)).await;
            return;
        }
        sweep.report(run, SweepState::Waiting { why });
        sleep(RETRY_EVERY).await;
    }
}

fn is_final(error: &PfodError) -> bool {
    let is_final = |code| matches!(code, RefusalCode::PlanDoesNotFit | RefusalCode::NotAuthorized);
    matches!(error, PfodError::Refused(refusal) if is_final(refusal.code))
}

fn in_words(error: PfodError) -> String {
    match error {
        PfodError::Refused(refusal) => refusal.message,
        away @ PfodError::Away(_) => away.to_string(),
    }
}

async fn measure(
    sweep: &Sweep,
    run: Run,
    record: &SweepRecord,
    what: TrialRun,
    hold: &mut Option<Hold>,
) -> Result<RecordedTrial, PfodError> {
    let means = sweep.means();
    let job = find_job(means, record).await?;
    if let Some(fleet) = fleet_of(means.fleet.as_ref(), &job) {
        let mut held = match hold.take() {
            Some(Hold::Whole(held)) => Some(held),
            _ => None,
        };
        sweep.report(run, SweepState::Running);
        let what = (what, record.length(), false);
        let trial = Box::pin(fleet.trial(record.by_uid, &job, what, &mut held)).await;
        *hold = held.map(Hold::Whole);
        return Ok(trial?.0);
    }
    // Only an administrator begins a sweep of another user's job.
    let administrator = record.by_uid != record.uid;
    let asker = Asker { uid: record.by_uid, pid: None, administrator };
    let mut connection = match hold.take() {
        Some(Hold::Here(connection)) => connection,
        _ => {
            check_free(&job)?;
            means.pfod.on_behalf(asker).await?
        }
    };
    sweep.report(run, SweepState::Running);
    let order = Order { run: what, length: record.length(), room: None };
    let recorded = record::run(&means.pfod, &mut connection, &record.key(), order).await;
    *hold = Some(Hold::Here(connection));
    Ok(recorded?.0)
}

/// The job, with all of its ranks.
async fn find_job(means: &Means, record: &SweepRecord) -> Result<JobView, PfodError> {
    let job = means.questions.job(&record.key()).await?;
    let shape = match &job {
        Some(job) => match fleet_of(means.fleet.as_ref(), job) {
            Some(fleet) => JobShape::of_whole(job, &fleet.members(&record.key()).await?),
            None => JobShape::of(job),
        },
        None => None,
    };
    let whole = job.filter(|_| shape.as_ref() == Some(&record.shape));
    whole.ok_or_else(|| {
        let message =
            format!("job {} does not have the ranks that it had when its sweep began", record.job);
        Refusal::new(RefusalCode::UnknownJob, message, "").into()
    })
}

//! A sweep that runs: trial after trial, for as long as the job is there to be measured.

use std::sync::Arc;
use std::time::Duration;

use pfo_protocol::{JobView, RecordedTrial, Refusal, RefusalCode, SweepState, TrialRun};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::job::check_free;
use crate::pfod::Asker;
use crate::steer::{Hold, Steer, SteerError, Turn, WholeJob};
use crate::sweep::record::{Pause, SweepRecord};
use crate::sweep::requests::check_energy;
use crate::sweep::shape::JobShape;
use crate::sweep::sweeps::{Means, Run, Sweep};

/// How often to look whether the job can be measured.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// How long ranks or `pfod` may be away, such as for a restart from a checkpoint.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// Trials in a row that may fail. Each one changes the clocks of the job, and measures it for
/// nothing.
const MOST_FAILURES: u32 = 5;

/// Sweeps until there is nothing left to measure, or nothing could be measured for too long.
/// Between two trials the job stays held, and runs the last clock; when this ends or is dropped, the
/// job returns to default clocks.
pub(super) async fn run(sweep: Arc<Sweep>, run: Run) {
    let mut hold: Option<Box<dyn Hold>> = None;
    let mut hopeful_since = Instant::now();
    let mut failures = 0_u32;
    while let Some(record) = sweep.record(run) {
        let Some(what) = record.run() else {
            if let Some(mut hold) = hold.take()
                && let Err(why) = hold.end(false).await
            {
                tracing::warn!("a sweep is over: {why}");
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
            error.is_final() || failures >= MOST_FAILURES
        };
        let not_in_force = error.is_of_driver();
        let why = error.message();
        if hopeless {
            let pause = Pause { why: Some(why), not_in_force };
            let _ = spawn_blocking(move || sweep.give_up(run, pause)).await;
            return;
        }
        sweep.report(run, SweepState::Waiting { why });
        sleep(RETRY_EVERY).await;
    }
}

async fn measure(
    sweep: &Sweep,
    run: Run,
    record: &SweepRecord,
    what: TrialRun,
    hold: &mut Option<Box<dyn Hold>>,
) -> Result<RecordedTrial, SteerError> {
    let (job, view) = find_job(sweep.means(), record).await?;
    check_energy(&view)?;
    let mut held = match hold.take() {
        Some(held) => held,
        None => {
            check_free(&view)?;
            // Only an administrator begins a sweep of another user's job.
            let administrator = record.by_uid != record.uid;
            job.hold(Asker { uid: record.by_uid, pid: None, administrator })
        }
    };
    sweep.report(run, SweepState::Running);
    let turn = Turn { setting: what, length: record.length(), samples: false };
    let measured = held.turn(turn).await;
    *hold = Some(held).filter(|held| held.is_held());
    let measured = measured?.0;
    // What was measured with a counter that is in doubt by now is of no use.
    check_energy(&find_job(sweep.means(), record).await?.1)?;
    Ok(measured)
}

/// The job, with all of its ranks.
async fn find_job(
    means: &Means,
    record: &SweepRecord,
) -> Result<(Arc<dyn Steer>, JobView), SteerError> {
    let name = &record.job;
    if let Some(view) = means.questions.job(&record.key()).await? {
        let job = means.steering.of(&view);
        let WholeJob { view, members } = job.look().await?;
        match JobShape::of(&view, &members) {
            Some(now) if now == record.shape => return Ok((job, view)),
            Some(now) if !now.is_divided_as(&record.shape) => {
                let (now, then) = (now.partition(), record.shape.partition());
                let message = format!(
                    "job {name} runs as {now} now, its sweep began as {then}; \
                     `pfoctl profile stop {name}` ends the sweep"
                );
                // Those who wait for it want to know about the job as it is now.
                let code = match record.attended {
                    true => RefusalCode::PlanDoesNotFit,
                    false => RefusalCode::UnknownJob,
                };
                return Err(Refusal::new(code, message, "").into());
            }
            _ => {}
        }
    }
    let message = format!("job {name} does not have the ranks that it had when its sweep began");
    Err(Refusal::new(RefusalCode::UnknownJob, message, "").into())
}

//! A sweep that goes on: trial after trial, for as long as the job is there to be measured.

use std::sync::Arc;
use std::time::Duration;

use pfo_protocol::{JobSelector, Refusal, RefusalCode, SweepState, TrialResult, TrialRun};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::hold::Hold;
use crate::node::Node;
use crate::sweep::record::SweepRecord;
use crate::sweep::shape::JobShape;
use crate::sweep::sweeps::{Run, Sweep};
use crate::trial;

/// How often to try what cannot be done now.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Ranks may be away for so long, such as for a restart from a checkpoint.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// Sweeps on until there is nothing left to measure, or for too long nothing could be. Between two trials
/// the job stays held, and so runs the last clock; whenever this ends or is dropped, it goes back to
/// default clocks.
pub async fn run(node: Arc<Node>, sweep: Arc<Sweep>, run: Run) {
    let mut held = None;
    let mut hopeful_until = Instant::now() + PATIENCE;
    while let Some(record) = sweep.record(run) {
        let Some(what) = record.next().run() else {
            drop(held.take());
            let (sweep, node) = (Arc::clone(&sweep), Arc::clone(&node));
            let _ = spawn_blocking(move || sweep.finish(run, &node)).await;
            return;
        };
        match measure(&node, &sweep, run, &record, what, &mut held).await {
            Ok(trial) => {
                hopeful_until = Instant::now() + PATIENCE;
                let sweep = Arc::clone(&sweep);
                let _ = spawn_blocking(move || sweep.take(run, &trial)).await;
            }
            Err(refusal) => {
                // Who else waits for the job need not wait for this.
                drop(held.take());
                let why = refusal.message;
                if refusal.code == RefusalCode::PlanDoesNotFit || Instant::now() > hopeful_until {
                    let sweep = Arc::clone(&sweep);
                    let _ = spawn_blocking(move || sweep.give_up(run, why)).await;
                    return;
                }
                sweep.is_in(run, SweepState::Waiting { why });
                sleep(RETRY_EVERY).await;
            }
        }
    }
}

async fn measure(
    node: &Arc<Node>,
    sweep: &Sweep,
    run: Run,
    record: &SweepRecord,
    what: TrialRun,
    held: &mut Option<Hold>,
) -> Result<TrialResult, Refusal> {
    let hold = match held {
        Some(hold) => hold,
        None => {
            let selector = JobSelector { job: record.job.clone(), uid: Some(record.uid) };
            let job = node.jobs.select(&selector, record.uid, false)?;
            held.insert(Hold::take(node, job, record.by_uid, None)?)
        }
    };
    if JobShape::of(&hold.job().members()).as_ref() != Some(&record.shape) {
        return Err(Refusal::new(
            RefusalCode::UnknownJob,
            format!("the ranks of job {} are not those that it was swept with", record.job),
            "",
        ));
    }
    sweep.is_in(run, SweepState::Running);
    trial::run(hold, what, record.length()).await
}

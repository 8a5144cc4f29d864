//! A sweep that goes on: trial after trial, for as long as the job is there to be measured.

use std::sync::Arc;
use std::time::Duration;

use pfo_protocol::{JobSelector, Refusal, RefusalCode, SweepState, TrialResult, TrialRun};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::hold::Hold;
use crate::job::Job;
use crate::node::Node;
use crate::sweep::record::SweepRecord;
use crate::sweep::shape::JobShape;
use crate::sweep::sweeps::{Run, Sweep};
use crate::trial;

/// How often to look whether the job can be measured.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Ranks may be away for so long, such as for a restart from a checkpoint.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// Trials in a row that may fail. Each one changes the clocks of the job, and has it measured for nothing.
const MOST_FAILURES: u32 = 5;

/// Why nothing was measured.
enum Trouble {
    /// The job cannot be measured now, and was left alone.
    NotNow(Refusal),
    /// A trial has failed.
    Failed(Refusal),
}

/// Sweeps on until there is nothing left to measure, or for too long nothing could be. Between two trials
/// the job stays held, and so runs the last clock; whenever this ends or is dropped, it goes back to
/// default clocks.
pub(crate) async fn run(node: Arc<Node>, sweep: Arc<Sweep>, run: Run) {
    let mut held = None;
    let mut hopeful_until = Instant::now() + PATIENCE;
    let mut failures = 0;
    while let Some(record) = sweep.record(run) {
        let Some(what) = record.next().run() else {
            drop(held.take());
            let (sweep, node) = (Arc::clone(&sweep), Arc::clone(&node));
            let _ = spawn_blocking(move || sweep.finish(run, &node)).await;
            return;
        };
        let trouble = match measure(&node, &sweep, run, &record, what, &mut held).await {
            Ok(trial) => {
                hopeful_until = Instant::now() + PATIENCE;
                failures = 0;
                let sweep = Arc::clone(&sweep);
                let _ = spawn_blocking(move || sweep.take(run, &trial)).await;
                continue;
            }
            Err(trouble) => trouble,
        };
        // Who else waits for the job need not wait for this.
        drop(held.take());
        let (why, hopeless) = match trouble {
            Trouble::NotNow(refusal) => (refusal.message, Instant::now() > hopeful_until),
            Trouble::Failed(refusal) => {
                failures += 1;
                let never = refusal.code == RefusalCode::PlanDoesNotFit;
                (refusal.message, never || failures >= MOST_FAILURES)
            }
        };
        if hopeless {
            let sweep = Arc::clone(&sweep);
            let _ = spawn_blocking(move || sweep.give_up(run, why)).await;
            return;
        }
        sweep.is_in(run, SweepState::Waiting { why });
        sleep(RETRY_EVERY).await;
    }
}

async fn measure(
    node: &Arc<Node>,
    sweep: &Sweep,
    run: Run,
    record: &SweepRecord,
    what: TrialRun,
    held: &mut Option<Hold>,
) -> Result<TrialResult, Trouble> {
    let job = job(node, record).map_err(Trouble::NotNow)?;
    let hold = match held.take().filter(|hold| Arc::ptr_eq(hold.job(), &job)) {
        Some(hold) => hold,
        None => Hold::take(node, job, record.by_uid, None).map_err(Trouble::NotNow)?,
    };
    sweep.is_in(run, SweepState::Running);
    let trial = trial::run(held.insert(hold), what, record.length(), false).await;
    Ok(trial.map_err(Trouble::Failed)?.0)
}

/// The job, with all of its ranks.
fn job(node: &Node, record: &SweepRecord) -> Result<Arc<Job>, Refusal> {
    let selector = JobSelector { job: record.job.clone(), uid: Some(record.uid) };
    let job = node.jobs.select(&selector, record.uid, false)?;
    if JobShape::of(&job.members()).as_ref() == Some(&record.shape) {
        return Ok(job);
    }
    Err(Refusal::new(
        RefusalCode::UnknownJob,
        format!("job {} has not the ranks that it had when its sweep began", record.job),
        "",
    ))
}

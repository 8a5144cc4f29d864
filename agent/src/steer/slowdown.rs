//! The slowdown that somebody allows to a job's plans.

use pfo_fleet::{Guard, Standing};
use pfo_protocol::Refusal;

use crate::pfod::Asker;
use crate::steer::{Attempts, Change, Stands, Steer, SteerError, next_step};

/// Has a job keep a slowdown from now on, or none any more.
///
/// # Errors
/// If it cannot be kept, or the nodes of the job do not agree on it.
pub(crate) async fn allow_slowdown(
    job: &dyn Steer,
    by: Asker,
    max_slowdown: Option<f64>,
) -> Result<(), Refusal> {
    let attempts = Attempts::begin();
    while let Err(why) = try_to_allow(job, by, max_slowdown).await {
        attempts.after(why).await?;
    }
    Ok(())
}

async fn try_to_allow(
    job: &dyn Steer,
    by: Asker,
    max_slowdown: Option<f64>,
) -> Result<(), SteerError> {
    let Stands { view, number, run, standing, .. } = job.stands().await?;
    if max_slowdown.is_none() && standing.guard.is_none() {
        return Ok(());
    }
    let guard = max_slowdown.map(|most| Guard::of(most, job.node().clone(), next_step(&view)));
    let standing = Standing { guard, ..standing };
    job.change(Change { by, run, standing, after: number, wait: false }).await.map(drop)
}

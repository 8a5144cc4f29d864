//! Beginning trials: a job that is held runs something, and its tap says which steps are to be
//! measured. What they take is for the agent to find out.

use std::sync::Arc;

use pfo_policy::Caller;
use pfo_protocol::{Refusal, RefusalCode, Response, TapRecord, TrialLength, TrialRun};
use pfo_service::blocking;
use tokio::time::sleep;

use super::plans::POLL;
use crate::host::journal;
use crate::job::{Hold, Job, Jobs, Measurer};

/// Begins a trial on a job that is held for it. The job continues to run what it runs until its hold
/// ends. If `after` is given, that still has to be the newest swap.
///
/// # Errors
/// If the job has no rank here, does not run that, or is not held any more.
pub(super) async fn begin(
    jobs: &Arc<Jobs>,
    hold: &Hold,
    run: TrialRun,
    (length, after): (TrialLength, Option<u64>),
) -> Result<Response, Refusal> {
    // Such as the return from an earlier trial to default clocks.
    while hold.job.members().plans.half_done().is_some() {
        sleep(POLL).await;
    }
    let (jobs, job, by) = (Arc::clone(jobs), Arc::clone(&hold.job), hold.by);
    let user = hold.caller.clone();
    blocking(move || set_off(&jobs, &job, (by, &user), run, (length, after))).await?
}

fn set_off(
    jobs: &Jobs,
    job: &Arc<Job>,
    (by, user): (Measurer, &Caller),
    run: TrialRun,
    (TrialLength { settling_steps, steps }, after): (TrialLength, Option<u64>),
) -> Result<Response, Refusal> {
    let plan = job.fit(run, jobs.room_for_plans(job.key.uid))?;
    let mut members = job.members();
    // The hold may have ended since; then no code would return the job to default clocks.
    members.check_held(&job.key.name, by)?;
    if members.is_empty() {
        let message = format!("job {} has no rank on this node", job.key.name);
        return Err(Refusal::new(RefusalCode::NoPlan, message, "see `pfoctl status`"));
    }
    members.plans.check_newest(after)?;
    let before = by.gives_way.then(|| members.plans.before_trial()).flatten();
    let swap = job.begin_swap(&mut members, plan, None)?;
    members.plans.begin_trial(before);
    let first_step = swap.step().saturating_add(settling_steps.into());
    for rank in members.ranks() {
        rank.session.progress.tap.put(|| Some(TapRecord::TrialBegan { first_step, steps }));
    }
    drop(members);
    // It waits for the disk, and the ranks run on.
    jobs.keep(job);
    tracing::info!(
        name: journal::SWAPPED,
        uid = user.peer.uid.0, pid = user.peer.pid.0, job = %job.key.name, door = user.agent.map(|_| "agent"), via_pid = user.agent.map(|pid| pid.0),
        plan = swap.plan.as_ref().map_or(0, |plan| plan.number),
        "{user} begins a trial of job {} at step {}: {steps} steps from {first_step} on are measured",
        job.key.name, swap.step()
    );
    Ok(Response::TrialBegan { first_step, plan: swap.plan.as_ref().map(|plan| plan.status()) })
}

//! Requests about tunes.

use std::sync::Arc;

use pfo_protocol::{
    AgentResponse, JobSelector, JobView, Refusal, RefusalCode, SweepState, SweepStatus, TuneOrder,
    TuneState,
};

use crate::authority::Permit;
use crate::front::{Services, away};
use crate::job::JobKey;
use crate::tune::answers::Answers;
use crate::tune::bench::NodeBench;
use crate::tune::tunes::order_of;

/// Begins a tune.
///
/// # Errors
/// If the terms are none, or the job cannot be tuned.
pub(crate) async fn start(
    services: &Arc<Services>,
    permit: &Permit,
    order: TuneOrder,
) -> Result<AgentResponse, Refusal> {
    let terms = order_of(&order).map_err(|why| {
        Refusal::new(
            RefusalCode::Malformed,
            format!("the terms of the tune: {why}"),
            "protocol/README.md lists them",
        )
    })?;
    let job = services.find_job(permit, &order.job).await?;
    let key = JobKey::of(&job);
    check_ranks(services, permit, &job).await?;
    let answers = Answers::default();
    let mut bench = NodeBench::new(Arc::clone(services), permit.clone(), answers, None);
    pfo_experiment::preflight(&mut bench, key.selector()).await?;
    drop(bench);
    let (services, permit) = (Arc::clone(services), permit.clone());
    away(move || {
        let (user, pid) = (permit.user(), permit.pid());
        let asked = (&key, permit);
        let tune = services.tunes.start(&services, asked, (&order, terms))?;
        tracing::info!(
            uid = user.uid.0, owner_uid = user.person.0, pid = pid.0, job = %key.name,
            "{user} began a tune of {key}"
        );
        Ok(AgentResponse::Tune(Box::new(tune.status())))
    })
    .await
}

/// Refuses a job that has no rank on this node, with what is in its way.
async fn check_ranks(services: &Services, permit: &Permit, job: &JobView) -> Result<(), Refusal> {
    if !job.ranks.is_empty() {
        return Ok(());
    }
    let (name, uid) = (&job.job, job.uid);
    let message = format!("job {name} of user {uid} has no rank on this node");
    let runs = |other: &&JobView| other.job == *name && !other.ranks.is_empty();
    if let Some(other) = services.questions.jobs().await?.iter().find(runs)
        && permit.administers()
    {
        let remedy = format!("job {name} of user {} runs: say so with --user", other.uid);
        return Err(Refusal::new(RefusalCode::UnknownJob, message, remedy));
    }
    if let Some(drained) = services.questions.status().await?.daemon.drained {
        let message = format!("{message}, which is drained: {}", drained.reason);
        let remedy = "`pfoctl undrain` grants leases again";
        return Err(Refusal::new(RefusalCode::UnknownJob, message, remedy));
    }
    Err(Refusal::new(RefusalCode::UnknownJob, message, "`pfoctl status` shows where jobs run"))
}

/// The status of a tune, when it is another one than was seen.
///
/// # Errors
/// If the job is not being tuned.
pub(crate) async fn watch(
    services: &Services,
    permit: &Permit,
    job: &JobSelector,
    seen: u64,
) -> Result<AgentResponse, Refusal> {
    let tune = services.tunes.select(job, permit)?;
    Ok(AgentResponse::Tune(Box::new(tune.after(seen).await)))
}

/// Ends a tune.
///
/// # Errors
/// If the job is not being tuned.
pub(crate) async fn stop(
    services: &Services,
    permit: &Permit,
    job: &JobSelector,
) -> Result<AgentResponse, Refusal> {
    let tune = services.tunes.select(job, permit)?;
    let (tunes, user, pid) = (Arc::clone(&services.tunes), permit.user(), permit.pid());
    away(move || {
        let status = tunes.stop(&tune)?;
        tracing::info!(
            uid = user.uid.0, owner_uid = user.person.0, pid = pid.0, job = %status.job,
            "{user} stopped the tune of job {} of user {}", status.job, status.uid
        );
        Ok(AgentResponse::Tune(Box::new(status)))
    })
    .await
}

/// Every tune that the peer may see. One that waits for a sweep is as far as that.
pub(crate) fn list(services: &Services, permit: &Permit) -> AgentResponse {
    let mut tunes = services.tunes.statuses(permit.only_of());
    let sweeps = services.sweeps.statuses(permit.only_of());
    for tune in tunes.iter_mut().filter(|tune| tune.state == TuneState::Profile) {
        let is_its = |sweep: &&SweepStatus| {
            (&sweep.job, sweep.profile.uid) == (&tune.job, tune.uid)
                && !matches!(sweep.state, SweepState::Ended(_))
        };
        if let Some(sweep) = sweeps.iter().find(is_its) {
            let SweepStatus { measured, clocks, remaining_s, .. } = sweep;
            tune.now = format!("sweeping, {measured} of at most {clocks} clocks measured");
            tune.done = f64::from(*measured) / f64::from((*clocks).max(1));
            tune.remaining_s = *remaining_s;
        }
    }
    AgentResponse::Tunes(tunes)
}

/// What a tune has measured and decided.
///
/// # Errors
/// If the job is not being tuned, or its tune is not over.
pub(crate) fn read(
    services: &Services,
    permit: &Permit,
    job: &JobSelector,
) -> Result<AgentResponse, Refusal> {
    let tune = services.tunes.select(job, permit)?;
    if let Some(report) = tune.report() {
        return Ok(AgentResponse::TuneReport(Box::new(report)));
    }
    let is_over = matches!(tune.status().state, TuneState::Ended(_));
    let (code, what) = match is_over {
        true => (RefusalCode::UnknownJob, "has found nothing"),
        false => (RefusalCode::LimitReached, "is not over"),
    };
    let message = format!("the tune of job {} {what}", job.job);
    Err(Refusal::new(code, message, "`pfoctl tune JOB --attach` waits for its end"))
}

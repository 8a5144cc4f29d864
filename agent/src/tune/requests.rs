//! Requests about tunes.

use std::sync::Arc;

use pfo_protocol::{AgentResponse, JobSelector, Refusal, RefusalCode, TuneOrder, TuneState};

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

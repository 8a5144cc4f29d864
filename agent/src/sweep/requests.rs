//! What peers ask of sweeps. To be called where files may be written, on a thread of the runtime.

use std::sync::Arc;

use pfo_protocol::{
    AgentResponse, JobSelector, JobView, RankView, Refusal, RefusalCode, StoredProfile,
    SweepControl, SweepOrder, SweepSettings,
};

use crate::authority::Permit;
use crate::experiments::Experiment;
use crate::job::{JobKey, check_free, no_job};
use crate::steer::WholeJob;
use crate::sweep::attended::Attended;
use crate::sweep::ladder::ladder;
use crate::sweep::record::SweepRecord;
use crate::sweep::replicas;
use crate::sweep::shape::{JobShape, allowed_on_all};
use crate::sweep::sweeps::{Sweep, Sweeps};

/// The most steps that are measured at one clock.
const MOST_STEPS: u32 = 10_000;

/// What an order of a profile leads to.
pub(crate) enum Ordered<S> {
    /// It is stored.
    Stored(StoredProfile),
    /// A sweep that has begun.
    Begun(S),
}

/// Begins a sweep, or finds that it is not needed.
///
/// # Errors
/// If the job cannot be swept like that.
pub(crate) fn start(
    sweeps: &Sweeps,
    permit: &Permit,
    job: &WholeJob,
    order: SweepOrder,
) -> Result<AgentResponse, Refusal> {
    Ok(match begin(sweeps, permit, job, order, false)? {
        Ordered::Stored(profile) => AgentResponse::Reused(profile),
        Ordered::Begun(sweep) => AgentResponse::Sweep(Box::new(sweep.status())),
    })
}

/// Begins a sweep, or continues the job's, until it is over or what this returns is dropped.
/// Without a job, as when `pfod` does not answer, a sweep can only be continued.
///
/// # Errors
/// As [`start`], if the job has no sweep that is not over.
pub(crate) fn attend(
    sweeps: &Sweeps,
    permit: &Permit,
    job: Result<WholeJob, Refusal>,
    order: SweepOrder,
) -> Result<Ordered<Attended>, Refusal> {
    let selector = order.job.clone();
    if let Ok(WholeJob { view, members }) = &job
        && let Some(shape) = JobShape::of(view, members)
    {
        sweeps.end_of_another_shape(&JobKey::of(view), &shape)?;
    }
    let begun = job.and_then(|job| begin(sweeps, permit, &job, order, true));
    let sweep = match begun {
        Ok(Ordered::Stored(profile)) => return Ok(Ordered::Stored(profile)),
        Ok(Ordered::Begun(sweep)) => sweep,
        Err(refusal) => match sweeps.select(&selector, permit) {
            Ok(sweep) if !sweep.is_over() => sweep,
            _ => return Err(refusal),
        },
    };
    let (user, pid, name) = (permit.user(), permit.pid(), &selector.job);
    tracing::info!(
        uid = user.uid.0, owner_uid = user.person.0, pid = pid.0, job = %name,
        "process {pid} of {user} waits for the sweep of job {name}"
    );
    Attended::begin(sweep).map(Ordered::Begun)
}

fn begin(
    sweeps: &Sweeps,
    permit: &Permit,
    WholeJob { view: job, members }: &WholeJob,
    order: SweepOrder,
    attended: bool,
) -> Result<Ordered<Arc<Sweep>>, Refusal> {
    let SweepOrder { model, settings, reuse, .. } = order;
    check(settings)?;
    if job.ranks.is_empty() {
        return Err(no_job(&JobKey::of(job)));
    }
    check_energy(job)?;
    let name = &job.job;
    let shape = JobShape::of(job, members).ok_or_else(|| {
        Refusal::new(
            RefusalCode::LimitReached,
            format!(
                "the ranks of job {name} have not all run a step, or not of equally many \
                 microbatches"
            ),
            "try again after the next step",
        )
    })?;
    let model = model.unwrap_or_else(|| name.clone());
    if reuse && let Some(stored) = sweeps.stored(&shape.key(job.uid, model.clone())) {
        return Ok(Ordered::Stored(stored));
    }
    let allowed = allowed_on_all(members);
    let clocks = ladder(&allowed, settings.stride_mhz, settings.min_mhz);
    if clocks.is_empty() {
        return Err(Refusal::new(
            RefusalCode::PlanDoesNotFit,
            format!(
                "no clock of {} or higher is allowed to all ranks of job {name}",
                settings.min_mhz
            ),
            "`pfoctl policy explain` shows which clocks are",
        ));
    }
    check_free(job)?;
    let count = clocks.len();
    let by = permit.user();
    let replicas = replicas::comparable(job, members);
    let record = SweepRecord::new(JobKey::of(job), by.uid, model, settings, shape, clocks);
    let mut record = record.over(replicas).among(allowed);
    record.attended = attended;
    let sweep = sweeps.start(record)?;
    tracing::info!(
        uid = by.uid.0, owner_uid = by.person.0, pid = permit.pid().0, job = %name,
        "{by} began a sweep of {count} clocks of job {name} of user {}", job.uid
    );
    Ok(Ordered::Begun(sweep))
}

/// Checks that the energy of all GPUs of a job on this node can be measured.
///
/// # Errors
/// The GPU that it cannot be measured of, and why.
pub(super) fn check_energy(job: &JobView) -> Result<(), Refusal> {
    // Before its first step a rank may not have read its counter.
    let lacks_energy = |rank: &&RankView| rank.step.is_some() && !rank.counts_energy;
    let Some(rank) = job.ranks.iter().find(lacks_energy) else { return Ok(()) };
    let meter = rank.meter.as_ref().filter(|meter| meter.withheld);
    let why = meter.map_or("it has no energy counter", |meter| &meter.reason);
    let (gpu, rank, job) = (&rank.gpu_uuid, rank.position.rank, &job.job);
    Err(Refusal::new(
        RefusalCode::GpuUnavailable,
        format!("GPU {gpu} of rank {rank} of job {job} measures no energy: {why}"),
        "its profile cannot be measured; plan with one from GPUs of the same model",
    ))
}

pub(super) fn check(settings: SweepSettings) -> Result<(), Refusal> {
    let SweepSettings { steps, settling_steps, max_slowdown, .. } = settings;
    let wrong =
        |what: String, remedy: String| Err(Refusal::new(RefusalCode::Malformed, what, remedy));
    let possible = 1..=MOST_STEPS;
    if !possible.contains(&steps) || !possible.contains(&settling_steps) {
        return wrong(
            format!("{steps} steps after {settling_steps} at each clock cannot be measured"),
            format!("let it settle for 1 to {MOST_STEPS} steps, and measure 1 to {MOST_STEPS}"),
        );
    }
    match max_slowdown {
        Some(slowdown) if !(0.0..=100.0).contains(&slowdown) => wrong(
            format!("no job can be kept from a slowdown of {slowdown}"),
            "give a share of the step's time, such as 0.1".into(),
        ),
        _ => Ok(()),
    }
}

/// Pauses, resumes or ends a sweep.
///
/// # Errors
/// If the job is not being swept, or a sweep is to go on with a job that runs otherwise `now`.
pub(crate) fn control(
    sweeps: &Sweeps,
    permit: &Permit,
    (job, now): (&JobSelector, Option<WholeJob>),
    control: SweepControl,
) -> Result<AgentResponse, Refusal> {
    let sweep = sweeps.select(job, permit)?;
    let shape = now.and_then(|WholeJob { view, members }| JobShape::of(&view, &members));
    if let Some(shape) = shape {
        sweep.check_shape(&shape)?;
    }
    let status = sweep.control(control)?;
    let (user, owner, name) = (permit.user(), status.profile.uid, &status.job);
    tracing::info!(
        uid = user.uid.0, owner_uid = user.person.0, pid = permit.pid().0, job = %name,
        "{user} asked the sweep of job {name} of user {owner} to {}", in_words(control)
    );
    Ok(AgentResponse::Sweep(Box::new(status)))
}

fn in_words(control: SweepControl) -> &'static str {
    match control {
        SweepControl::Pause => "pause",
        SweepControl::Resume => "resume",
        SweepControl::Stop => "stop",
        SweepControl::Finish => "finish",
    }
}

/// The CSV of what a sweep has measured so far.
///
/// # Errors
/// If the job is not being swept, or nothing was measured yet.
pub(crate) fn read(
    sweeps: &Sweeps,
    permit: &Permit,
    job: &JobSelector,
) -> Result<AgentResponse, Refusal> {
    let (sweep, csv) = sweeps.select(job, permit)?.so_far()?;
    Ok(AgentResponse::Swept { sweep: Box::new(sweep), csv: csv.into_bytes() })
}

/// The sweeps that a peer may see.
pub(crate) fn list(sweeps: &Sweeps, permit: &Permit) -> AgentResponse {
    AgentResponse::Sweeps(sweeps.statuses(permit.only_of()))
}

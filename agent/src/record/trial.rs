//! A recorded trial: `pfod` begins it, and the tap of the job's ranks shows what its steps, their
//! instructions and their waits take.

use std::time::Duration;

use pfo_protocol::{
    DaemonMessage, JobView, PlanStatus, Rank, RankStatus, RankView, RecordedRank, RecordedTrial,
    Refusal, RefusalCode, Request, Response, Status, TapBatch, TapRecord, TrialLength, TrialResult,
    TrialRun,
};
use tokio::time::{Instant, sleep, timeout};

use crate::job::JobKey;
use crate::pfod::{Connection, Pfod, PfodError, unexpected};
use crate::record::limits::{self, Limits, PATIENCE};
use crate::record::observed::{check_unchanged, windows};
use crate::record::recorded::Recorded;
use crate::record::recorder::{Outcome, RecordedRanks, Recorder};
use crate::record::samples::TrialSamples;

/// How long to wait for the first reading of every counter. A GPU without one never has any.
const READY_TIMEOUT: Duration = Duration::from_secs(1);

/// How often to look whether the job is as it was when the trial began.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The first looks, at each of which it is asked whether the driver does what the trial asks; and at its end.
const FIRST_LOOKS: u32 = 2;

/// How long to wait for the rest of the tap.
const TAP_TIMEOUT: Duration = Duration::from_secs(3);

/// What to record.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) run: TrialRun,
    pub(crate) length: TrialLength,
    /// For how many instructions of each rank there is room one by one, if they are to be kept.
    pub(crate) room: Option<usize>,
    /// The swap that has to be the newest one still, for a comparison that gives way to others.
    pub(crate) after: Option<u64>,
}

/// Runs a trial over a connection that holds the job from then on, until it ends. If this is
/// dropped, the connection has an answer outstanding and is of no use any more.
///
/// # Errors
/// If the trial cannot begin, the job does not get to its end as it began, or the tap missed some
/// of it.
pub(crate) async fn run(
    pfod: &Pfod,
    hold: &mut Connection,
    job: &JobKey,
    order: Order,
) -> Result<(RecordedTrial, TrialSamples), PfodError> {
    let status = status(hold).await?;
    let limits = Limits::of(&order.run, &status, job);
    let mut in_force = limits.are_in_force(&status, job);
    loop {
        let (recorded, in_time) = once(pfod, hold, job, &order, (&limits, in_force)).await?;
        if in_time {
            return Ok(recorded);
        }
        tracing::info!("a trial is run once more: {}", Limits::were_late(job).message);
        until_in_force(hold, job, &limits).await?;
        in_force = true;
    }
}

/// One trial, and whether its power limits were in force from its first measured step on, as they
/// were if they were before.
async fn once(
    pfod: &Pfod,
    hold: &mut Connection,
    job: &JobKey,
    order: &Order,
    (limits, in_force_before): (&Limits, bool),
) -> Result<((RecordedTrial, TrialSamples), bool), PfodError> {
    let mut tap = Tap::open(pfod, job, order.room).await?;
    tap.get_ready().await?;
    let Order { run, length, after, .. } = order.clone();
    let request = Request::Trial { job: job.selector(), run, length, after };
    hold.send(request).await?;
    let began = match tap.feed_until(hold.answer()).await {
        Err(error) => return Err(explained(error, hold, job, &order.run).await),
        began => began?,
    };
    let Response::TrialBegan { first_step, plan } = began else { return Err(unexpected(&began)) };
    let before = look(hold, job).await?;
    let in_time = in_force_before || tap.feed_until(in_time(hold, job, limits, first_step)).await?;
    // A refused clock is seen when a step has begun. Looking costs calls of the driver.
    let mut looks = 0_u32;
    let now = loop {
        let is_over = tap.is_complete_within(LOOK_EVERY).await?;
        let now = look(hold, job).await?;
        looks = looks.saturating_add(1);
        if is_over || looks <= FIRST_LOOKS {
            check_in_force(hold, job, limits).await?;
        }
        check_unchanged(job, &before, &now)?;
        let is_held = now.measured_by.is_some() && now.swap == before.swap;
        if !is_held || number(&now.plan) != number(&plan) {
            return Err(disturbed(format!("{job} is not held for measuring any more")).into());
        }
        if is_over {
            break now;
        }
    };
    let recorded = tap.finish().await?;
    let trial = windows(now, first_step, length.steps, &recorded);
    Ok((together(job, trial, recorded)?, in_time))
}

/// Why a plan does not fit, if its job says of itself what its steps contradict: no other clock helps then.
async fn explained(
    error: PfodError,
    hold: &mut Connection,
    job: &JobKey,
    run: &TrialRun,
) -> PfodError {
    let TrialRun::Plan { table, .. } = run else { return error };
    if !matches!(&error, PfodError::Refused(refusal) if refusal.code == RefusalCode::PlanDoesNotFit)
    {
        return error;
    }
    let Ok(view) = look(hold, job).await else { return error };
    contradicted(&view, table.num_microbatches()).map_or(error, PfodError::from)
}

fn contradicted(job: &JobView, planned: u32) -> Option<Refusal> {
    let said = |rank: &RankView| {
        let own = rank.num_microbatches.filter(|own| *own != planned)?;
        Some((rank.position.rank, own))
    };
    let (rank, own) = job.ranks.iter().find_map(said)?;
    let message = format!(
        "a plan for {planned} microbatches in a step does not fit job {}: its rank {rank} said \
         num_microbatches={own} when it connected",
        job.job
    );
    let remedy = "where the plan is right, correct the trainer's num_microbatches or leave it out: it is \
                  counted then";
    Some(Refusal::new(RefusalCode::RankConflict, message, remedy))
}

/// Whether the power limits of a trial come into force before its first measured step.
async fn in_time(
    hold: &mut Connection,
    job: &JobKey,
    limits: &Limits,
    first_step: u64,
) -> Result<bool, PfodError> {
    loop {
        if let Some(in_time) = limits.in_time(&status(hold).await?, job, first_step) {
            return Ok(in_time);
        }
        sleep(limits::LOOK_EVERY).await;
    }
}

async fn until_in_force(
    hold: &mut Connection,
    job: &JobKey,
    limits: &Limits,
) -> Result<(), PfodError> {
    let since = Instant::now();
    loop {
        let status = status(hold).await?;
        if limits.are_in_force(&status, job) {
            return Ok(());
        }
        if since.elapsed() > PATIENCE {
            return Err(limits.stay_away(&status, job).into());
        }
        sleep(limits::LOOK_EVERY).await;
    }
}

fn number(plan: &Option<PlanStatus>) -> Option<u32> {
    plan.as_ref().map(|plan| plan.number)
}

/// The job as its holder sees it, whose hold would end if it asked for nothing for long.
async fn look(hold: &mut Connection, key: &JobKey) -> Result<JobView, PfodError> {
    let jobs = match hold.ask(Request::Jobs).await? {
        Response::Jobs(jobs) => jobs,
        other => return Err(unexpected(&other)),
    };
    let job = jobs.into_iter().find(|job| JobKey::of(job) == *key);
    Ok(job.ok_or_else(|| disturbed(format!("{key} has no rank on this node")))?)
}

/// That the driver does what the trial asks of it, and nothing that it does not ask: otherwise something else is
/// measured.
async fn check_in_force(
    hold: &mut Connection,
    key: &JobKey,
    limits: &Limits,
) -> Result<(), PfodError> {
    let status = status(hold).await?;
    let refusal = refused_by_driver(&status, key).or_else(|| limits.of_budget(&status, key));
    Ok(refusal.map_or(Ok(()), Err)?)
}

async fn status(hold: &mut Connection) -> Result<Status, PfodError> {
    match hold.ask(Request::Status).await? {
        Response::Status(status) => Ok(*status),
        other => Err(unexpected(&other)),
    }
}

/// The first rank of a job whose clock or power limit the driver refuses.
fn refused_by_driver(status: &Status, key: &JobKey) -> Option<Refusal> {
    let job = key.status_in(&status.jobs)?;
    let of_rank = |rank: &RankStatus| {
        let why = rank.problem.as_ref()?;
        let gpu = status.gpus.iter().find(|gpu| gpu.uuid == rank.gpu_uuid)?;
        let (rank, gpu) = (rank.rank, gpu.index);
        let message =
            format!("what {key} is to run is not in force on rank {rank} (GPU {gpu}): {why}");
        Some(Refusal::new(
            RefusalCode::NotInForce,
            message,
            "`pfoctl doctor` checks pfod's rights and the driver",
        ))
    };
    job.ranks.iter().find_map(of_rank)
}

/// The tap of a job and the thread that digests it.
pub(super) struct Tap {
    connection: Connection,
    recorder: Recorder,
    /// Why it has ended.
    broken: Option<PfodError>,
}

impl Tap {
    pub(super) async fn open(
        pfod: &Pfod,
        job: &JobKey,
        room: Option<usize>,
    ) -> Result<Self, PfodError> {
        // A tap is the agent's alone. That the asker may measure the job is decided before.
        let mut connection = pfod.connect().await?;
        let request = Request::Tap { job: job.selector(), counters: true };
        let ranks = match connection.ask(request).await? {
            Response::Tapped(ranks) => ranks,
            other => return Err(unexpected(&other)),
        };
        if ranks.is_empty() {
            return Err(disturbed(format!("{job} has no rank on this node")).into());
        }
        let recorder = Recorder::start(ranks, room).map_err(|error| {
            let message = format!("cannot record {job}: {error}");
            Refusal::new(RefusalCode::Internal, message, "try again later")
        })?;
        Ok(Self { connection, recorder, broken: None })
    }

    /// The trial of every rank, of which `pfod` does not know.
    pub(super) async fn begin(&mut self, ranks: &[Rank], first_step: u64, steps: u32) {
        for rank in ranks {
            let records = vec![TapRecord::TrialBegan { first_step, steps }];
            self.recorder.take(TapBatch { rank: *rank, lost: 0, records }).await;
        }
    }

    /// Feeds the recorder until every rank has everything of its trial, however long that takes.
    pub(super) async fn until_complete(&mut self) -> Result<(), PfodError> {
        let mut progress = self.recorder.progress();
        while !progress.borrow_and_update().is_complete {
            tokio::select! {
                _ = progress.changed() => {}
                message = self.connection.next() => match message? {
                    DaemonMessage::Tap(batch) => self.recorder.take(batch).await,
                    other => return Err(unexpected(&other)),
                }
            }
        }
        Ok(())
    }

    /// Feeds the recorder for a time. Returns whether every rank has everything of its trial.
    async fn is_complete_within(&mut self, time: Duration) -> Result<bool, PfodError> {
        let mut progress = self.recorder.progress();
        let complete = async move {
            let _ = progress.wait_for(|progress| progress.is_complete).await;
        };
        let complete = self.feed_until(timeout(time, complete)).await;
        self.broken.take().map_or(Ok(complete.is_ok()), Err)
    }

    async fn get_ready(&mut self) -> Result<(), PfodError> {
        let mut progress = self.recorder.progress();
        let ready = async move {
            let _ = progress.wait_for(|progress| progress.is_ready).await;
        };
        let _ = timeout(READY_TIMEOUT, self.feed_until(ready)).await;
        self.broken.take().map_or(Ok(()), Err)
    }

    /// Feeds the recorder until something else is done.
    pub(super) async fn feed_until<T>(&mut self, done: impl Future<Output = T>) -> T {
        tokio::pin!(done);
        loop {
            let batch = tokio::select! {
                biased;
                done = &mut done => return done,
                message = self.connection.next(), if self.broken.is_none() => message,
            };
            match batch {
                Ok(DaemonMessage::Tap(batch)) => self.recorder.take(batch).await,
                Ok(other) => self.broken = Some(unexpected(&other)),
                Err(error) => self.broken = Some(error),
            }
        }
    }

    pub(super) async fn finish(mut self) -> Result<RecordedRanks, PfodError> {
        let mut progress = self.recorder.progress();
        let complete = async move {
            let _ = progress.wait_for(|progress| progress.is_complete).await;
        };
        if self.broken.is_none() {
            let _ = timeout(TAP_TIMEOUT, self.feed_until(complete)).await;
        }
        match self.broken {
            Some(why) => Err(why),
            None => Ok(self.recorder.finish().await),
        }
    }
}

/// Puts together the windows of a trial and what the tap showed of instructions.
///
/// # Errors
/// If the tap did not show the trial of every rank.
pub(crate) fn together(
    job: &JobKey,
    trial: TrialResult,
    mut recorded: RecordedRanks,
) -> Result<(RecordedTrial, TrialSamples), Refusal> {
    let mut ranks = Vec::with_capacity(trial.ranks.len());
    let mut samples = TrialSamples::default();
    for (rank, outcome) in &recorded {
        let what = match outcome {
            Outcome::Recorded(_) => continue,
            Outcome::LostEvents => "lost events during",
            Outcome::NoTrial => "did not show",
        };
        return Err(disturbed(format!("the tap of rank {rank} of {job} {what} the trial")));
    }
    if trial.ranks.is_empty() {
        return Err(disturbed(format!("the tap did not show every measured step of {job}")));
    }
    let last_step = trial.first_step.saturating_add(trial.steps.len() as u64);
    for measured in &trial.ranks {
        let rank = measured.rank;
        let Some(Outcome::Recorded(of_rank)) = recorded.remove(&rank) else {
            let message = format!("the tap did not show rank {rank} of {job}");
            return Err(disturbed(message));
        };
        let steps = of_rank.steps.iter().map(|mark| mark.step);
        if !steps.eq(trial.first_step..=last_step) {
            let message =
                format!("rank {rank} of {job} did not count its steps one by one during the trial");
            return Err(disturbed(message));
        }
        let Recorded { readings, stray_readings, rows, waits, .. } = of_rank;
        ranks.push(RecordedRank { rank, readings, stray_readings, rows, waits });
        samples.add(rank, of_rank.samples, of_rank.dropped_samples);
    }
    Ok((RecordedTrial { trial, ranks }, samples))
}

pub(super) fn disturbed(message: String) -> Refusal {
    Refusal::new(RefusalCode::NoPlan, message, "see `pfoctl status`, and try again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::straggler::tests::job as example_job;

    #[test]
    fn a_rank_that_said_another_number_of_microbatches_than_its_plan_has_is_named() {
        let mut job = example_job(2);
        job.ranks[1].num_microbatches = Some(1);
        let refusal = contradicted(&job, 4).unwrap();
        assert_eq!(refusal.code, RefusalCode::RankConflict, "a sweep would not help");
        assert_eq!(
            refusal.message,
            "a plan for 4 microbatches in a step does not fit job team/j: its rank 1 said \
             num_microbatches=1 when it connected"
        );
        assert_eq!(contradicted(&job, 1), None);
    }
}

//! A trial: a job runs something for some steps, and what its GPUs did meanwhile is measured.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use pfo_planner::Mhz;
use pfo_protocol::{
    GpuName, Refusal, RefusalCode, TrialLength, TrialRank, TrialResult, TrialRun, TrialStep,
};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::fit::JobPlan;
use crate::hold::Hold;
use crate::job::{Job, Measurer, Member};
use crate::journal;
use crate::node::Node;
use crate::record::recorded::{Recorded, StepMark};
use crate::record::sampler::Recorder;
use crate::requests::check_label;
use crate::session::internal;
use crate::swap::Swap;
use crate::trial_samples::{MOST_SAMPLES, TrialSamples};

/// How often to look whether the steps are over.
const POLL: Duration = Duration::from_millis(20);

/// How long to wait for the first reading of the counters.
const READY_TIMEOUT: Duration = Duration::from_secs(1);

/// More steps than this would not fit into an answer with everything else.
const MOST_STEPS: u32 = 50_000;

/// A trial that has begun.
struct UnderWay {
    job: Arc<Job>,
    swap: Arc<Swap>,
    range: Range<u64>,
    ranks: Vec<(Member, Recorder)>,
}

/// Runs a trial on a job that is held for that. If this is dropped, nothing is recorded any more, while
/// the job runs on as it does until it is held no more.
///
/// Each instruction by itself is there if `samples` asks for it.
///
/// # Errors
/// If it cannot begin, or the job does not get to its end as it began.
pub async fn run(
    hold: &Hold,
    run: TrialRun,
    length: TrialLength,
    samples: bool,
) -> Result<(TrialResult, TrialSamples), Refusal> {
    check(length)?;
    let both = || (Arc::clone(hold.node()), Arc::clone(hold.job()));
    let (node, job) = both();
    let ranks = away(move || record(&node, &job, samples)).await?;
    let ready = async {
        while !ranks.iter().all(|(_, recorder)| recorder.is_ready()) {
            sleep(POLL).await;
        }
    };
    // A GPU without a counter never is.
    let _ = timeout(READY_TIMEOUT, ready).await;
    let ((node, job), by) = (both(), hold.by());
    let trial = away(move || begin(&node, &job, by, ranks, run, length)).await?;
    while !trial.ranks.iter().all(|(_, recorder)| recorder.is_finished()) {
        trial.check()?;
        sleep(POLL).await;
    }
    trial.check()?;
    away(move || trial.result()).await
}

/// Does what may take its time on another thread than that of the runtime.
async fn away<T: Send + 'static>(
    what: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    spawn_blocking(what).await.map_err(|error| internal(&error))?
}

fn check(length: TrialLength) -> Result<(), Refusal> {
    let TrialLength { settling_steps, steps } = length;
    if settling_steps > 0 && (1..=MOST_STEPS).contains(&steps) {
        return Ok(());
    }
    Err(Refusal::new(
        RefusalCode::Malformed,
        format!("a trial of {steps} steps after {settling_steps} cannot be measured"),
        format!("let it settle for 1 step or more, and measure 1 to {MOST_STEPS} steps"),
    ))
}

/// Begins to record every rank.
fn record(node: &Node, job: &Job, samples: bool) -> Result<Vec<(Member, Recorder)>, Refusal> {
    let members: Vec<_> = job.members().ranks.values().cloned().collect();
    if members.is_empty() {
        return Err(disturbed(job, "has no rank on this node"));
    }
    let gpus = node.ready_driver()?.gpus.len();
    let room = samples.then(|| MOST_SAMPLES / gpus.max(1));
    let recorders = members.into_iter().map(|member| {
        let gpu = node.gpu(&GpuName::Uuid(member.gpu.uuid.clone()))?;
        let recorder =
            Recorder::start(&member.session, &gpu, room).map_err(|error| internal(&error))?;
        Ok((member, recorder))
    });
    recorders.collect()
}

fn begin(
    node: &Node,
    job: &Arc<Job>,
    by: Measurer,
    ranks: Vec<(Member, Recorder)>,
    run: TrialRun,
    length: TrialLength,
) -> Result<UnderWay, Refusal> {
    let room = node.jobs.room_for_plans(job.key.uid);
    let swap = {
        let mut members = job.members();
        // Whoever held it may have let go since; nobody would bring the job back to default clocks.
        if members.measured_by != Some(by) {
            return Err(disturbed(job, "is not held for measuring any more"));
        }
        let plan = match run {
            TrialRun::DefaultClocks => None,
            TrialRun::Plan { label, plan } => {
                check_label(&label)?;
                Some(job.fit(&mut members, label, &plan, room)?)
            }
            TrialRun::Uniform(mhz) => {
                members.plans_made += 1;
                Some(Arc::new(JobPlan::uniform(members.plans_made, Mhz(mhz))))
            }
            TrialRun::PowerLimits { label, limits_w } => {
                check_label(&label)?;
                Some(job.fit_power_limits(&mut members, label, &limits_w)?)
            }
            _ => return Err(unknown_run()),
        };
        let swap = job.swap_while_held(&mut members, plan, 0)?;
        members.trial = Some(swap.number);
        members.straggler = None;
        swap
    };
    node.jobs.keep(job);
    let first = swap.step() + u64::from(length.settling_steps);
    let range = first..first + u64::from(length.steps);
    ranks.iter().for_each(|(_, recorder)| recorder.count(range.clone()));
    tracing::info!(
        name: journal::SWAPPED,
        uid = by.uid, pid = by.pid, job = %job.key.name,
        plan = swap.plan.as_ref().map_or(0, |plan| plan.number),
        "trial from step {} on, measuring steps {first} to {}", swap.step(), range.end - 1
    );
    Ok(UnderWay { job: Arc::clone(job), swap, range, ranks })
}

impl UnderWay {
    /// Checks that the job is as it was when the trial began.
    fn check(&self) -> Result<(), Refusal> {
        let sessions = self.ranks.iter().map(|(member, _)| member.session.holder.session);
        let now = self.job.members();
        if !now.ranks.values().map(|member| member.session.holder.session).eq(sessions) {
            return Err(disturbed(&self.job, "lost or gained a rank during the trial"));
        }
        if let Some(plan) = &self.swap.plan
            && let Some(why) = plan.status().suspended
        {
            return Err(disturbed(&self.job, &format!("had the trial's plan suspended: {why}")));
        }
        if self.ranks.iter().any(|(_, recorder)| recorder.has_overflowed()) {
            return Err(disturbed(&self.job, "told more events than can be recorded"));
        }
        Ok(())
    }

    fn result(self) -> Result<(TrialResult, TrialSamples), Refusal> {
        let Self { job, swap, range, ranks } = self;
        let steps = range.end - range.start;
        let mut recorded: Vec<_> =
            ranks.into_iter().map(|(member, recorder)| (member, recorder.finish())).collect();
        let whole = |(_, recorded): &(Member, Recorded)| {
            recorded.steps.iter().map(|mark| mark.step).eq(range.start..=range.end)
        };
        if !recorded.iter().all(whole) {
            return Err(disturbed(&job, "did not count its steps one by one during the trial"));
        }
        let mut samples = TrialSamples::default();
        for (member, recorded) in &mut recorded {
            let of_rank = std::mem::take(&mut recorded.samples);
            samples.add(member.hello.position.rank, of_rank, recorded.dropped_samples);
        }
        let result = TrialResult {
            plan: swap.plan.as_ref().map(|plan| plan.status()),
            first_step: range.start,
            steps: (0..steps as usize).map(|step| step_of(&recorded, step)).collect(),
            ranks: recorded
                .into_iter()
                .map(|(member, recorded)| rank_of(&member, recorded))
                .collect(),
        };
        Ok((result, samples))
    }
}

fn step_of(ranks: &[(Member, Recorded)], step: usize) -> TrialStep {
    let begin_ns = |step: usize| {
        ranks.iter().map(|(_, recorded)| recorded.steps[step].at_ns).max().unwrap_or(0)
    };
    let energy_j =
        |(_, recorded): &(Member, Recorded)| used(&recorded.steps[step], &recorded.steps[step + 1]);
    TrialStep {
        time_s: seconds(begin_ns(step), begin_ns(step + 1)),
        energy_j: ranks.iter().map(energy_j).sum(),
    }
}

fn rank_of(member: &Member, recorded: Recorded) -> TrialRank {
    let position = &member.hello.position;
    let steps = (recorded.steps.len() - 1) as f64;
    let (first, last) = (recorded.steps[0], recorded.steps[recorded.steps.len() - 1]);
    TrialRank {
        rank: position.rank,
        stage: position.pp_rank,
        dp_rank: position.dp_rank,
        tp_rank: position.tp_rank,
        gpu_uuid: member.gpu.uuid.clone(),
        gpu_model: member.gpu.model.clone(),
        time_s: seconds(first.at_ns, last.at_ns) / steps,
        energy_j: used(&first, &last).map(|energy_j| energy_j / steps),
        mismatched_steps: recorded.mismatched_steps,
        readings: recorded.readings,
        stray_readings: recorded.stray_readings,
        rows: recorded.rows,
        waits: recorded.waits,
    }
}

fn seconds(from_ns: u64, until_ns: u64) -> f64 {
    until_ns.saturating_sub(from_ns) as f64 / 1e9
}

fn used(from: &StepMark, until: &StepMark) -> Option<f64> {
    Some(until.energy_j? - from.energy_j?)
}

fn disturbed(job: &Job, what: &str) -> Refusal {
    Refusal::new(
        RefusalCode::NoPlan,
        format!("job {} {what}", job.key.name),
        "see `pfoctl status`, and try again",
    )
}

fn unknown_run() -> Refusal {
    Refusal::new(
        RefusalCode::Malformed,
        "this daemon does not know what the trial is to run",
        "install the same release of pfod and pfoctl",
    )
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;
    use tokio::task::yield_now;

    use super::*;
    use crate::cli::ConfigSource;
    use crate::config::Config;
    use crate::job::JobKey;
    use crate::ledger::Ledger;

    const LENGTH: TrialLength = TrialLength { settling_steps: 1, steps: 1 };

    #[test]
    fn a_trial_that_begins_when_its_hold_has_ended_is_refused_and_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.paths.ledger = directory.path().join("ledger.json");
        config.paths.state = directory.path().to_owned();
        let ledger = Ledger::open(&config.paths.ledger).unwrap();
        let node = Arc::new(Node::new(ConfigSource::default(), config, ledger));
        let job = node.jobs.find_or_create(JobKey { uid: 7, name: "j".parse().unwrap() }, 1);
        let hold = || Hold::take(&node, Arc::clone(&job), 7, None).unwrap();
        let attempt = |by| begin(&node, &job, by, Vec::new(), TrialRun::DefaultClocks, LENGTH);
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let ended = hold();
            let by = ended.by();
            drop(ended);
            while job.members().measured_by.is_some() {
                yield_now().await;
            }
            let refused = || attempt(by).err().map(|refusal| refusal.message);
            let why = "job j is not held for measuring any more";
            assert_eq!(refused().as_deref(), Some(why));
            // Nor is it where somebody else holds the job by now.
            let held = hold();
            assert_eq!(refused().as_deref(), Some(why));
            assert!(job.members().swaps.is_empty() && job.members().trial.is_none());
            assert!(attempt(held.by()).is_ok());
            assert!(job.members().trial.is_some());
        });
    }
}

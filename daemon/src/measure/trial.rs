//! A trial: a job runs a plan or a clock for some steps, and the time and energy of each step are
//! measured.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pfo_protocol::{
    Rank, Refusal, RefusalCode, TapRecord, TrialLength, TrialRank, TrialResult, TrialRun, TrialStep,
};
use pfo_service::blocking;
use tokio::time::{sleep, timeout};

use super::meter::{Listener, Meter};
use super::meters::Meters;
use super::step_energies::{StepEnergies, StepMark};
use crate::host::journal;
use crate::job::{Hold, Job, Jobs, Measurer, Member, Runs, Swap};

/// How often to check whether the steps have ended.
const POLL: Duration = Duration::from_millis(20);

/// How long to wait for the first reading of the counters.
const READY_TIMEOUT: Duration = Duration::from_secs(5);

/// One rank in a trial, and its meter.
struct Measured {
    member: Member,
    energies: Arc<RankEnergies>,
    meter: Arc<Meter>,
}

/// Takes what the meter of one rank hands over.
#[derive(Default)]
struct RankEnergies(Mutex<StepEnergies>);

impl RankEnergies {
    fn now(&self) -> MutexGuard<'_, StepEnergies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener for RankEnergies {
    fn wants_counters(&self) -> bool {
        true
    }

    fn take(&self, _: Rank, lost: u64, records: &[TapRecord]) {
        self.now().take(lost, records);
    }
}

/// A trial that has begun.
struct UnderWay {
    job: Arc<Job>,
    swap: Arc<Swap>,
    first_step: u64,
    steps: u32,
    ranks: Vec<Measured>,
}

/// Runs a trial on a job that is held for it. If this is dropped, measuring stops, while the job
/// continues to run what it runs until its hold ends.
///
/// # Errors
/// If it cannot begin, or the job changes during the trial.
pub(crate) async fn run(
    jobs: &Arc<Jobs>,
    meters: &Arc<Meters>,
    hold: &Hold,
    run: TrialRun,
    length: TrialLength,
) -> Result<TrialResult, Refusal> {
    let (meters, job) = (Arc::clone(meters), Arc::clone(hold.job()));
    let ranks = blocking(move || measure(&meters, &job)).await??;
    let ready = async {
        while !ranks.iter().all(|rank| rank.energies.now().is_ready()) {
            sleep(POLL).await;
        }
    };
    // A GPU without a counter never has a reading.
    let _ = timeout(READY_TIMEOUT, ready).await;
    // Such as the return from an earlier trial to default clocks.
    while hold.job().members().plans.half_done().is_some() {
        sleep(POLL).await;
    }
    let (jobs, job, by) = (Arc::clone(jobs), Arc::clone(hold.job()), hold.by());
    let trial = blocking(move || begin(&jobs, &job, by, ranks, run, length)).await??;
    while !trial.is_complete() {
        trial.check()?;
        sleep(POLL).await;
    }
    trial.check()?;
    trial.result()
}

/// Begins to measure every rank.
fn measure(meters: &Meters, job: &Job) -> Result<Vec<Measured>, Refusal> {
    let members: Vec<_> = job.members().ranks().cloned().collect();
    if members.is_empty() {
        return Err(disturbed(job, "has no rank on this node"));
    }
    let measured = members.into_iter().map(|member| {
        let energies = Arc::<RankEnergies>::default();
        let meter = meters.listen(&member.session, &member.gpu.uuid, &energies)?;
        Ok(Measured { member, energies, meter })
    });
    measured.collect()
}

fn begin(
    jobs: &Jobs,
    job: &Arc<Job>,
    by: Measurer,
    ranks: Vec<Measured>,
    run: TrialRun,
    length: TrialLength,
) -> Result<UnderWay, Refusal> {
    let most = jobs.room_for_plans(job.key.uid);
    let runs = match run {
        TrialRun::DefaultClocks => None,
        TrialRun::Plan { label, table } => Some(Runs::Table(label, table)),
        TrialRun::Uniform(mhz) => Some(Runs::Uniform(vec![mhz])),
        TrialRun::Replicas(clocks) => Some(Runs::Uniform(clocks)),
        TrialRun::PowerLimits { label, limits_w } => Some(Runs::PowerLimits(label, limits_w)),
        TrialRun::FreeMemory => Some(Runs::FreeMemory),
    };
    let plan = runs.map(|runs| job.fit(runs, most)).transpose()?.map(Arc::new);
    let swap = {
        let mut members = job.members();
        // The hold may have ended since; then no code would return the job to default clocks.
        if members.held != Some(by) {
            return Err(disturbed(job, "is not held for measuring any more"));
        }
        let swap = job.begin_swap(&mut members, plan, None)?;
        members.plans.begin_trial();
        swap
    };
    let (steps, step) = (length.steps, swap.step());
    let first_step = step.saturating_add(length.settling_steps.into());
    let range = TapRecord::TrialBegan { first_step, steps };
    ranks.iter().for_each(|rank| rank.meter.put(range));
    // It waits for the disk, and the ranks run on.
    jobs.keep(job);
    tracing::info!(
        name: journal::SWAPPED,
        uid = by.uid.0, pid = by.pid.map(|pid| pid.0), job = %job.key.name,
        plan = swap.plan.as_ref().map_or(0, |plan| plan.number),
        "trial of user {} on job {} from step {step} on: {steps} steps from {first_step} on are \
         measured",
        by.uid, job.key.name
    );
    Ok(UnderWay { job: Arc::clone(job), swap, first_step, steps, ranks })
}

impl UnderWay {
    fn is_complete(&self) -> bool {
        self.ranks.iter().all(|rank| {
            let energies = rank.energies.now();
            energies.counts_from(self.first_step) && energies.is_complete()
        })
    }

    /// Checks that the job is as it was when the trial began.
    fn check(&self) -> Result<(), Refusal> {
        let session = |member: &Member| member.session.holder.session;
        let measured = self.ranks.iter().map(|rank| session(&rank.member));
        if !self.job.members().ranks().map(session).eq(measured) {
            return Err(disturbed(&self.job, "lost or gained a rank during the trial"));
        }
        if let Some(plan) = &self.swap.plan
            && let Some(why) = plan.status().suspended
        {
            return Err(disturbed(&self.job, &format!("had the trial's plan suspended: {why}")));
        }
        if self.ranks.iter().any(|rank| rank.energies.now().is_broken()) {
            return Err(disturbed(&self.job, "sent more events than can be measured"));
        }
        Ok(())
    }

    fn result(self) -> Result<TrialResult, Refusal> {
        if !self.ranks.iter().all(|rank| rank.energies.now().is_whole()) {
            let why = "did not count its steps one by one during the trial";
            return Err(disturbed(&self.job, why));
        }
        let marks = |rank: &Measured| rank.energies.now().steps().to_vec();
        let marks: Vec<_> = self.ranks.iter().map(marks).collect();
        let ranks = self.ranks.iter().zip(&marks).map(|(rank, marks)| rank_of(rank, marks));
        Ok(TrialResult {
            plan: self.swap.plan.as_ref().map(|plan| plan.status()),
            first_step: self.first_step,
            steps: (0..self.steps as usize).map(|step| step_of(&marks, step)).collect(),
            ranks: ranks.collect(),
        })
    }
}

fn step_of(ranks: &[Vec<StepMark>], step: usize) -> TrialStep {
    let next = step.saturating_add(1);
    let begin_ns = |step: usize| ranks.iter().map(|marks| marks[step].at_ns).max().unwrap_or(0);
    TrialStep {
        time_s: seconds(begin_ns(step), begin_ns(next)),
        energy_j: ranks.iter().map(|marks| used(&marks[step], &marks[next])).sum(),
    }
}

fn rank_of(rank: &Measured, marks: &[StepMark]) -> TrialRank {
    let steps = marks.len().saturating_sub(1);
    let (first, last, steps) = (marks[0], marks[steps], steps as f64);
    let position = &rank.member.hello.position;
    TrialRank {
        rank: position.rank,
        stage: position.pp_rank,
        dp_rank: position.dp_rank,
        tp_rank: position.tp_rank,
        gpu_uuid: rank.member.gpu.uuid.clone(),
        gpu_model: rank.member.gpu.model.clone(),
        time_s: seconds(first.at_ns, last.at_ns) / steps,
        energy_j: used(&first, &last).map(|energy_j| energy_j / steps),
        mismatched_steps: rank.energies.now().mismatched_steps(),
    }
}

fn seconds(from_ns: u64, until_ns: u64) -> f64 {
    until_ns.saturating_sub(from_ns) as f64 / 1e9
}

fn used(from: &StepMark, until: &StepMark) -> Option<f64> {
    Some(until.energy_j? - from.energy_j?)
}

fn disturbed(job: &Job, what: &str) -> Refusal {
    let message = format!("job {} {what}", job.key.name);
    Refusal::new(RefusalCode::NoPlan, message, "see `pfoctl status`, and try again")
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Uid;
    use tokio::runtime::Builder;
    use tokio::task::yield_now;

    use super::*;
    use crate::job::{Holds, JobKey, jobs_in};

    const LENGTH: TrialLength = TrialLength { settling_steps: 1, steps: 1 };

    fn mark(step: u64, at_ns: u64, energy_j: Option<f64>) -> StepMark {
        StepMark { step, at_ns, energy_j }
    }

    #[test]
    fn a_trial_that_begins_when_its_hold_has_ended_is_refused_and_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let jobs = Arc::new(jobs_in(directory.path()));
        let job = jobs.find_or_create(JobKey { uid: Uid(7), name: "j".parse().unwrap() }, 1);
        let hold =
            |holds: &mut Holds| holds.take(&jobs, Arc::clone(&job), Uid(7), None).unwrap().by();
        let attempt = |by| begin(&jobs, &job, by, Vec::new(), TrialRun::DefaultClocks, LENGTH);
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut ended = Holds::default();
            let by = hold(&mut ended);
            drop(ended);
            while job.members().held.is_some() {
                yield_now().await;
            }
            let refused = || attempt(by).err().map(|refusal| refusal.message);
            let why = "job j is not held for measuring any more";
            assert_eq!(refused().as_deref(), Some(why));
            // Nor while another connection holds the job.
            let mut holds = Holds::default();
            let held = hold(&mut holds);
            assert_eq!(refused().as_deref(), Some(why));
            assert_eq!(job.members().plans.newest_number(), 0);
            assert!(job.members().plans.trial().is_none());
            assert!(attempt(held).is_ok());
            assert!(job.members().plans.trial().is_some());
        });
    }

    #[test]
    fn a_step_lasts_from_the_last_rank_that_begins_it_to_the_last_that_begins_the_next() {
        let ranks = [
            vec![mark(2, 1_000_000_000, Some(5.0)), mark(3, 3_000_000_000, Some(25.0))],
            vec![mark(2, 2_000_000_000, Some(1.0)), mark(3, 2_500_000_000, Some(4.0))],
        ];
        assert_eq!(step_of(&ranks, 0), TrialStep { time_s: 1.0, energy_j: Some(23.0) });
    }

    #[test]
    fn a_step_of_a_gpu_without_a_counter_has_no_energy() {
        let known = vec![mark(2, 0, Some(5.0)), mark(3, 1, Some(25.0))];
        let ranks = [known, vec![mark(2, 0, Some(1.0)), mark(3, 1, None)]];
        assert_eq!(step_of(&ranks, 0).energy_j, None);
    }

    #[test]
    fn times_at_their_end_and_out_of_order_make_a_step_of_no_time() {
        let ranks = [vec![mark(2, u64::MAX, None), mark(3, 0, None)]];
        assert_eq!(step_of(&ranks, 0), TrialStep { time_s: 0.0, energy_j: None });
    }
}

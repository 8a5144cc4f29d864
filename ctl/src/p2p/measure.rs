//! `pfoctl p2p measure`: measures two GPUs that only wait for each other, or the waits of a job.

use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use pfo_protocol::{
    AgentRequest, GpuName, GpuStatus, GpuUuid, JobName, JobStatus, Mhz, P2pPower, RecordedTrial,
    RefusalCode, Request, Response, Status, SwapTarget, TrialLength, TrialRun, Uid,
};

use super::{P2pError, powers};
use crate::arguments::{GpuArgument, JobArguments, NoSuchJob, number};
use crate::daemons::{Agent, ConnectionError, Daemons};
use crate::error::Error;
use crate::fleet::{self, of_whole_job};
use crate::output::Output;
use crate::own_job::OwnJob;
use crate::trial::{Held, Interrupt};
use crate::user;

const POLL: Duration = Duration::from_millis(100);

/// How long a job may be busy with the swap before this one.
const BUSY: Duration = Duration::from_secs(30);

/// Lower clocks, as shares of the highest one. The lowest one is measured, too: waits may have it.
const LOWER: [f64; 3] = [0.85, 0.7, 0.55];

/// Measurements at each clock.
const REPEATS: u32 = 3;

/// The waits of a job are measured until the standard error of every power is at most this share of
/// it…
const GOOD_ERROR: f64 = 0.002;

/// …but for no more than this many seconds.
const LONG_ENOUGH_S: f64 = 20.0;

/// Measure the P2P-blocking power of two GPUs, or from the waits of a running job
///
/// A helper keeps two free GPUs in a receive that never completes, while pfod reads their energy counters
/// at the highest clock and at some lower ones. With --job, the waits of that job are measured instead.
/// The job then runs all of its instructions at each of these clocks, and so more slowly; afterwards it
/// returns to what it ran before. pfo-agent stores the result by GPU and model, for `plan optimize`.
#[derive(Args)]
pub(crate) struct Measure {
    /// The two GPUs, by index, UUID or PCI bus id [default: two free ones of the same model]
    #[arg(long, value_name = "GPU,GPU", value_delimiter = ',')]
    gpus: Vec<GpuArgument>,

    /// The clocks to measure at [default: the highest one, three lower ones and the lowest one]
    #[arg(long, value_name = "MHZ,…", value_delimiter = ',', value_parser = number::mhz)]
    clocks: Vec<Mhz>,

    /// Command that keeps two GPUs waiting: pfoctl starts it with --gpus UUID,UUID --job NAME, and it must
    /// run until its standard input is closed
    #[arg(long, value_name = "COMMAND", default_value = "python3 -m pfo_gpu.p2p")]
    helper: String,

    /// Measure the waits of this job
    #[arg(long, conflicts_with_all = ["gpus", "helper"])]
    job: Option<JobName>,

    /// The owner of the job, by name or number [default: yourself]
    #[arg(long, value_name = "USER", value_parser = user::parse, requires = "job")]
    user: Option<Uid>,

    /// Steps of each measurement. A step of the helper takes a second. A job is measured for more steps if
    /// its waits are too short for the energy counter
    #[arg(long, value_name = "N", default_value = "5", value_parser = number::steps)]
    steps: u32,

    /// Print JSON: an array with the powers that pfo-agent stored
    #[arg(long)]
    json: bool,
}

impl Measure {
    pub(super) fn run(&self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let kept = match &self.job {
            Some(job) => self.of_job(daemons, &JobArguments::of(job.clone(), self.user))?,
            None => self.of_receive(daemons)?,
        };
        powers::print(&kept, self.json, output)
    }

    fn of_receive(&self, daemons: &Daemons) -> Result<Vec<P2pPower>, Error> {
        let gpus = two_gpus(&daemons.pfod()?.status()?, &self.named_gpus(daemons)?)?;
        let clocks = self.clocks_of(daemons, &gpus[0])?;
        let name = format!("p2p-{}", std::process::id());
        let name: JobName = name.parse().map_err(|_| NoSuchJob::None(name))?;
        let job = JobArguments::of(name, Some(user::own()));
        // Before anything that takes over which signals are blocked.
        let mut held: Held<Agent> = Held::new(daemons, &job, Interrupt::prepare()?, "measuring")?;
        let mut helper = OwnJob::start(&self.helper, &gpus, job.name(), daemons.trainer_socket())?;
        helper.until_works(daemons, &job, gpus.len())?;
        let all = clocks.len() as u32 * REPEATS;
        for (number, clock) in (0..).zip(clocks.iter().flat_map(|clock| [clock; REPEATS as usize]))
        {
            held.progress().show(f64::from(number) / f64::from(all));
            helper.check()?;
            held.trial(&TrialRun::Uniform(*clock), self.length())?;
        }
        let kept = keep(&mut held, &job)?;
        held.let_go()?;
        Ok(kept)
    }

    fn of_job(&self, daemons: &Daemons, job: &JobArguments) -> Result<Vec<P2pPower>, Error> {
        let before = find(daemons, job)?;
        let gpu = before.ranks.first().map(|rank| rank.gpu_uuid.clone());
        let gpu = gpu.ok_or_else(|| job.missing())?;
        let clocks = self.clocks_of(daemons, &gpu)?;
        let mut held: Held<Agent> = Held::new(daemons, job, Interrupt::prepare()?, "measuring")?;
        for (number, clock) in clocks.iter().enumerate() {
            held.progress().show(number as f64 / clocks.len() as f64);
            held.progress().now(format!("waiting at {clock}"));
            let run = TrialRun::Uniform(*clock);
            let trial = held.trial(&run, self.length())?;
            if let Some(steps) = further_steps(&trial) {
                held.trial(&run, TrialLength { steps, ..self.length() })?;
            }
        }
        let kept = keep(&mut held, job);
        held.let_go()?;
        if before.plan.is_some() {
            roll_back(daemons, job)?;
        }
        kept
    }

    fn named_gpus(&self, daemons: &Daemons) -> Result<Vec<GpuName>, Error> {
        let mut pfod = daemons.pfod()?;
        Ok(self.gpus.iter().map(|gpu| gpu.resolve(&mut pfod)).collect::<Result<_, _>>()?)
    }

    /// The clocks that were given, or some of those of a GPU.
    fn clocks_of(&self, daemons: &Daemons, gpu: &GpuUuid) -> Result<Vec<Mhz>, Error> {
        match &self.clocks[..] {
            [] => Ok(spread(&sm_clocks(daemons, gpu)?)),
            given => Ok(given.to_vec()),
        }
    }

    fn length(&self) -> TrialLength {
        TrialLength { settling_steps: 1, steps: self.steps }
    }
}

/// The steps that are still required to measure all waits well; none if the trial did.
fn further_steps(recorded: &RecordedTrial) -> Option<u32> {
    let trial = &recorded.trial;
    let waits = recorded.ranks.iter().flat_map(|rank| &rank.waits).filter(|wait| wait.is_known());
    let error = waits.map(|wait| wait.power_error_w / wait.power_w).fold(0.0, f64::max);
    let took_s: f64 = trial.steps.iter().map(|step| step.time_s).sum();
    let times = (error / GOOD_ERROR).powi(2).min(LONG_ENOUGH_S / took_s);
    (error > GOOD_ERROR && times > 1.0).then_some((times * trial.steps.len() as f64) as u32)
}

fn keep(held: &mut Held<Agent>, job: &JobArguments) -> Result<Vec<P2pPower>, Error> {
    super::ask(held.connection(), AgentRequest::P2pKeep(job.selector()))
}

/// The SM clocks of a GPU that the caller may lock.
pub(crate) fn sm_clocks(daemons: &Daemons, gpu: &GpuUuid) -> Result<Vec<Mhz>, Error> {
    let mut pfod = daemons.pfod()?;
    match pfod.ask(Request::SmClocks(GpuName::Uuid(gpu.clone())))? {
        Response::SmClocks(clocks) => Ok(clocks),
        other => Err(pfod.unexpected(&other).into()),
    }
}

fn find(daemons: &Daemons, job: &JobArguments) -> Result<JobStatus, Error> {
    let jobs = daemons.pfod()?.status()?.jobs;
    Ok(job.only(&jobs)?.cloned().ok_or_else(|| job.missing())?)
}

/// The two GPUs that were named, or two free ones of the same model.
fn two_gpus(status: &Status, named: &[GpuName]) -> Result<[GpuUuid; 2], P2pError> {
    let is_named = |gpu: &GpuStatus, name: &GpuName| match name {
        GpuName::Uuid(uuid) => gpu.uuid == *uuid,
        GpuName::PciBusId(id) => gpu.pci_bus_id == *id,
    };
    let found: Vec<_> = if named.is_empty() {
        let free: Vec<_> = status.gpus.iter().filter(|gpu| !gpu.leased && !gpu.mig).collect();
        let with_twin = |gpu: &&GpuStatus| {
            free.iter().any(|other| other.uuid != gpu.uuid && other.model == gpu.model)
        };
        let model = free.iter().find(|gpu| with_twin(gpu)).map(|gpu| &gpu.model);
        free.iter().filter(|gpu| Some(&gpu.model) == model).take(2).copied().collect()
    } else {
        let find = |name| status.gpus.iter().find(|gpu| is_named(gpu, name));
        named.iter().filter_map(find).collect()
    };
    match &found[..] {
        [one, other] if one.uuid != other.uuid => Ok([one.uuid.clone(), other.uuid.clone()]),
        _ => Err(P2pError::NoTwoGpus { found: found.len() }),
    }
}

/// The highest of these clocks and some lower ones.
fn spread(clocks: &[Mhz]) -> Vec<Mhz> {
    let Some(&highest) = clocks.last() else { return Vec::new() };
    let below = |share: f64| {
        clocks.iter().rfind(|clock| f64::from(clock.0) <= share * f64::from(highest.0)).copied()
    };
    let mut spread = vec![highest];
    spread.extend(LOWER.into_iter().filter_map(below).chain(clocks.first().copied()));
    spread.dedup();
    spread
}

/// Swaps a job back to what it ran before it was measured.
fn roll_back(daemons: &Daemons, job: &JobArguments) -> Result<(), Error> {
    if let Some(agent) = of_whole_job(daemons, job) {
        return fleet::roll_back(agent, job);
    }
    let since = Instant::now();
    loop {
        let target = SwapTarget::Previous;
        // What measured it had the ranks on this node, and so does this.
        let request =
            Request::PlanSwapHere { job: job.selector(), target, at_step: None, wait: false };
        match daemons.pfod()?.ask(request) {
            Ok(_) => return Ok(()),
            // It is still changing to default clocks.
            Err(ConnectionError::Refused(refusal))
                if refusal.code == RefusalCode::LimitReached && since.elapsed() < BUSY =>
            {
                sleep(POLL);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{Rank, RecordedRank, TrialResult, TrialStep, WaitPower};

    use super::*;

    fn status() -> Status {
        serde_json::from_str(include_str!("../../tests/golden/status.json")).unwrap()
    }

    #[test]
    fn two_free_gpus_of_one_model_are_taken_unless_others_are_named() {
        let mut status = status();
        assert!(matches!(two_gpus(&status, &[]), Err(P2pError::NoTwoGpus { found: 0 })));
        for gpu in &mut status.gpus[1..3] {
            gpu.leased = false;
        }
        let uuid = |index: usize| status.gpus[index].uuid.clone();
        assert_eq!(two_gpus(&status, &[]).unwrap(), [uuid(1), uuid(2)]);
        let named = [3, 0].map(|index| GpuName::Uuid(uuid(index)));
        assert_eq!(two_gpus(&status, &named).unwrap(), [uuid(3), uuid(0)]);
        let twice = [GpuName::Uuid(uuid(1)), GpuName::Uuid(uuid(1))];
        assert!(two_gpus(&status, &twice).is_err());
        status.gpus[2].model = "another".to_owned();
        assert!(two_gpus(&status, &[]).is_err());
    }

    #[test]
    fn waits_of_large_error_are_measured_for_longer_within_a_limit() {
        let trial = |power_error_w: f64, step_s: f64| {
            let wait = WaitPower { mhz: None, count: 9, time_s: 1.0, power_w: 80.0, power_error_w };
            let rank = RecordedRank {
                rank: Rank(0),
                readings: 100,
                stray_readings: 0,
                rows: Vec::new(),
                waits: vec![wait],
            };
            let steps = vec![TrialStep { time_s: step_s, energy_j: None }; 5];
            let trial = TrialResult { plan: None, first_step: 0, steps, ranks: Vec::new() };
            RecordedTrial { trial, ranks: vec![rank] }
        };
        assert_eq!(further_steps(&trial(0.1, 0.1)), None);
        assert_eq!(further_steps(&trial(80.0 * 2.001 * GOOD_ERROR, 0.1)), Some(20));
        assert_eq!(further_steps(&trial(3.0, 0.1)), Some(200));
        assert_eq!(further_steps(&trial(3.0, 5.0)), None);
    }

    #[test]
    fn the_highest_clock_comes_first_and_lower_ones_are_supported_ones() {
        let clocks: Vec<_> = (210..=1410).step_by(15).map(Mhz).collect();
        assert_eq!(spread(&clocks), [1410, 1185, 975, 765, 210].map(Mhz));
        assert_eq!(spread(&[Mhz(1000)]), [Mhz(1000)]);
        assert!(spread(&[]).is_empty());
    }
}

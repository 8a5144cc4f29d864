//! `pfoctl p2p measure`: on two GPUs that do nothing but wait for each other, or from the waits of a job.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use pfo_protocol::{
    GpuName, GpuStatus, GpuUuid, JobName, JobStatus, P2pPower, RefusalCode, Request, Response,
    Status, SwapTarget, TrialLength, TrialResult, TrialRun,
};

use super::blocking_receive::BlockingReceive;
use super::powers;
use crate::connection::Connection;
use crate::error::Error;
use crate::job::JobArguments;
use crate::output::Output;
use crate::socket::Sockets;
use crate::trial::{Held, Interrupt};
use crate::user;

/// So long a helper may take until both GPUs wait: its libraries load, and NCCL connects the two.
const PREPARATION: Duration = Duration::from_secs(180);

const POLL: Duration = Duration::from_millis(100);

/// So long a job may be busy with the swap of before.
const BUSY: Duration = Duration::from_secs(30);

/// Lower clocks, as shares of the highest one.
const LOWER: [f64; 3] = [0.85, 0.7, 0.55];

/// Measurements at each clock.
const REPEATS: u32 = 3;

/// The waits of a job are measured for longer until the standard error of no power is larger than this, as a
/// share of it, but not for more than so many seconds.
const GOOD_ERROR: f64 = 0.002;
const LONG_ENOUGH_S: f64 = 20.0;

/// Measure the P2P-blocking power of two GPUs, or from the waits of a running job
///
/// A helper keeps two free GPUs in a receive that nothing answers, while the daemon reads their energy
/// counters at the highest clock and at some lower ones. With --job the waits of that job are measured
/// instead, at the highest clock; it then runs again what it ran before. The result is kept by GPU and
/// model, for `plan optimize`.
#[derive(Args)]
pub(crate) struct Measure {
    /// The two GPUs, by UUID or PCI bus id [default: two free ones of the same model]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    gpus: Vec<GpuName>,

    /// The clocks to measure at, in MHz [default: the highest one and three lower ones]
    #[arg(long, value_name = "MHZ,…", value_delimiter = ',')]
    clocks: Vec<u32>,

    /// What keeps two GPUs waiting: it is given --gpus UUID,UUID --job NAME, and runs until its
    /// standard input ends
    #[arg(long, value_name = "COMMAND", default_value = "python3 -m pfo.p2p")]
    helper: String,

    /// Measure the waits of this job
    #[arg(long, conflicts_with_all = ["gpus", "clocks", "helper"])]
    job: Option<JobName>,

    /// Whose job, by name or number [default: your own]
    #[arg(long, value_name = "USER", value_parser = user::parse, requires = "job")]
    user: Option<u32>,

    /// Steps of each measurement, those of the helper take a second; of a job, more where they are short
    /// for the energy counter
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    steps: u32,

    /// Print JSON: an array with what is kept
    #[arg(long)]
    json: bool,
}

impl Measure {
    pub(super) fn run(&self, sockets: &Sockets, output: &mut Output) -> Result<(), Error> {
        let kept = match &self.job {
            Some(job) => self.of_job(sockets, &JobArguments::of(job.clone(), self.user))?,
            None => self.of_receive(sockets)?,
        };
        powers::print(&kept, self.json, output)
    }

    fn of_receive(&self, sockets: &Sockets) -> Result<Vec<P2pPower>, Error> {
        let status = status(sockets)?;
        let gpus = two_gpus(&status, &self.gpus)?;
        let clocks = if self.clocks.is_empty() {
            spread(&sm_clocks(sockets, &gpus[0])?)
        } else {
            self.clocks.clone()
        };
        let name = format!("p2p-{}", std::process::id());
        let name: JobName = name.parse().map_err(|_| Error::NoSuchJob { job: name })?;
        let job = JobArguments::of(name, Some(user::own()));
        // Before anything that takes over which signals are blocked.
        let mut held = Held::new(sockets, &job, Interrupt::prepare()?, "measuring")?;
        // The trainers' one, where there are two.
        let socket = sockets.paths().last().map(PathBuf::as_path);
        let mut helper =
            BlockingReceive::start(&self.helper, [&gpus[0], &gpus[1]], job.name(), socket)?;
        until_both_wait(sockets, &job, &mut helper)?;
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

    fn of_job(&self, sockets: &Sockets, job: &JobArguments) -> Result<Vec<P2pPower>, Error> {
        let before = find(&status(sockets)?, job)?;
        let gpu = before.ranks.first().map(|rank| rank.gpu_uuid.clone());
        let gpu = gpu.ok_or_else(|| Error::NoSuchJob { job: job.name().to_string() })?;
        let clocks = sm_clocks(sockets, &gpu)?;
        let highest = clocks.last().copied().unwrap_or_default();
        let mut held = Held::new(sockets, job, Interrupt::prepare()?, "measuring")?;
        let trial = held.trial(&TrialRun::Uniform(highest), self.length())?;
        if let Some(steps) = further_steps(&trial) {
            held.trial(&TrialRun::Uniform(highest), TrialLength { steps, ..self.length() })?;
        }
        let kept = keep(&mut held, job);
        held.let_go()?;
        if before.plan.is_some() {
            roll_back(sockets, job)?;
        }
        kept
    }

    fn length(&self) -> TrialLength {
        TrialLength { settling_steps: 1, steps: self.steps }
    }
}

/// The steps that it takes to measure all waits well; none if a trial did.
fn further_steps(trial: &TrialResult) -> Option<u32> {
    let waits = trial.ranks.iter().flat_map(|rank| &rank.waits).filter(|wait| wait.is_known());
    let error = waits.map(|wait| wait.power_error_w / wait.power_w).fold(0.0, f64::max);
    let took_s: f64 = trial.steps.iter().map(|step| step.time_s).sum();
    let times = (error / GOOD_ERROR).powi(2).min(LONG_ENOUGH_S / took_s);
    (error > GOOD_ERROR && times > 1.0).then_some((times * trial.steps.len() as f64) as u32)
}

fn keep(held: &mut Held, job: &JobArguments) -> Result<Vec<P2pPower>, Error> {
    super::ask(held.connection(), Request::P2pKeep(job.selector()))
}

fn status(sockets: &Sockets) -> Result<Status, Error> {
    let mut connection = Connection::open(sockets)?;
    match connection.ask(Request::Status)? {
        Response::Status(status) => Ok(*status),
        other => Err(connection.other_answer(&format!("{other:?}"))),
    }
}

fn sm_clocks(sockets: &Sockets, gpu: &GpuUuid) -> Result<Vec<u32>, Error> {
    let mut connection = Connection::open(sockets)?;
    match connection.ask(Request::SmClocks(GpuName::Uuid(gpu.clone())))? {
        Response::SmClocks(clocks) => Ok(clocks),
        other => Err(connection.other_answer(&format!("{other:?}"))),
    }
}

fn find(status: &Status, job: &JobArguments) -> Result<JobStatus, Error> {
    let selector = job.selector();
    let owner = selector.uid.unwrap_or_else(user::own);
    let is_meant = |found: &&JobStatus| found.job == selector.job && found.uid == owner;
    let found = status.jobs.iter().find(is_meant).cloned();
    found.ok_or_else(|| Error::NoSuchJob { job: selector.job.to_string() })
}

/// The two GPUs that were named, or two free ones of the same model.
fn two_gpus(status: &Status, named: &[GpuName]) -> Result<[GpuUuid; 2], Error> {
    let is_named = |gpu: &GpuStatus, name: &GpuName| match name {
        GpuName::Uuid(uuid) => gpu.uuid == *uuid,
        GpuName::PciBusId(id) => gpu.pci_bus_id == *id,
    };
    let found: Vec<_> = if named.is_empty() {
        let free: Vec<_> =
            status.gpus.iter().filter(|gpu| gpu.holder.is_none() && !gpu.mig).collect();
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
        _ => Err(Error::NoTwoGpus { found: found.len() }),
    }
}

/// The highest clock and some lower ones, of those that there are.
fn spread(clocks: &[u32]) -> Vec<u32> {
    let Some(&highest) = clocks.last() else { return Vec::new() };
    let below = |share: f64| {
        clocks.iter().rfind(|clock| f64::from(**clock) <= share * f64::from(highest)).copied()
    };
    let mut spread = vec![highest];
    spread.extend(LOWER.into_iter().filter_map(below));
    spread.dedup();
    spread
}

/// Waits until both ranks of the helper have begun steps.
fn until_both_wait(
    sockets: &Sockets,
    job: &JobArguments,
    helper: &mut BlockingReceive,
) -> Result<(), Error> {
    let until = Instant::now() + PREPARATION;
    let both_wait = |job: &JobStatus| {
        job.ranks.len() == 2 && job.ranks.iter().all(|rank| rank.step.is_some_and(|step| step > 0))
    };
    while !find(&status(sockets)?, job).is_ok_and(|job| both_wait(&job)) {
        helper.check()?;
        if Instant::now() > until {
            return Err(Error::HelperSlow { seconds: PREPARATION.as_secs() });
        }
        sleep(POLL);
    }
    Ok(())
}

/// Has a job run again what it ran before it was measured.
fn roll_back(sockets: &Sockets, job: &JobArguments) -> Result<(), Error> {
    let since = Instant::now();
    loop {
        let target = SwapTarget::Previous;
        let request =
            Request::PlanSwap { job: job.selector(), target, not_before: None, wait: false };
        match Connection::open(sockets)?.ask(request) {
            Ok(_) => return Ok(()),
            // It is just changing to default clocks.
            Err(Error::Refused(refusal))
                if refusal.code == RefusalCode::LimitReached && since.elapsed() < BUSY =>
            {
                sleep(POLL);
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{TrialRank, TrialStep, WaitPower};

    use super::*;

    fn status() -> Status {
        serde_json::from_str(include_str!("../../tests/golden/status.json")).unwrap()
    }

    #[test]
    fn two_free_gpus_of_one_model_are_taken_unless_others_are_named() {
        let mut status = status();
        assert!(matches!(two_gpus(&status, &[]), Err(Error::NoTwoGpus { found: 0 })));
        for gpu in &mut status.gpus[1..3] {
            gpu.holder = None;
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
    fn waits_that_are_not_well_known_are_measured_for_longer_but_not_for_ever() {
        let trial = |power_error_w: f64, step_s: f64| {
            let wait = WaitPower { mhz: None, count: 9, time_s: 1.0, power_w: 80.0, power_error_w };
            let rank = TrialRank {
                rank: 0,
                stage: 0,
                dp_rank: 0,
                tp_rank: 0,
                gpu_uuid: "GPU-a".parse().unwrap(),
                gpu_model: "A40".to_owned(),
                time_s: step_s,
                energy_j: None,
                mismatched_steps: 0,
                readings: 100,
                stray_readings: 0,
                rows: Vec::new(),
                waits: vec![wait],
            };
            let steps = vec![TrialStep { time_s: step_s, energy_j: None }; 5];
            TrialResult { plan: None, first_step: 0, steps, ranks: vec![rank] }
        };
        assert_eq!(further_steps(&trial(0.1, 0.1)), None);
        assert_eq!(further_steps(&trial(80.0 * 2.001 * GOOD_ERROR, 0.1)), Some(20));
        assert_eq!(further_steps(&trial(3.0, 0.1)), Some(200));
        assert_eq!(further_steps(&trial(3.0, 5.0)), None);
    }

    #[test]
    fn the_highest_clock_comes_first_and_lower_ones_are_those_that_there_are() {
        let clocks: Vec<_> = (210..=1410).step_by(15).collect();
        assert_eq!(spread(&clocks), [1410, 1185, 975, 765]);
        assert_eq!(spread(&[1000]), [1000]);
        assert!(spread(&[]).is_empty());
    }
}

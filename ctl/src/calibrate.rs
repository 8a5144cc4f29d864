//! `pfoctl gpu`: how GPUs change their clocks.

use clap::{ArgGroup, Args, Subcommand};
use pfo_protocol::{AgentRequest, AgentResponse, Calibration, JobName, P2pPower, Uid};

use crate::arguments::{GpuArgument, JobArguments, NoSuchJob, number};
use crate::counter;
use crate::daemons::{Agent, Connection, ConnectionError, Daemons, Patience};
use crate::error::Error;
use crate::fleet;
use crate::memory_lock;
use crate::output::{Look, Output};
use crate::own_job::OwnJob;
use crate::p2p;
use crate::profile::{ProfileArguments, SweepArguments};
use crate::progress::Progress;
use crate::status::quantity::seconds;
use crate::status::table::{Cell, Table, heading};
use crate::trial::{Interrupt, TrialError, require_every_stage};
use crate::user;

/// How long a job may take for the steps of a measurement, in seconds: 24 for the clocks, 28 for the lock of the
/// memory clock, of about two minutes.
const WITHIN_S: u32 = 3600;

/// The longest that may be given: a day.
const LONGEST_S: u32 = 24 * 3600;

/// What to do about calibrations.
#[derive(Subcommand)]
pub(crate) enum Gpu {
    Calibrate(Calibrate),
    Show(Show),
}

/// Measure how the GPUs of a running job change their clocks, with some of its steps
///
/// The job runs 24 steps whose instructions change clocks. The times of the instructions around a change
/// show when the new clock was in force. pfod then requests each clock earlier by that time, and tune
/// plans with it. pfo-agent also learns this from jobs that run plans, without any command. The same
/// steps show whether the energy counter covers the GPU alone, and whether it counts all of the time.
///
/// --gpu requires no job: a helper runs matrix products on a free GPU, as a job of one rank, which
/// pfo-agent sweeps first.
///
/// pfo uses the measurement of an administrator for all jobs on GPUs of the model with this version of
/// the driver, and that of another user for this user's jobs. Every stage must have a rank on this node.
///
/// If pfod locks the memory clock (`lock_memory_clock` in pfod.toml), the job runs 28 more steps with and
/// without that lock, in turns, which show whether the lock helps or harms.
#[derive(Args)]
#[command(group(ArgGroup::new("whose").required(true).args(["job", "gpu"])))]
pub(crate) struct Calibrate {
    /// The job, as `pfoctl status` shows it
    job: Option<JobName>,

    /// The owner of the job, by name or number [default: yourself; for an administrator the owner
    /// of the only job of that name]
    #[arg(long, value_name = "USER", value_parser = user::parse, requires = "job")]
    user: Option<Uid>,

    /// Measure this free GPU without a job, by index, UUID or PCI bus id
    #[arg(long, value_name = "GPU")]
    gpu: Option<GpuArgument>,

    /// Command that keeps a GPU busy: pfoctl starts it with --gpus UUID --job NAME, and it must run until
    /// its standard input is closed
    #[arg(
        long,
        value_name = "COMMAND",
        default_value = "python3 -m pfo_gpu.load",
        conflicts_with = "job"
    )]
    helper: String,

    /// Give up when the steps have taken this long; the job then returns to default clocks
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = WITHIN_S,
        value_parser = number::whole(1..=LONGEST_S)
    )]
    within: u32,

    /// Print JSON, as `pfoctl gpu show --json` does
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    profile: ProfileArguments,

    #[command(flatten)]
    sweep: SweepArguments,
}

/// Show how GPUs change their clocks, and what their energy counters count, as measured
#[derive(Args)]
pub(crate) struct Show {
    /// Print JSON: an array with every figure as pfo-agent gave it
    #[arg(long)]
    json: bool,
}

impl Gpu {
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let (known, json) = match self {
            Self::Calibrate(calibrate) => (calibrate.run(daemons)?, calibrate.json),
            Self::Show(Show { json }) => (known(&mut daemons.agent()?)?, json),
        };
        if json {
            return output.json(&known);
        }
        let powers = p2p::all(&mut daemons.agent()?)?;
        let look = output.look();
        output.text(&render(&known, &powers, look))
    }
}

impl Calibrate {
    fn run(&self, daemons: &Daemons) -> Result<Vec<Calibration>, Error> {
        let interrupt = Interrupt::prepare()?;
        match (&self.job, &self.gpu) {
            (Some(job), _) => {
                let job = JobArguments::of(job.clone(), self.user);
                self.with(daemons, &job, &interrupt)
            }
            (None, Some(gpu)) => self.without_job(daemons, gpu, &interrupt),
            // One of the two is required.
            (None, None) => known(&mut daemons.agent()?),
        }
    }

    fn without_job(
        &self,
        daemons: &Daemons,
        gpu: &GpuArgument,
        interrupt: &Interrupt,
    ) -> Result<Vec<Calibration>, Error> {
        let gpu = gpu.uuid(&mut daemons.pfod()?)?;
        // By the GPU, so that what is swept once is found the next time.
        let name = format!("calibrate-{gpu}");
        let name: JobName = name.parse().map_err(|_| NoSuchJob::None(name))?;
        let job = JobArguments::of(name, Some(user::own()));
        let socket = daemons.trainer_socket();
        let mut helper = OwnJob::start(&self.helper, &[gpu], job.name(), socket)?;
        helper.until_works(daemons, &job, 1)?;
        let measured = self.with(daemons, &job, interrupt);
        if measured.is_err() {
            // If it has ended, that is why.
            helper.check()?;
        }
        measured
    }

    fn with(
        &self,
        daemons: &Daemons,
        job: &JobArguments,
        interrupt: &Interrupt,
    ) -> Result<Vec<Calibration>, Error> {
        if fleet::is_measured_whole(daemons, job) {
            return Err(TrialError::OneNodeOnly { job: job.name().clone() }.into());
        }
        require_every_stage(daemons, job)?;
        let csv = self.profile.get(daemons, (job, &self.sweep), interrupt)?;
        let _progress = Progress::new("calibrating");
        let mut agent = interrupt.connect(daemons)?;
        let known = calibrate_within(&mut agent, job, csv, self.within).and_then(|_| {
            let memory = AgentRequest::CalibrateMemory(job.selector());
            measure_within(&mut agent, job, memory, self.within)
        });
        interrupt.or(job.name(), known)
    }
}

fn calibrate_within(
    agent: &mut Connection<Agent>,
    job: &JobArguments,
    profile: Vec<u8>,
    seconds: u32,
) -> Result<Vec<Calibration>, Error> {
    let clocks = AgentRequest::Calibrate { job: job.selector(), profile };
    measure_within(agent, job, clocks, seconds)
}

fn measure_within(
    agent: &mut Connection<Agent>,
    job: &JobArguments,
    request: AgentRequest,
    seconds: u32,
) -> Result<Vec<Calibration>, Error> {
    agent.send(request)?;
    match agent.receive(Patience::Seconds(seconds)) {
        Err(ConnectionError::NoAnswer { .. }) => {
            Err(TrialError::TooLong { job: job.name().clone(), seconds }.into())
        }
        answer => calibrations(agent, answer?),
    }
}

/// What is known, as far as it is used for the caller's jobs.
pub(crate) fn known(agent: &mut Connection<Agent>) -> Result<Vec<Calibration>, Error> {
    let answer = agent.ask(AgentRequest::Calibrations)?;
    calibrations(agent, answer)
}

fn calibrations(
    agent: &Connection<Agent>,
    answer: AgentResponse,
) -> Result<Vec<Calibration>, Error> {
    match answer {
        AgentResponse::Calibrations(known) => Ok(known),
        other => Err(agent.unexpected(&other).into()),
    }
}

fn render(known: &[Calibration], powers: &[P2pPower], look: Look) -> String {
    if known.is_empty() {
        return "No GPU was calibrated: `pfoctl gpu calibrate JOB` does it.\n".to_owned();
    }
    let of = |calibration: &Calibration| {
        table(calibration, look) + &p2p::by_clock(powers, &calibration.gpu_model)
    };
    known.iter().map(of).collect::<Vec<_>>().join("\n")
}

fn table(calibration: &Calibration, look: Look) -> String {
    let Calibration { gpu_model, driver, uid, clocks, set_call_us, refresh_ms, .. } = calibration;
    let whose = uid.map_or_else(String::new, |uid| format!(", for jobs of {}", user::name_of(uid)));
    let mut text = heading(&format!("{gpu_model} with driver {driver}{whose}"), look);
    let mut table = Table::new(look).right("Clock").right("In force").right("Spread").right("Seen");
    for clock in clocks {
        table.row([
            Cell::text(format!("{}", clock.mhz)),
            Cell::text(seconds(f64::from(clock.settle_us) / 1e6)),
            Cell::text(seconds(f64::from(clock.spread_us) / 1e6)),
            Cell::number(clock.changes),
        ]);
    }
    if !clocks.is_empty() {
        text += &table.render();
    }
    let waits = match calibration.transfers_wait {
        Some(true) => ", and transfers wait for it",
        Some(false) => ", and no transfer waits for it",
        None => "",
    };
    let call = set_call_us
        .map(|us| format!("A call that sets a clock takes {}{waits}.\n", seconds(us / 1e6)));
    let refresh = refresh_ms
        .map(|ms| format!("The energy counter is refreshed every {}.\n", seconds(ms / 1e3)));
    let counts = calibration.counter.as_ref().map(counter::sentences);
    let memory = calibration.memory_lock.as_ref().map(memory_lock::sentence);
    text + &[call, refresh, counts, memory].map(Option::unwrap_or_default).concat()
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{CalibratedClock, Mhz, Uid};

    use super::*;

    #[test]
    fn what_is_known_is_a_table_for_each_model_and_driver() {
        let clock =
            CalibratedClock { mhz: Mhz(900), settle_us: 21_500, spread_us: 900, changes: 41 };
        let calibration = Calibration {
            gpu_model: "NVIDIA A100".into(),
            driver: "570.1".into(),
            uid: Some(Uid(4_000_000_001)),
            clocks: vec![clock],
            set_call_us: Some(8100.0),
            transfers_wait: Some(true),
            refresh_ms: Some(20.0),
            measured_unix_s: 0,
            counter: None,
            memory_lock: None,
        };
        let text = render(&[calibration], &[], Look::default());
        let expected = "NVIDIA A100 with driver 570.1, for jobs of 4000000001\n  \
                        Clock  In force    Spread  Seen\n\
                        ─────────────────────────────────\n\
                        900 MHz  21.50 ms  900.0 µs    41\n\
                        A call that sets a clock takes 8.100 ms, and transfers wait for it.\n\
                        The energy counter is refreshed every 20.00 ms.\n\
                        How P2P-blocking power depends on the clock was never measured: `pfoctl p2p \
                        measure` does it on two free GPUs, or with --job on the waits of a job.\n";
        assert_eq!(text.replace(' ', ""), expected.replace(' ', ""), "{text}");
    }
}

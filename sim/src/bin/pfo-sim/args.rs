//! The command line.
#![allow(clippy::doc_markdown, reason = "the help shows these comments as they are")]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use nvidia_ml::driver_version::DriverVersion;
use nvidia_ml::error::SimError;
use nvidia_ml::fault::{FaultKind, FunctionName};
use nvidia_ml::heat::Cooling;
use nvidia_ml::like::Likeness;
use nvidia_ml::machine::{GpuList, MachinePlan};
use nvidia_ml::model::GpuModel;
use nvidia_ml::sensor::Sensor;

/// Makes a simulated machine with NVIDIA GPUs, shows it, and lets things go wrong on it.
///
/// All of the machine is in one state file, which every process that loads the simulated
/// libnvidia-ml.so.1 maps. Anybody may open it; what NVML lets only root do, only root (or the uid
/// given with --owner-uid) can do through NVML. This command is not NVML: it may do everything.
#[derive(Parser)]
#[command(name = "pfo-sim", version, max_term_width = 100)]
pub(crate) struct Args {
    /// The state file [default: $PFO_SIM_STATE, or else /dev/shm/pfo-sim.state]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) state: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make a machine, in place of the one that the state file held.
    ///
    /// Processes that have the old machine open go on with that one.
    Create(CreateArgs),
    /// Show the machine: its GPUs, their locks and clocks, and what they do.
    Show(ShowArgs),
    /// Draw the clock and the power of each GPU, ten times a second.
    ///
    /// Where standard output is no terminal, they are printed once.
    Watch(WatchArgs),
    /// Let an NVML function misbehave.
    Fault(FaultArgs),
    /// Cap the power of a GPU: work that would draw more runs at a lower clock than locked.
    PowerCap {
        /// Index of the GPU
        #[arg(long)]
        gpu: usize,
        /// The cap in W
        #[arg(required_unless_present = "off", value_parser = watts, allow_negative_numbers = true)]
        watts: Option<f64>,
        /// Back to the board's default limit
        #[arg(long, conflicts_with = "watts")]
        off: bool,
    },
    /// Switch the MIG mode of a GPU.
    Mig {
        /// Index of the GPU
        #[arg(long)]
        gpu: usize,
        mode: OnOff,
    },
    /// Unload the driver, with all locks and caps, or load it again.
    ///
    /// Who has it open finds all GPUs lost, and has to initialise NVML anew.
    Driver { change: DriverChange },
    /// Take back locks, caps, MIG modes, faults and the record of calls, whoever made them.
    ///
    /// Energy counters go on, as do the processes on the GPUs.
    Reset,
    /// Write the profile that a perfect measurement of the simulated stages would give.
    Profile(ProfileArgs),
    /// Link the simulated library into a directory as libnvidia-ml.so.1, for LD_LIBRARY_PATH.
    Link { directory: PathBuf },
}

#[derive(ClapArgs)]
pub(crate) struct CreateArgs {
    /// The GPUs, for example 4xA100 or 2xA100,1xV100 [default: one like --like]
    #[arg(long, value_name = "LIST", required_unless_present = "like")]
    gpus: Option<GpuList>,
    /// Facts of the GPU kit (facts.json): GPUs of that model have the counter's rhythm, times of reads,
    /// powers and clocks that were measured
    #[arg(long, value_name = "FILE")]
    like: Option<PathBuf>,
    /// A uid that may call setters as if it were root, for demonstrations without root
    #[arg(long, value_name = "UID")]
    owner_uid: Option<u32>,
    /// Make the GPUs that software would like to have, and not such as there are: calls and clock
    /// changes that always take the same time, every clock held, neither heat nor noise
    #[arg(long)]
    ideal: bool,
    /// How long every set call blocks, in ms [default: differs, as on the model; 8 if ideal]
    #[arg(long, value_name = "MS", value_parser = milliseconds, allow_negative_numbers = true)]
    set_latency_ms: Option<Duration>,
    /// How long after its call every clock changes, in ms [default: differs, as on the model; 15 if
    /// ideal]
    #[arg(long, value_name = "MS", value_parser = milliseconds, allow_negative_numbers = true)]
    settle_ms: Option<Duration>,
    /// How often the energy counter is refreshed, in ms [default: as on the model; 20 if ideal]
    #[arg(long, value_name = "MS", value_parser = milliseconds, allow_negative_numbers = true)]
    energy_refresh_ms: Option<Duration>,
    /// Let the energy counter look for a part of the time only, and take that for the whole: 25/100
    /// are 25 ms of every 100 ms
    #[arg(long, value_name = "MS/MS", value_parser = sensor)]
    sensor_duty: Option<Sensor>,
    /// How much longer work takes while the memory clock is locked, in %
    #[arg(long, value_name = "PERCENT", value_parser = permille, allow_negative_numbers = true)]
    memory_lock_slows: Option<u64>,
    /// Standard deviation of the time of equal work, in % [default: as on the model; 0 if ideal]
    #[arg(long, value_name = "PERCENT", value_parser = permille, allow_negative_numbers = true)]
    noise: Option<u64>,
    /// Switch persistence mode off: locks and the energy counter's zero vanish with the last process
    /// that uses the driver
    #[arg(long)]
    no_persistence: bool,
    /// The version of the driver: those before 580.82 number the counters of heat otherwise
    #[arg(long, value_name = "VERSION", default_value_t)]
    driver: DriverVersion,
    /// How well the GPUs are cooled: good (never too hot), poor (software slows them down) or failed
    /// (their hardware does, too)
    #[arg(long, value_name = "HOW", default_value = "good", value_parser = cooling)]
    cooling: Cooling,
    /// Begin with GPUs as warm as those that have worked for some minutes
    #[arg(long)]
    warm: bool,
    /// Machines of different seed have GPUs of different UUID
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl TryFrom<CreateArgs> for MachinePlan {
    type Error = SimError;

    fn try_from(args: CreateArgs) -> Result<Self, SimError> {
        let like = args.like.as_deref().map(Likeness::read).transpose()?;
        let alone = like.as_ref().map(|like| GpuList(vec![like.model]));
        let plan = Self {
            gpus: args.gpus.or(alone).unwrap_or_else(|| GpuList(Vec::new())),
            like,
            owner_uid: args.owner_uid,
            ideal: args.ideal,
            set_latency: args.set_latency_ms,
            settle: args.settle_ms,
            energy_refresh: args.energy_refresh_ms,
            sensor: args.sensor_duty,
            memory_lock_slows_permille: args.memory_lock_slows,
            waits_follow_the_clock: None,
            time_noise_ppm: args.noise.map(|permille| permille * 1000),
            persistence: !args.no_persistence,
            cooling: args.cooling,
            driver: args.driver,
            warm: args.warm,
            seed: args.seed,
        };
        plan.checked()
    }
}

#[derive(ClapArgs)]
pub(crate) struct WatchArgs {
    /// Until this process ends
    #[arg(long, value_name = "PID")]
    pub(crate) until_end_of: Option<u32>,
    /// For this long, in s
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) seconds: Option<Duration>,
}

#[derive(ClapArgs)]
pub(crate) struct ShowArgs {
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// With the last N calls that locked clocks, of each GPU (up to 4096 are kept)
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        default_value = "0",
        default_missing_value = "4096",
        requires = "json"
    )]
    pub(crate) calls: usize,
}

#[derive(ClapArgs)]
pub(crate) struct FaultArgs {
    /// The function, for example nvmlDeviceSetGpuLockedClocks, or '*' for all
    #[arg(long, value_name = "NAME", requires = "kind", required_unless_present = "clear")]
    pub(crate) function: Option<FunctionName>,
    /// hang (until cleared), crash, ignored (a setter that does nothing), garbled (a name that is not
    /// UTF-8), latency:MS, an energy that is wrong (scaled:PERCENT of the true one, rate:PERCENT from now
    /// on, wraps:BITS), or an error: no-permission, not-supported, gpu-is-lost, unknown, timeout, …
    #[arg(long, value_name = "KIND", requires = "function")]
    pub(crate) kind: Option<FaultKind>,
    /// Only on this GPU
    #[arg(long, value_name = "INDEX", requires = "function")]
    pub(crate) gpu: Option<usize>,
    /// Only for so many calls
    #[arg(long, value_name = "N", requires = "function")]
    pub(crate) count: Option<u64>,
    /// First clear all faults; calls that hang go on
    #[arg(long)]
    pub(crate) clear: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum OnOff {
    On,
    Off,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DriverChange {
    Unload,
    Load,
}

#[derive(ClapArgs)]
pub(crate) struct ProfileArgs {
    /// The model of GPU
    #[arg(long, value_name = "MODEL", default_value = "A100")]
    pub(crate) gpu: GpuModel,
    /// How many of the built-in stages
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) stages: u16,
    /// Another profile in place of the built-in stages, read as the simulated trainer reads it
    #[arg(long, value_name = "PROFILE.csv", conflicts_with = "stages")]
    pub(crate) work: Option<PathBuf>,
    /// Multiplies all times, as for the trainer
    #[arg(long, value_name = "X", default_value = "1", value_parser = factor)]
    pub(crate) time_scale: f64,
    /// With the clocks that only an ideal GPU holds: at these, the work draws more than the default
    /// power limit
    #[arg(long)]
    pub(crate) ideal: bool,
    /// Leave out clocks below this one, in MHz [default: 57 % of the highest]
    #[arg(long, value_name = "MHZ")]
    pub(crate) from_mhz: Option<u32>,
    /// Where to [default: standard output]
    #[arg(short, long, value_name = "PROFILE.csv")]
    pub(crate) output: Option<PathBuf>,
}

fn positive(text: &str, unit: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err(format!("give a number of {unit} above 0")),
    }
}

fn watts(text: &str) -> Result<f64, String> {
    positive(text, "W")
}

fn factor(text: &str) -> Result<f64, String> {
    positive(text, "times")
}

fn permille(text: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=1000.0).contains(&percent) => Ok((percent * 10.0).round() as u64),
        _ => Err("give a number of % from 0 to 1000".to_owned()),
    }
}

fn cooling(text: &str) -> Result<Cooling, String> {
    match text {
        "good" => Ok(Cooling::Good),
        "poor" => Ok(Cooling::Poor),
        "failed" => Ok(Cooling::Failed),
        _ => Err("give good, poor or failed".to_owned()),
    }
}

fn sensor(text: &str) -> Result<Sensor, String> {
    let (looks, period) = text.split_once('/').ok_or("give two numbers of ms, such as 25/100")?;
    let ns = |text| milliseconds(text).map(|duration: Duration| duration.as_nanos() as u64);
    match (ns(looks)?, ns(period)?) {
        (looks_ns, period_ns) if 0 < looks_ns && looks_ns <= period_ns => {
            Ok(Sensor { looks_ns, period_ns })
        }
        _ => Err("the first number must be above 0 and at most the second".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let s: f64 = text.parse().map_err(|_| "give a number of s".to_owned())?;
    Duration::try_from_secs_f64(s).map_err(|_| "give a number of s from 0 on".to_owned())
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let ms: f64 = text.parse().map_err(|_| "give a number of ms".to_owned())?;
    Duration::try_from_secs_f64(ms / 1e3).map_err(|_| "give a number of ms from 0 on".to_owned())
}

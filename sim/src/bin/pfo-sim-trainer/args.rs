//! The command line.
#![allow(clippy::doc_markdown, reason = "the help shows these comments as they are")]

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgAction, Args as ClapArgs, Parser, Subcommand};

use crate::misbehaviour::{Misbehaviour, Occasion};
use crate::settings::GpuName;

/// Trains on simulated GPUs: one process per rank, sockets between the stages, the real shim.
#[derive(Parser)]
#[command(name = "pfo-sim-trainer", version, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start all ranks of a pipeline, wait for them, and report.
    ///
    /// SIGTERM and Ctrl-C end all ranks; what they did until then is reported. A second one kills
    /// them.
    Launch(Box<LaunchArgs>),
    /// Let two GPUs do nothing but wait for each other until standard input ends: what
    /// `pfoctl p2p measure --helper "pfo-sim-trainer p2p"` takes on simulated GPUs.
    P2p(P2pArgs),
    /// Let a GPU compute what standard input says, for a trainer in another language.
    ///
    /// "begin forward 0.035" starts work that takes 35 ms at the highest clock, "begin backward 0.07" that of
    /// a backward. "end" waits until it is done and prints the seconds that it took. The GPU waits for a
    /// neighbour afterwards, and from "wait" on. The end of standard input ends it.
    Compute(ComputeArgs),
    /// Run one rank. Only `launch` knows its settings.
    #[command(hide = true)]
    Rank { settings: String },
}

#[derive(ClapArgs)]
pub(crate) struct P2pArgs {
    /// The state file of the simulated machine
    #[arg(long, env = nvidia_ml::STATE_VARIABLE, value_name = "FILE", default_value = nvidia_ml::DEFAULT_STATE)]
    pub(crate) state: PathBuf,
    /// The two GPUs
    #[arg(long, value_name = "UUID,UUID", value_delimiter = ',', required = true)]
    pub(crate) gpus: Vec<String>,
    /// The job's name for pfo
    #[arg(long, value_name = "NAME")]
    pub(crate) job: String,
}

#[derive(ClapArgs)]
pub(crate) struct ComputeArgs {
    /// The state file of the simulated machine
    #[arg(long, env = nvidia_ml::STATE_VARIABLE, value_name = "FILE", default_value = nvidia_ml::DEFAULT_STATE)]
    pub(crate) state: PathBuf,
    /// Index of the GPU
    #[arg(long, value_name = "INDEX")]
    pub(crate) gpu: usize,
}

#[derive(ClapArgs)]
#[command(args_override_self = true)]
pub(crate) struct LaunchArgs {
    /// The state file of the simulated machine, or one for each rank
    #[arg(long, env = nvidia_ml::STATE_VARIABLE, value_name = "FILE,…", default_value = nvidia_ml::DEFAULT_STATE,
          value_delimiter = ',', action = ArgAction::Set)]
    pub(crate) state: Vec<PathBuf>,
    /// Pipeline stages, one rank each in every replica [default: those of the profile, or else 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) stages: Option<u16>,
    /// Data-parallel replicas of the pipeline, which wait for each other at the end of every step
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) replicas: u16,
    /// Microbatches of a step
    #[arg(long, value_name = "M", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) microbatches: u32,
    /// Steps to train; 0 trains until it is asked to stop
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) steps: u64,
    /// Time between two steps in which the GPUs are idle, in ms
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub(crate) step_pause_ms: u64,
    /// Time from the end of an instruction until its output has reached a neighbour stage, in ms
    #[arg(long, value_name = "MS", default_value_t = 0.0, value_parser = milliseconds)]
    pub(crate) transfer_ms: f64,
    /// Time and energy of each stage's instructions [default: built-in, unequal stages]
    #[arg(long, value_name = "PROFILE.csv")]
    pub(crate) profile: Option<PathBuf>,
    /// Multiplies the time of all instructions
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = factor)]
    pub(crate) time_scale: f64,
    /// The GPUs of the ranks, stage by stage of one replica after the other, by index [default: 0,1,2,…]
    #[arg(long, value_name = "INDEX,…", value_delimiter = ',')]
    pub(crate) gpus: Vec<usize>,

    /// Join the ranks over TCP, and not over sockets of this machine: where each of them listens
    #[arg(long, value_name = "ADDRESS:PORT,…", value_delimiter = ',')]
    pub(crate) tcp: Vec<SocketAddr>,
    /// Start each rank in a network namespace, as `ip netns` names it; as root
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', requires = "tcp")]
    pub(crate) namespace: Vec<String>,
    /// End a rank whose neighbour is silent for so long, in seconds; 0 waits for ever
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) patience_s: u32,

    /// Train without pfo
    #[arg(long)]
    pub(crate) no_pfo: bool,
    /// The job's name for pfo [default: $PFO_JOB, or else sim-PID]
    #[arg(long, value_name = "NAME")]
    pub(crate) job: Option<String>,
    /// The daemon's socket, or one for each rank [default: what the shim finds]
    #[arg(long, value_name = "PATH,…", value_delimiter = ',', action = ArgAction::Set)]
    pub(crate) socket: Vec<PathBuf>,
    /// How ranks name their GPU to pfo
    #[arg(long, value_name = "HOW", value_enum, default_value = "uuid")]
    pub(crate) gpu_name: GpuName,

    /// Run the ranks as this user, with its groups
    #[arg(long, value_name = "NAME", conflicts_with = "uid")]
    pub(crate) user: Option<String>,
    /// Run the ranks with this uid
    #[arg(long, value_name = "UID")]
    pub(crate) uid: Option<u32>,
    /// With this gid [default: the number of the uid]
    #[arg(long, value_name = "GID", requires = "uid")]
    pub(crate) gid: Option<u32>,
    /// With these further groups, by name or gid
    #[arg(long, value_name = "GROUP,…", value_delimiter = ',')]
    pub(crate) groups: Vec<String>,

    /// Report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Report the clocks that each instruction ran at, too, and for how long each
    #[arg(long, requires = "json")]
    pub(crate) clocks: bool,
    /// Say on standard error when a step is done
    #[arg(long)]
    pub(crate) progress: bool,

    #[command(flatten)]
    pub(crate) misbehaviour: MisbehaviourArgs,
}

/// WHEN is a step (5), several (5-8) or all from one on (5-), and with :RANK of one rank only.
#[derive(ClapArgs)]
#[command(next_help_heading = "Misbehaviour, WHEN being STEP, FIRST-LAST or FIRST-, and [:RANK]")]
pub(crate) struct MisbehaviourArgs {
    /// Die by SIGKILL in the middle of the step's first backward
    #[arg(long, value_name = "WHEN")]
    die_at: Vec<Occasion>,
    /// Stop by SIGSTOP there
    #[arg(long, value_name = "WHEN")]
    stop_at: Vec<Occasion>,
    /// Leave out the end of the step's first instruction
    #[arg(long, value_name = "WHEN")]
    omit_end: Vec<Occasion>,
    /// Announce every forward of the step as a backward and the other way round
    #[arg(long, value_name = "WHEN")]
    wrong_order: Vec<Occasion>,
    /// From the beginning of the step on, send further events without a pause
    #[arg(long, value_name = "WHEN")]
    flood: Vec<Occasion>,
}

impl From<MisbehaviourArgs> for Misbehaviour {
    fn from(args: MisbehaviourArgs) -> Self {
        Self {
            die: args.die_at,
            stop: args.stop_at,
            omit_end: args.omit_end,
            wrong_order: args.wrong_order,
            flood: args.flood,
        }
    }
}

fn milliseconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=60_000.0).contains(&value) => Ok(value),
        _ => Err("give milliseconds from 0 to 60000".to_owned()),
    }
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("give a number above 0".to_owned()),
    }
}

//! What can go wrong around a simulated driver, in words for the one who has to mend it.

use std::io;
use std::path::PathBuf;

use crate::fault::FaultSlotCount;
use crate::state::layout::{PROCESSES_PER_GPU, VERSION};

/// An error of the simulator's library or of its programs.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// There is no state file.
    #[error(
        "no simulated driver at {path}: create one with `pfo-sim create --gpus 4xA100`, or name another with --state or PFO_SIM_STATE"
    )]
    NoState {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The state file is there, but may not be opened.
    #[error(
        "may not open {path}: {source}; `pfo-sim create` makes it readable and writable for all"
    )]
    StateForbidden {
        /// The state file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// An operation on the state file or another file failed.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What is no version of a driver.
    #[error("{version:?} is no version of a driver: give two or three numbers, as in 580.95.05")]
    DriverVersion {
        /// What was given.
        version: String,
    },
    /// A file of the GPU kit that cannot be used.
    #[error("{path} has no facts of a GPU that can be simulated: {difference}")]
    Facts {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        difference: String,
    },
    /// No GPU is of the model that was measured.
    #[error(
        "--like has facts of {measured}, and no GPU of --gpus is one; leave --gpus out for one of it"
    )]
    LikeNone {
        /// The name of the model.
        measured: &'static str,
    },
    /// The file is something else.
    #[error(
        "{path} is not a state file of pfo-sim: {difference}; make a new one with `pfo-sim create`"
    )]
    NotAState {
        /// The file.
        path: PathBuf,
        /// The first difference.
        difference: String,
    },
    /// The file was written by another version of the simulator.
    #[error(
        "{path} has layout version {found}, this pfo-sim writes {VERSION}: make a new one with `pfo-sim create`"
    )]
    OtherVersion {
        /// The state file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// A lock on the state could not be taken.
    #[error("cannot lock the simulated driver's state: {0}")]
    Lock(#[source] io::Error),
    /// No GPU with this index.
    #[error("no GPU {index}: the state has {count}, numbered from 0")]
    NoSuchGpu {
        /// The index asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// The text does not describe GPUs.
    #[error(
        "--gpus {text:?}: {difference}; write for example 4xA100 or 2xA100,1xV100, with models {models}"
    )]
    GpuList {
        /// The argument.
        text: String,
        /// What is wrong with it.
        difference: String,
        /// The known models.
        models: String,
    },
    /// No model of this name.
    #[error("no GPU model {text:?}: the simulator knows {models}")]
    NoSuchModel {
        /// The name asked for.
        text: String,
        /// The known models.
        models: String,
    },
    /// All process slots of a GPU are taken by living processes.
    #[error("GPU {gpu} already has {PROCESSES_PER_GPU} processes: end one of them first")]
    TooManyProcesses {
        /// The index of the GPU.
        gpu: usize,
    },
    /// The fault table is full.
    #[error("all {0} fault slots are taken: clear some with `pfo-sim fault --clear`")]
    TooManyFaults(FaultSlotCount),
    /// Not a fault kind.
    #[error(
        "--kind {text:?}: {difference}; write hang, crash, ignored, garbled, latency:MS, scaled:PERCENT, rate:PERCENT, wraps:BITS, or an NVML error such as no-permission, not-supported, gpu-is-lost, unknown, timeout"
    )]
    FaultKind {
        /// The argument.
        text: String,
        /// What is wrong with it.
        difference: String,
    },
    /// A function name that cannot be stored or does not exist.
    #[error(
        "--function {text:?}: {difference}; name one like nvmlDeviceSetGpuLockedClocks, or '*' for all"
    )]
    FaultFunction {
        /// The argument.
        text: String,
        /// What is wrong with it.
        difference: String,
    },
    /// The GPU model cannot do this.
    #[error("GPU {gpu} is a {model}, which has no {feature}")]
    NotOnThisModel {
        /// The index of the GPU.
        gpu: usize,
        /// Its model.
        model: &'static str,
        /// What was asked for.
        feature: &'static str,
    },
    /// A curve without points, with too many, or with clocks that do not rise.
    #[error("a power curve needs 1 to {limit} points of rising clock, this one {difference}")]
    Curve {
        /// The most points there may be.
        limit: usize,
        /// What is wrong with it.
        difference: String,
    },
    /// A profile that cannot be used.
    #[error("{path}{place}: {difference}")]
    Profile {
        /// The file.
        path: PathBuf,
        /// `:LINE`, or nothing where the whole file is meant.
        place: String,
        /// What is wrong, and the remedy.
        difference: String,
    },
}

impl SimError {
    /// A failed operation on a file.
    pub fn file(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::File { action, path: path.into(), source }
    }
}

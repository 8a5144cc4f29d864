//! Why a job could not be tuned.

use pfo_protocol::JobName;

use crate::exit::Exit;
use crate::explained::Explained;

#[derive(Debug, thiserror::Error)]
pub(crate) enum TuneError {
    #[error("no wait of job {job} was long enough to measure the P2P-blocking power")]
    NoWaits { job: JobName },
    #[error("the ranks of job {job} do not all run the same number of forwards in a step")]
    UnknownMicrobatches { job: JobName },
    #[error(
        "the GPUs of job {job} have no power limit in common: their supported ranges do not \
         overlap ({lowest} W … {highest} W)"
    )]
    NoCommonLimit { job: JobName, lowest: u32, highest: u32 },
    #[error("the power limits of job {job} are not known here: none of its GPUs is on this node")]
    NoGpuHere { job: JobName },
    #[error("no plan was kept: job {job} is at default clocks")]
    NothingKept { job: JobName },
    #[error(
        "job {job} runs a plan that most likely, but not certainly, is within the allowed slowdown"
    )]
    Uncertain { job: JobName },
}

impl Explained for TuneError {
    fn exit(&self) -> Exit {
        match self {
            Self::NothingKept { .. } => Exit::NothingKept,
            Self::Uncertain { .. } => Exit::KeptUncertain,
            Self::NoWaits { .. }
            | Self::UnknownMicrobatches { .. }
            | Self::NoCommonLimit { .. }
            | Self::NoGpuHere { .. } => Exit::Failed,
        }
    }

    fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::NoWaits { .. } => "give it with --p2p-power WATTS",
            Self::UnknownMicrobatches { .. } => "give their number with --microbatches",
            Self::NoCommonLimit { .. } => "give --knob clock to search over clocks instead",
            Self::NoGpuHere { .. } => "run the command on one of the job's nodes",
            Self::Uncertain { .. } => "measure more --steps to be certain",
            Self::NothingKept { .. } => return None,
        };
        Some(remedy.to_owned())
    }
}

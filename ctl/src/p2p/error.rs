//! Why a P2P-blocking power could not be measured.

use std::io;
use std::process::ExitStatus;

use crate::exit::Exit;
use crate::explained::Explained;

#[derive(Debug, thiserror::Error)]
pub(crate) enum P2pError {
    #[error("cannot run the helper {command:?}: {source}")]
    Helper { command: String, source: io::Error },
    #[error("the helper {command:?} ended before the measurement was over: {status}")]
    HelperEnded { command: String, status: ExitStatus },
    #[error("the helper did not make both GPUs wait within {seconds} s")]
    HelperSlow { seconds: u64 },
    #[error("the measurement requires two GPUs, and {found} could be used")]
    NoTwoGpus { found: usize },
}

impl Explained for P2pError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }

    fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::Helper { .. } | Self::HelperEnded { .. } | Self::HelperSlow { .. } => {
                "the default helper requires PyTorch and the Python package pfo of this release in \
                 python3; --helper names another one"
            }
            Self::NoTwoGpus { .. } => {
                "name two free GPUs with --gpus; `pfoctl status` shows which are free"
            }
        };
        Some(remedy.to_owned())
    }
}

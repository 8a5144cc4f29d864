//! Why a P2P-blocking power could not be measured or set.

use crate::exit::Exit;
use crate::explained::Explained;

#[derive(Debug, thiserror::Error)]
pub(crate) enum P2pError {
    #[error("the measurement requires two GPUs, and {found} could be used")]
    NoTwoGpus { found: usize },
    #[error("no GPU here is of model {model:?}; known models: {}", .known.join(", "))]
    UnknownModel { model: String, known: Vec<String> },
}

impl Explained for P2pError {
    fn exit(&self) -> Exit {
        match self {
            Self::NoTwoGpus { .. } => Exit::Failed,
            Self::UnknownModel { .. } => Exit::Usage,
        }
    }

    fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::NoTwoGpus { .. } => {
                "name two free GPUs with --gpus; `pfoctl status` shows which are free"
            }
            Self::UnknownModel { .. } => {
                "give one of these, as it is spelt, or --force for GPUs of other nodes"
            }
        };
        Some(remedy.to_owned())
    }
}

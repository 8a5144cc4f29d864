//! Why a P2P-blocking power could not be measured.

use crate::exit::Exit;
use crate::explained::Explained;

#[derive(Debug, thiserror::Error)]
pub(crate) enum P2pError {
    #[error("the measurement requires two GPUs, and {found} could be used")]
    NoTwoGpus { found: usize },
}

impl Explained for P2pError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }

    fn remedy(&self) -> Option<String> {
        let Self::NoTwoGpus { .. } = self;
        let remedy = "name two free GPUs with --gpus; `pfoctl status` shows which are free";
        Some(remedy.to_owned())
    }
}

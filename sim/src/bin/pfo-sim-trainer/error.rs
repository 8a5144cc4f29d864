//! What keeps a simulated training from starting, or a rank from going on.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;
use nvidia_ml::error::SimError;

/// An error of the trainer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrainerError {
    #[error(transparent)]
    Driver(#[from] SimError),
    #[error(transparent)]
    Description(#[from] pfo::DescriptionError),
    #[error(
        "{path} has {found} stages, --stages asks for {wanted}: leave --stages out or give another profile"
    )]
    Stages { path: PathBuf, found: usize, wanted: usize },
    #[error("--gpus names {named} GPUs for {ranks} ranks: name one for each")]
    GpuCount { named: usize, ranks: usize },
    #[error("{named} state files or sockets for {ranks} ranks: name one, or one for each")]
    MachineCount { named: usize, ranks: usize },
    #[error("{named} {what} for {ranks} ranks: name one for each")]
    PlaceCount { what: &'static str, named: usize, ranks: usize },
    #[error("--gpus names GPU {0} twice: each rank needs its own")]
    GpuTwice(usize),
    #[error("the machine has no GPU {0:?}: `pfo-sim show` lists them")]
    NoGpu(String),
    #[error("no user {0:?}: see `getent passwd`")]
    NoUser(String),
    #[error("no group {0:?}: see `getent group`, or give a gid")]
    NoGroup(String),
    #[error("cannot become uid {uid}: {source}; only root can, leave --user and --uid out")]
    Become { uid: u32, source: Errno },
    #[error("cannot {action}: {source}")]
    System { action: &'static str, source: io::Error },
    #[error("rank {rank} was given settings that make no sense: {source}")]
    Settings { rank: &'static str, source: serde_json::Error },
    #[error(
        "{0:?} is no order: give \"begin forward SECONDS\", \"begin backward SECONDS\", \"end\" or \"wait\""
    )]
    Order(String),
    #[error("rank {rank} expected {expected} from its neighbour and got {got}")]
    WrongMessage { rank: u32, expected: String, got: String },
}

impl TrainerError {
    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }
}

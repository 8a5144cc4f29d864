//! Why nothing is observed. The command has not been started then.

use std::io;
use std::path::PathBuf;

use crate::exit::Exit;
use crate::explained::Explained;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ObserveError {
    #[error("{name} is neither beside pfoctl nor in PATH")]
    NoProgram { name: &'static str },
    #[error("cannot make a folder for {what}: {source}")]
    Folder { what: &'static str, source: io::Error },
    #[error("cannot start {name}: {source}")]
    Start { name: String, source: io::Error },
    #[error("{name} does not answer; it said at last: {said}")]
    NoAnswer { name: &'static str, said: String },
    #[error("no GPU can be read: {why}")]
    NoDriver { why: String },
    #[error("interrupted before the command started")]
    Interrupted,
    #[error("cannot wait for {name}: {source}")]
    Wait { name: PathBuf, source: io::Error },
}

impl Explained for ObserveError {
    fn exit(&self) -> Exit {
        match self {
            Self::Start { .. } => Exit::Usage,
            Self::Interrupted => Exit::Interrupted,
            _ => Exit::Failed,
        }
    }

    fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::NoProgram { .. } => {
                "put pfod, pfo-agent and pfoctl of one release into one folder; nothing of them has to be \
                 installed (docs/observe.md)"
            }
            Self::NoDriver { .. } => {
                "run this where `nvidia-smi` lists GPUs, or name the library with --nvml"
            }
            Self::Folder { .. } => "name a folder that you may write to in TMPDIR",
            _ => return None,
        };
        Some(remedy.to_owned())
    }
}

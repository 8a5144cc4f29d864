//! Why there is no live view.

use std::io;

use crate::exit::Exit;
use crate::explained::Explained;

#[derive(Debug, thiserror::Error)]
pub(crate) enum TopError {
    #[error("pfoctl top needs a terminal, and {0} is none")]
    NoTerminal(&'static str),
    #[error("cannot use the terminal: {0}")]
    Terminal(#[from] io::Error),
}

impl Explained for TopError {
    fn exit(&self) -> Exit {
        match self {
            Self::NoTerminal(_) => Exit::Usage,
            Self::Terminal(_) => Exit::Failed,
        }
    }

    fn remedy(&self) -> Option<String> {
        match self {
            Self::NoTerminal(_) => Some(
                "`pfoctl status` prints the same figures once, with --watch again and again"
                    .to_owned(),
            ),
            Self::Terminal(_) => None,
        }
    }
}

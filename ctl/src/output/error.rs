//! Why an answer could not be printed.

use std::io::ErrorKind;

use crate::exit::Exit;
use crate::explained::Explained;

#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    #[error("cannot write the answer: {0}")]
    Write(std::io::Error),
    #[error("cannot write the answer as JSON: {0}")]
    Json(serde_json::Error),
}

impl Explained for OutputError {
    fn exit(&self) -> Exit {
        match self {
            // A reader that stops (`| head`) has what it wanted.
            Self::Write(error) if error.kind() == ErrorKind::BrokenPipe => Exit::Done,
            Self::Write(_) | Self::Json(_) => Exit::Failed,
        }
    }

    fn remedy(&self) -> Option<String> {
        None
    }
}

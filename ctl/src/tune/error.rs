//! Why a job is not tuned.

use pfo_protocol::JobName;

use crate::exit::Exit;
use crate::explained::Explained;

#[derive(Debug, thiserror::Error)]
pub(crate) enum TuneError {
    #[error("no plan was kept: job {job} is at default clocks")]
    NothingKept { job: JobName },
    #[error(
        "job {job} runs a plan that most likely, but not certainly, is within the allowed slowdown"
    )]
    Uncertain { job: JobName },
    #[error("stopped; job {job} returns to default clocks at its next step")]
    Stopped { job: JobName },
    #[error("job {job} is still being tuned")]
    Left { job: JobName },
    #[error("the terms: {why}")]
    Terms { why: String },
    #[error("the report of job {job} cannot be read: {why}")]
    BadReport { job: JobName, why: String },
}

impl Explained for TuneError {
    fn exit(&self) -> Exit {
        match self {
            Self::NothingKept { .. } => Exit::NothingKept,
            Self::Uncertain { .. } => Exit::KeptUncertain,
            Self::Stopped { .. } | Self::Left { .. } => Exit::Interrupted,
            Self::Terms { .. } => Exit::Usage,
            Self::BadReport { .. } => Exit::Failed,
        }
    }

    fn remedy(&self) -> Option<String> {
        match self {
            Self::Uncertain { .. } => Some("measure more --steps to be certain".to_owned()),
            Self::Left { job } => Some(format!(
                "`pfoctl tune {job} --attach` watches it, `pfoctl tune {job} --stop` ends it"
            )),
            Self::Terms { .. } => Some("`pfoctl tune --help` lists them".to_owned()),
            Self::BadReport { .. } => {
                Some("install the same release of pfo-agent and pfoctl".to_owned())
            }
            Self::NothingKept { .. } | Self::Stopped { .. } => None,
        }
    }
}

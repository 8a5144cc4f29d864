//! Why a sweep or its profile cannot be had.

use pfo_protocol::JobName;

use crate::exit::Exit;
use crate::explained::Explained;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ProfileError {
    #[error("no job named {job} is being swept, or it is not yours to see")]
    NoSuchSweep { job: JobName },
    #[error("the sweep of job {job} is paused: {why}")]
    SweepPaused { job: JobName, why: String, not_in_force: bool },
}

impl Explained for ProfileError {
    fn exit(&self) -> Exit {
        match self {
            Self::NoSuchSweep { .. } => Exit::Refused,
            Self::SweepPaused { not_in_force: true, .. } => Exit::NotInForce,
            Self::SweepPaused { .. } => Exit::Failed,
        }
    }

    fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::NoSuchSweep { .. } => {
                "`pfoctl profile start` begins a sweep; `pfoctl profile list` shows stored profiles"
            }
            Self::SweepPaused { .. } => "`pfoctl profile resume` continues it, `stop` ends it",
        };
        Some(remedy.to_owned())
    }
}

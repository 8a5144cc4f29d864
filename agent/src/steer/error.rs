//! Why a job was not steered as requested.

use pfo_protocol::{Refusal, RefusalCode};

use crate::fleet::Unchanged;
use crate::pfod::PfodError;
use crate::refusal::is_temporary;

/// Why something was not done with a job.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum SteerError {
    /// `pfod` does not answer. Whether it was done is unknown.
    #[error("pfod does not answer: {0}")]
    Away(String),
    /// The job has changed since it was looked at. Look again.
    #[error(transparent)]
    Meanwhile(Refusal),
    /// It was refused.
    #[error(transparent)]
    Refused(Refusal),
}

impl SteerError {
    /// Whether the same may be done later, unchanged.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Self::Away(_) | Self::Meanwhile(_) => true,
            Self::Refused(refusal) => is_temporary(refusal.code),
        }
    }

    /// Whether it is of no use to try again.
    pub(crate) fn is_final(&self) -> bool {
        use RefusalCode::{NotAuthorized, NotInForce, PlanDoesNotFit};
        let is_final = |code| matches!(code, PlanDoesNotFit | NotAuthorized | NotInForce);
        matches!(self, Self::Refused(refusal) if is_final(refusal.code))
    }

    /// Whether the driver of a GPU does not do what was asked of it.
    pub(crate) fn is_of_driver(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.code == RefusalCode::NotInForce)
    }

    /// What is wrong, without the remedy.
    pub(crate) fn message(self) -> String {
        match self {
            Self::Meanwhile(refusal) | Self::Refused(refusal) => refusal.message,
            away @ Self::Away(_) => away.to_string(),
        }
    }
}

impl From<PfodError> for SteerError {
    fn from(error: PfodError) -> Self {
        match error {
            PfodError::Away(why) => Self::Away(why),
            PfodError::Refused(refusal) => Self::Refused(refusal),
        }
    }
}

impl From<Refusal> for SteerError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Unchanged> for SteerError {
    fn from(unchanged: Unchanged) -> Self {
        match unchanged {
            Unchanged::Meanwhile(refusal) => Self::Meanwhile(refusal),
            Unchanged::Refused(refusal) => Self::Refused(refusal),
        }
    }
}

impl From<SteerError> for Refusal {
    fn from(error: SteerError) -> Self {
        match error {
            SteerError::Away(why) => PfodError::Away(why).into(),
            SteerError::Meanwhile(refusal) | SteerError::Refused(refusal) => refusal,
        }
    }
}

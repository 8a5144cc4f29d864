//! Why `pfod` did not carry out a request.

use pfo_protocol::{Refusal, RefusalCode};

/// Why a request to `pfod` has no answer that helps.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum PfodError {
    /// There is no connection, or it broke. Whether the request was carried out is unknown.
    #[error("pfod does not answer: {0}")]
    Away(String),
    /// `pfod` refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl From<PfodError> for Refusal {
    fn from(error: PfodError) -> Self {
        match error {
            PfodError::Refused(refusal) => refusal,
            away @ PfodError::Away(_) => Self::new(
                RefusalCode::ShuttingDown,
                away.to_string(),
                "the agent retries by itself; `systemctl status pfod` says what is wrong",
            ),
        }
    }
}

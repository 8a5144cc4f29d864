//! Why a whole job has not changed.

use pfo_protocol::Refusal;

/// Why a whole job has not changed.
#[derive(Debug)]
pub(crate) enum Unchanged {
    /// It runs something else than was known when that was decided.
    Meanwhile(Refusal),
    /// Anything else.
    Refused(Refusal),
}

impl From<Refusal> for Unchanged {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Unchanged> for Refusal {
    fn from(unchanged: Unchanged) -> Self {
        let (Unchanged::Meanwhile(refusal) | Unchanged::Refused(refusal)) = unchanged;
        refusal
    }
}

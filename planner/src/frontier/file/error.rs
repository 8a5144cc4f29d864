//! Why a frontier file is refused.

/// What is wrong with the bytes of a frontier file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrontierFileError {
    /// Bytes that are no frontier, or one of a version that this one does not read.
    #[error("not a frontier file that this version reads: {0}")]
    Foreign(String),

    /// A frontier file that was cut short or changed.
    #[error("the frontier file is damaged: {0}; make it again with pfoctl plan optimize")]
    Damaged(String),
}

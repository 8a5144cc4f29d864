//! Why a frontier file is refused.

/// A problem of a frontier file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrontierFileError {
    /// Bytes that are not a frontier file, or one of another version.
    #[error("not a frontier file that this version reads: {0}")]
    Foreign(String),

    /// A frontier file that was truncated or changed.
    #[error("the frontier file is damaged: {0}; make it again with pfoctl plan optimize")]
    Damaged(String),
}

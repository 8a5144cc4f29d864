use pfo_fleet::Digest;

/// Why the store has not done what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It does not answer, or cannot just now. Whether a write was taken is unknown.
    #[error("the store does not answer: {0}")]
    Away(String),
    /// It answers, and takes no writes: it has reached its quota.
    #[error(
        "the store is full: {0}; `etcdctl compaction`, `defrag` and `alarm disarm` make room, and \
        `--quota-backend-bytes` gives more"
    )]
    Full(String),
    /// It answers, and refuses.
    #[error("the store refuses: {0}; `etcdctl user get` and `role get` show what a node may do")]
    Refused(String),
    /// It lets this node write what is other nodes'.
    #[error(
        "its role lets it write what is other nodes' below {0}; give each node a role for its own keys, as \
         docs/fleet.md shows"
    )]
    TooWide(String),
    /// A file of the credentials cannot be used.
    #[error("{0}")]
    Credentials(String),
    /// A slice is larger than any plan's, more was measured than a trial hands in, or a record is too large.
    #[error("a value of {0} bytes is larger than {1}")]
    TooLarge(usize, usize),
    /// Nobody has published the slice.
    #[error("the store has no slice {0}")]
    Missing(Digest),
    /// The slice is not what its name says.
    #[error("what the store has as slice {0} is something else")]
    Differs(Digest),
}

//! What the daemon says in the journal.

pub(crate) mod journal;

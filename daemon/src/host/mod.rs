//! What the daemon says in the journal, and what others may have it say.

pub(crate) mod journal;
mod line;

pub(crate) use line::check_line;

//! The state file: what all processes of a simulated machine share, and how it survives any of
//! them.

pub(crate) mod file;
pub(crate) mod layout;
pub(crate) mod lock;
pub(crate) mod snapshot;

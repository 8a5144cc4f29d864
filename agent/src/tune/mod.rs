//! Jobs that are being tuned. `pfo-experiment` decides what happens to a job; this is where it happens: the
//! bench of this node, the answers that it gave, on disk, and who watches.
//!
//! A tune belongs to the agent. It ends with no connection, and after a restart of the agent it is run again
//! over the answers that it had, and continues from there.

mod answers;
mod bench;
mod file;
mod requests;
mod tunes;

pub(crate) use file::TuneFiles;
pub(crate) use requests::{list, read, start, stop, watch};
pub(crate) use tunes::Tunes;

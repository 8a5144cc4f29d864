//! What the threads of the view tell the one that draws.

use std::io;

use nix::sys::signal::Signal;

use super::feed::Snapshot;
use super::keys::Key;

pub(super) enum Message {
    Key(Key),
    /// The terminal has another size.
    Resized,
    /// What the daemons say, or why `pfod` says nothing.
    Answer(Result<Box<Snapshot>, String>),
    /// A signal that ends the process.
    Ended(Signal),
    /// No key will come any more.
    Deaf(io::Error),
}

//! What the threads of the view tell the one that draws.

use std::io;

use nix::sys::signal::Signal;

use super::feed::Snapshot;
use super::keys::Key;
use super::sheet::JobKey;
use super::step::Step;

pub(super) enum Message {
    Key(Key),
    /// The terminal has another size.
    Resized,
    /// What the daemons say, or why `pfod` says nothing.
    Answer(Result<Box<Snapshot>, String>),
    /// A step of the job that is looked into, or why none is known.
    Stepped(JobKey, Result<Step, String>),
    /// A signal that ends the process.
    Ended(Signal),
    /// No key will come any more.
    Deaf(io::Error),
}
